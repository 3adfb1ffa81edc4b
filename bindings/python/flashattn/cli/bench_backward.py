"""`bench-backward`: times gradients on the CPU over sequence lengths, beside torch."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np

from .. import device
from .._attention import flash_attn_func
from .._backward import flash_attn_backward
from ..config import DType
from . import bench, extras, memory, problem, rates, torch_arrays
from .problem import BadInput
from .timing import SELECTED, Timing

Call = Callable[[], None]

# There are five products, S, dP, dQ, dK and dV, where the forward pass has two, S and O.
_OPERATIONS = 2.5
_TORCH = "torch (SDPA, {})"


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "bench-backward",
        help="time gradients over sequence lengths",
        description="Prints median times and GFLOP/s of flash_attn_backward on the CPU, counting "
        "5 batch heads seqlen_q seqlen_k (d_head + d_head_v) operations, half when causal, and of "
        "the backward pass of torch's scaled_dot_product_attention, if torch is installed and has "
        "the problem. Both take turns.",
    )
    problem.add_shape_options(parser)
    problem.add_mask_options(parser)
    parser.add_argument(
        "--dtype",
        choices=[dtype.name for dtype in (DType.FP32, DType.BF16, DType.FP16)],
        action="append",
        help="element type, once or more (FP32 and BF16)",
    )
    parser.add_argument("--runs", type=int, default=5, help="timed runs of each row (5)")
    parser.add_argument("--threads", type=int, help="number of CPU threads; default: the library's")
    parser.add_argument("--no-peers", action="store_true", help="do not time torch")
    parser.set_defaults(run=run, device="cpu", leftpad_k=0)


def run(args: argparse.Namespace) -> int:
    problem.check_at_least_one(args, "runs")
    if args.threads is not None:
        device.set_num_threads(args.threads)
    dtypes = [DType[name] for name in args.dtype or ("FP32", "BF16")]
    extras.require("rich", *extras.of_arrays("cpu", dtypes))
    rounds = itertools.product(args.seqlen, dtypes)
    timings = [t for seqlen, dtype in rounds for t in _timings(seqlen, dtype, args)]
    extras.console().print(bench.table(timings, args, "backward"))
    return 0


def _timings(seqlen: int, dtype: DType, args: argparse.Namespace) -> Iterator[Timing]:
    calls = _calls(seqlen, dtype, args)
    seconds = _median_seconds(list(calls.values()), args.runs)
    operations = _OPERATIONS * problem.operations(seqlen, args)
    scale = rates.unit(args)[1]
    for label, of_one in zip(calls, seconds):
        is_peer = not label.startswith(SELECTED)
        rate = operations / of_one / scale
        yield Timing(label, dtype.name, seqlen, of_one, rate, is_peer)


def _calls(seqlen: int, dtype: DType, args: argparse.Namespace) -> dict[str, Call]:
    """The calls that are timed, by their labels."""
    batch = problem.batch_size(seqlen, args)
    queries, keys = (batch, args.seqlen_q or seqlen), (batch, seqlen)
    memory.require_inputs(dtype, queries, keys, args)
    q, k, v = bench.random_inputs(dtype, queries, keys, args)
    options = problem.mask_options(args)
    shape = (*q.shape[:-1], v.shape[-1])
    d_o = np.random.default_rng(1).standard_normal(shape, np.float32).astype(q.dtype)
    calls = {f"{SELECTED} ({dtype.name})": _own_call(d_o, q, k, v, options)}
    if not args.no_peers and importlib.util.find_spec("torch") and _torch_has(q, k, options):
        calls[_TORCH.format(dtype.name)] = _torch_call(d_o, q, k, v, options)
    return calls


def _own_call(
    d_o: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, options: dict[str, Any]
) -> Call:
    try:
        o, lse = flash_attn_func(q, k, v, return_lse=True, **options)
    except NotImplementedError as error:
        raise BadInput(str(error)) from error
    outputs = {"dq": np.empty_like(q), "dk": np.empty_like(k), "dv": np.empty_like(v)}

    def call() -> None:
        flash_attn_backward(d_o, q, k, v, o, lse, **outputs, **options)

    return call


def _torch_has(q: np.ndarray, k: np.ndarray, options: dict[str, Any]) -> bool:
    """Whether torch has the problem; its causal mask is aligned at the top left."""
    return problem.is_plain(options) and (not options["causal"] or q.shape[1] == k.shape[1])


def _torch_call(
    d_o: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, options: dict[str, Any]
) -> Call:
    import torch

    torch.set_num_threads(device.num_threads())
    leaves = [torch_arrays.to_tensor(x).transpose(1, 2).requires_grad_() for x in (q, k, v)]
    o = torch.nn.functional.scaled_dot_product_attention(
        *leaves,
        is_causal=options["causal"],
        scale=options["softmax_scale"],
        enable_gqa=q.shape[2] != k.shape[2],
    )
    d_o_t = torch_arrays.to_tensor(d_o).transpose(1, 2)

    def call() -> None:
        torch.autograd.grad(o, leaves, d_o_t, retain_graph=True)

    return call


def _median_seconds(calls: list[Call], runs: int) -> list[float]:
    """The median of each call's runs, which take turns, after one that is not timed."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(runs):
        for call, of_call in zip(calls, times):
            begin = time.perf_counter()
            call()
            of_call.append(time.perf_counter() - begin)
    return [statistics.median(of_call) for of_call in times]
