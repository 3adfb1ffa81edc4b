"""`bench`: times any set of kernels over sequence lengths, beside numpy."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from .. import _tensor, device
from .._attention import flash_attn_func, query_support
from ..config import Config, DType
from ..oracle import Mask
from . import plot, problem
from .problem import BadInput

_WARM_UP = 0.05  # seconds before the first timed run: threads, caches, clock


@dataclass(frozen=True)
class Timing:
    """Median time in seconds of one row of the table."""

    label: str
    dtype: str
    seqlen: int
    seconds: float
    gflops: float


@dataclass(frozen=True)
class Contender:
    """Something to time: a kernel by its configuration, the library's own choice, or numpy."""

    label: str
    dtype: DType
    config: Config | None
    is_numpy: bool = False


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "bench",
        help="time kernels over sequence lengths",
        description="Median time and GFLOP/s (4 batch heads seqlen_q seqlen_k d_head operations, "
        "half when causal). Without filters: the kernel that the library selects, for each dtype.",
    )
    problem.add_filter_argument(parser)
    parser.add_argument("--all", action="store_true", help="every kernel this machine can run")
    shape = parser.add_argument_group("shape")
    shape.add_argument(
        "--seqlen", type=_lengths, default="512,1024,2048", metavar="N,N,...", help="keys"
    )
    shape.add_argument("--seqlen-q", type=int, help="queries, if not as many as keys")
    shape.add_argument("--batch", type=int, default=1)
    shape.add_argument("--heads", type=int, default=8)
    shape.add_argument("--heads-kv", type=int, help="default: as many as heads")
    shape.add_argument("--d-head", type=int, default=128)
    problem.add_mask_options(parser)
    parser.add_argument("--runs", type=int, default=5, help="timed runs of each row")
    parser.add_argument("--threads", type=int, help="default: the library's")
    parser.add_argument("--no-numpy", action="store_true", help="leave the numpy peer out")
    parser.add_argument("--plot", metavar="FILE.png", help="also draw GFLOP/s over the length")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    console = problem.extra("rich.console").Console()
    if args.plot:
        problem.extra("matplotlib")
    _check_numbers(args)
    if args.threads is not None:
        device.set_num_threads(args.threads)
    jobs = [(c, n) for n in args.seqlen for c in _contenders(args)]
    timings = [t for t in _with_progress(console, jobs, args) if t is not None]
    console.print(_table(timings, args))
    if args.plot:
        plot.draw(args.plot, timings, _title(args))
        console.print(f"{args.plot} written")
    return 0


def _lengths(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _check_numbers(args: argparse.Namespace) -> None:
    numbers = {"--runs": args.runs, "--batch": args.batch, "--heads": args.heads}
    numbers["--d-head"] = args.d_head
    numbers["--seqlen-q"] = 1 if args.seqlen_q is None else args.seqlen_q
    numbers["--heads-kv"] = 1 if args.heads_kv is None else args.heads_kv
    numbers["--seqlen"] = min(args.seqlen)
    for option, value in numbers.items():
        if value < 1:
            raise BadInput(f"{option} is {value}: at least 1")


def _contenders(args: argparse.Namespace) -> list[Contender]:
    """What to time, each dtype's kernels together, the numpy peer (float32) last."""
    if args.filters or args.all:
        rows = problem.chosen_kernels(args.filters, runnable=True)
        if not rows:
            raise BadInput("no kernel that this machine can run matches")
        found = [Contender(str(k.config), DType(k.config.dtype), k.config) for k in rows]
    else:
        found = [Contender(f"selected ({dtype.name})", dtype, None) for dtype in DType]
    if not args.no_numpy:
        found.append(Contender("numpy (three steps)", DType.FP32, None, is_numpy=True))
    return found


def _with_progress(
    console: Any, jobs: list[tuple[Contender, int]], args: argparse.Namespace
) -> Iterator[Timing | None]:
    progress = problem.extra("rich.progress")
    with progress.Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=len(jobs))
        for contender, seqlen in jobs:
            bar.update(task, description=f"{contender.label}, {seqlen}")
            yield _measure(contender, seqlen, args)
            bar.advance(task)


