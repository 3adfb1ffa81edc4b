"""`bench --device cuda`: GPU time of kernels on torch tensors, beside torch's own attention.

The contenders of a length take turns launch by launch, so that all see the same clock, on a stream
that a spinning kernel holds until everything is enqueued, so that the cost of the host stays out.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any, Callable

from .._attention import flash_attn_func, query_support
from ..config import DType
from . import bench_scores, problem
from .problem import BadInput
from .timing import Contender

DTYPES = (DType.FP16, DType.BF16)
_PEERS = {"torch FA2": "FLASH_ATTENTION", "torch cuDNN": "CUDNN_ATTENTION"}
_WARM_UP = 3  # calls of each contender
_SPIN_CYCLES = 200_000  # for each launch to enqueue: about 0.1 ms

_Call = Callable[[], Any]


def measure(
    contenders: list[Contender], seqlen: int, batch: int, args: argparse.Namespace
) -> list[tuple[Contender, float]]:
    """Median seconds of the contenders (of one dtype) that serve the problem, and of the peers."""
    dtype, options = contenders[0].dtype, problem.mask_options(args)
    q, k, v = inputs(dtype, seqlen, batch, args)
    calls = []
    if args.scores != bench_scores.ORDINARY:
        ordinary = Contender(f"ordinary scores ({dtype.name})", dtype, None, is_peer=True)
        calls = [(ordinary, _library_call(q, k, v, ordinary, options))]
        once = args.scores == bench_scores.GROWING_ONCE
        q, k = bench_scores.grow(q, k, args.scale, once=once)
    calls += [(c, _library_call(q, k, v, c, options)) for c in contenders]
    if not args.no_peers:
        calls += _peer_calls(q, k, v, dtype, options)
    calls = [(contender, call) for contender, call in calls if call is not None]
    seconds = _median_seconds([call for _, call in calls], args.runs)
    return [(contender, s) for (contender, _), s in zip(calls, seconds)]


def inputs(dtype: DType, seqlen: int, batch: int, args: argparse.Namespace) -> list[Any]:
    torch = _torch()
    torch.manual_seed(0)
    sizes = ((args.seqlen_q or seqlen, args.heads), *[(seqlen, args.heads_kv or args.heads)] * 2)
    element = getattr(torch, problem.NUMPY_NAME[dtype])
    return [
        torch.randn(batch, length, heads, args.d_head, device="cuda", dtype=element)
        for length, heads in sizes
    ]


def _library_call(
    q: Any, k: Any, v: Any, contender: Contender, options: dict[str, Any]
) -> _Call | None:
    """None: this kernel does not serve the problem; BadInput: no kernel does."""
    anyone = query_support(q, k, v, **options)
    if not anyone:
        raise BadInput(anyone.reason)
    if not query_support(q, k, v, config=contender.config, **options):
        return None
    out = q.new_empty(q.shape)
    return lambda: flash_attn_func(q, k, v, out=out, config=contender.config, **options)


def _peer_calls(
    q: Any, k: Any, v: Any, dtype: DType, options: dict[str, Any]
) -> list[tuple[Contender, _Call]]:
    """torch's kernels that can be asked for this problem by scaled_dot_product_attention."""
    is_square = q.shape[1] == k.shape[1]
    if options["softcap"] or options["window_size"] != (-1, -1):
        return []
    if options["causal"] and not is_square:  # torch aligns the mask top-left
        return []
    found = []
    for label, backend in _PEERS.items():
        call = _sdpa_call(q, k, v, backend, options)
        if _runs(call):
            found.append((Contender(f"{label} ({dtype.name})", dtype, None, is_peer=True), call))
    return found


def _sdpa_call(q: Any, k: Any, v: Any, backend: str, options: dict[str, Any]) -> _Call:
    attention = problem.extra("torch.nn.attention")
    function = problem.extra("torch.nn.functional").scaled_dot_product_attention
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    keywords = {
        "is_causal": options["causal"],
        "scale": options["softmax_scale"],
        "enable_gqa": q.shape[2] != k.shape[2],
    }

    def call() -> None:
        with attention.sdpa_kernel(getattr(attention.SDPBackend, backend)):
            function(*heads_first, **keywords)

    return call


def _runs(call: _Call) -> bool:
    try:
        call()
    except RuntimeError:  # torch has no such kernel for the problem
        return False
    return True


def _median_seconds(calls: list[_Call], runs: int) -> list[float]:
    cuda = _torch().cuda
    for call in calls * _WARM_UP:
        call()
    cuda.synchronize()
    events = [
        [[cuda.Event(enable_timing=True) for _ in range(2)] for _ in calls] for _ in range(runs)
    ]
    cuda._sleep(_SPIN_CYCLES * runs * len(calls))
    for turn in events:
        for call, (begin, end) in zip(calls, turn):
            begin.record()
            call()
            end.record()
    cuda.synchronize()
    milliseconds = [[begin.elapsed_time(end) for begin, end in turn] for turn in events]
    return [statistics.median(own) / 1e3 for own in zip(*milliseconds)]


def _torch() -> Any:
    return problem.extra("torch")
