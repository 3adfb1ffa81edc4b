"""`bench --device cuda`: GPU time of kernels on torch tensors, beside torch's own attention and
FlashAttention-3, whose module is flash_attn_interface, where they are installed.

The contenders of a length take turns launch by launch, so that all see the same clock, on a stream
that a spinning kernel holds until everything is enqueued, so that the cost of the host stays out.
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
from typing import Any, Callable

from .._attention import flash_attn_func, flash_attn_varlen_func, query_support
from ..config import DType
from . import bench_scores, extras, memory, pages, problem
from .problem import BadInput
from .timing import Contender

DTYPES = (DType.FP16, DType.BF16)
_PEERS = {"torch FA2": "FLASH_ATTENTION", "torch cuDNN": "CUDNN_ATTENTION"}
_PEERS_OF_WIDE = {"torch efficient": "EFFICIENT_ATTENTION"}  # of heads that these do not have
_MOST_COLUMNS_OF_PEERS = 256
_WARM_UP = 3  # calls of each contender
_SPIN_CYCLES = 200_000  # for each launch to enqueue: about 0.1 ms
_COLD_SPIN_CYCLES = 400_000  # likewise, with what is written before it
_FLUSH_BYTES = 256 << 20

Call = Callable[[], Any]


def measure(
    contenders: list[Contender], seqlen: int, batch: int, args: argparse.Namespace
) -> list[tuple[Contender, float]]:
    """Median seconds of the contenders (of one dtype) that serve the problem, and of the peers."""
    dtype, options = contenders[0].dtype, problem.mask_options(args)
    options.update(pages.on_device(problem.padding_arrays(batch, args)))
    q, k, v = inputs(dtype, seqlen, batch, args)
    calls = []
    if args.scores != bench_scores.ORDINARY:
        ordinary = Contender(f"ordinary scores ({dtype.name})", dtype, None, is_peer=True)
        calls = [(ordinary, kernel_call(q, k, v, ordinary, options))]
        once = args.scores == bench_scores.GROWING_ONCE
        q, k = bench_scores.grow(q, k, args.scale, once=once)
    calls += [(c, kernel_call(q, k, v, c, options)) for c in contenders]
    if not args.no_peers:
        calls += _peer_calls(q, k, v, dtype, options)
    calls = [(contender, call) for contender, call in calls if call is not None]
    seconds = median_seconds([call for _, call in calls], args.runs)
    return [(contender, s) for (contender, _), s in zip(calls, seconds)]


def inputs(dtype: DType, seqlen: int, batch: int, args: argparse.Namespace) -> list[Any]:
    return random_inputs(dtype, (batch, args.seqlen_q or seqlen), (batch, seqlen), args)


def random_inputs(
    dtype: DType, queries: tuple[int, ...], keys: tuple[int, ...], args: argparse.Namespace
) -> list[Any]:
    """q, k and v, whose first axes are given. Raises BadInput where they do not fit in memory."""
    memory.require_inputs(dtype, queries, keys, args)
    torch = extras.load("torch")
    torch.manual_seed(0)
    of_q, of_keys = problem.q_name(dtype, args), problem.NUMPY_NAME[dtype]
    drawn = getattr(torch, problem.o_name(of_q))
    shapes = problem.shapes(queries, keys, args)
    tensors = (torch.randn(shape, device="cuda", dtype=drawn) for shape in shapes)
    return [x.to(getattr(torch, name)) for x, name in zip(tensors, (of_q, of_keys, of_keys))]


def kernel_call(
    q: Any, k: Any, v: Any, contender: Contender, options: dict[str, Any]
) -> Call | None:
    """None: this kernel does not serve the problem; BadInput: no kernel does. The options hold the
    mask and, of a ragged batch, the lengths."""
    anyone = query_support(q, k, v, **options)
    if not anyone:
        raise BadInput(anyone.reason)
    if not query_support(q, k, v, config=contender.config, **options):
        return None
    shape = (*q.shape[:-1], v.shape[-1])
    out = q.new_full(shape, math.nan, dtype=type_of_o(q))  # so that what a kernel leaves out shows
    function = flash_attn_varlen_func if "cu_seqlens_q" in options else flash_attn_func
    return lambda: function(q, k, v, out=out, config=contender.config, **options)


def type_of_o(q: Any) -> Any:
    """The type of O of a call with this q."""
    torch = extras.load("torch")
    return getattr(torch, problem.o_name(str(q.dtype).removeprefix("torch.")))


def _peer_calls(
    q: Any, k: Any, v: Any, dtype: DType, options: dict[str, Any]
) -> list[tuple[Contender, Call]]:
    """Returns calls of the other libraries that have a kernel for the problem."""
    calls = {"FA3": _fa3_call(q, k, v, options), **_torch_calls(q, k, v, options)}
    return [
        (Contender(f"{label} ({dtype.name})", dtype, None, is_peer=True), call)
        for label, call in calls.items()
        if call is not None and can_run(call)
    ]


def _fa3_call(q: Any, k: Any, v: Any, options: dict[str, Any]) -> Call | None:
    """Returns a call of FlashAttention-3; None where it is not installed, or there is padding."""
    try:
        function = importlib.import_module("flash_attn_interface").flash_attn_func
    except (ImportError, AttributeError):
        return None
    if "leftpad_k" in options:
        return None
    if not options["attention_chunk"]:  # which its older releases do not know
        options = {name: x for name, x in options.items() if name != "attention_chunk"}
    return lambda: function(q, k, v, **options)


def _torch_calls(q: Any, k: Any, v: Any, options: dict[str, Any]) -> dict[str, Call]:
    """Returns calls of scaled_dot_product_attention by its kernels, where it has the mask."""
    is_square = q.shape[1] == k.shape[1]
    if not problem.is_plain(options):
        return {}
    if options["causal"] and not is_square:  # torch aligns the mask top-left
        return {}
    is_wide = max(q.shape[-1], v.shape[-1]) > _MOST_COLUMNS_OF_PEERS
    peers = _PEERS_OF_WIDE if is_wide else _PEERS
    return {label: sdpa_call(q, k, v, backend, options) for label, backend in peers.items()}


def sdpa_call(q: Any, k: Any, v: Any, backend: str, options: dict[str, Any]) -> Call:
    attention = extras.load("torch.nn.attention")
    function = extras.load("torch.nn.functional").scaled_dot_product_attention
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


def can_run(call: Call) -> bool:
    """Whether torch has a kernel for the problem."""
    try:
        call()
    except RuntimeError:
        return False
    return True


def median_seconds(
    calls: list[Call],
    runs: int,
    spin_cycles: int = _SPIN_CYCLES,
    before: Call | None = None,
) -> list[float]:
    """The median time of `runs` launches of each call, which are enqueued behind a spin of
    spin_cycles for each launch. before: what is enqueued in front of each, and not timed."""
    cuda = extras.load("torch").cuda
    for call in calls * _WARM_UP:
        call()
    cuda.synchronize()
    events = [
        [[cuda.Event(enable_timing=True) for _ in range(2)] for _ in calls] for _ in range(runs)
    ]
    cuda._sleep(spin_cycles * runs * len(calls))
    for turn in events:
        for call, (begin, end) in zip(calls, turn):
            if before is not None:
                before()
            begin.record()
            call()
            end.record()
    cuda.synchronize()
    milliseconds = [[begin.elapsed_time(end) for begin, end in turn] for turn in events]
    return [statistics.median(own) / 1e3 for own in zip(*milliseconds)]


def cold_median_seconds(calls: list[Call], runs: int) -> list[float]:
    """median_seconds() with 256 MiB written before each launch, so that no cache holds its inputs
    or a kernel's instructions, as between the layers of a model."""
    torch = extras.load("torch")
    memory = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    return median_seconds(calls, runs, _COLD_SPIN_CYCLES, before=memory.zero_)