def _measure(contender: Contender, seqlen: int, args: argparse.Namespace) -> Timing | None:
    """None: the kernel does not serve the problem."""
    q, k, v = _inputs(contender.dtype, seqlen, args)
    make_call = _numpy_call if contender.is_numpy else _library_call
    call = make_call(q, k, v, contender.config, problem.mask_options(args))
    if call is None:
        return None
    seconds = _median_seconds(call, args.runs)
    operations = 4 * q.size * seqlen * (0.5 if args.causal else 1)
    gflops = operations / seconds / 1e9
    return Timing(contender.label, contender.dtype.name, seqlen, seconds, gflops)


def _inputs(dtype: DType, seqlen: int, args: argparse.Namespace) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    heads_kv = args.heads_kv or args.heads
    seqlen_q = args.seqlen_q or seqlen
    numpy_dtype = _tensor.numpy_dtype(problem.NUMPY_NAME[dtype])
    sizes = ((seqlen_q, args.heads), (seqlen, heads_kv), (seqlen, heads_kv))
    return [
        rng.standard_normal((args.batch, length, heads, args.d_head), np.float32).astype(
            numpy_dtype
        )
        for length, heads in sizes
    ]


def _median_seconds(call: Callable[[], None], runs: int) -> float:
    end = time.perf_counter() + _WARM_UP
    call()
    while time.perf_counter() < end:
        call()
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _library_call(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, config: Config | None, options: dict[str, Any]
) -> Callable[[], None] | None:
    """None: this kernel does not serve the problem; BadInput: no kernel does."""
    anyone = query_support(q, k, v, **options)
    if not anyone:
        raise BadInput(anyone.reason)
    if not query_support(q, k, v, config=config, **options):
        return None
    out = np.empty_like(q)

    def call() -> None:
        flash_attn_func(q, k, v, out=out, config=config, **options)

    return call


def _numpy_call(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, _: Config | None, options: dict[str, Any]
) -> Callable[[], None]:
    """The three steps as a numpy user would write them, in float32."""
    group = q.shape[2] // k.shape[2]
    scale = np.float32(options["softmax_scale"] or q.shape[-1] ** -0.5)
    visible = Mask(options["causal"], *options["window_size"]).visible(q.shape[1], k.shape[1])
    bias = np.where(visible, np.float32(0), np.float32(-np.inf))
    softcap = np.float32(options["softcap"])

    def call() -> None:
        k_all, v_all = (np.repeat(x, group, axis=2).transpose(0, 2, 1, 3) for x in (k, v))
        scores = q.transpose(0, 2, 1, 3) @ k_all.swapaxes(-1, -2)
        scores *= scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        scores += bias
        scores -= np.maximum(scores.max(axis=-1, keepdims=True), np.finfo(np.float32).min)
        np.exp(scores, out=scores)
        total = scores.sum(axis=-1, keepdims=True)
        scores @ v_all / np.where(total > 0, total, 1)

    return call


def _table(timings: list[Timing], args: argparse.Namespace) -> Any:
    table = problem.extra("rich.table").Table(title=_title(args))
    table.add_column("seqlen", justify="right")
    table.add_column("kernel", overflow="fold")
    for name in ("median ms", "GFLOP/s", "x numpy"):
        table.add_column(name, justify="right")
    peers = {t.seqlen: t.seconds for t in timings if t.label.startswith("numpy")}
    for t in timings:
        speed = f"{peers[t.seqlen] / t.seconds:.2f}" if t.seqlen in peers else ""
        row = (str(t.seqlen), t.label, f"{t.seconds * 1e3:.3f}", f"{t.gflops:.1f}", speed)
        table.add_row(*row)
    return table


def _title(args: argparse.Namespace) -> str:
    return (
        f"batch {args.batch}, heads {args.heads}/{args.heads_kv or args.heads}, d_head "
        f"{args.d_head}{', causal' if args.causal else ''}, {device.num_threads()} threads"
    )
