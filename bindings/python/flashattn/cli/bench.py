"""`bench`: times any set of kernels over sequence lengths, beside numpy, torch and onnxruntime."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np

from .. import _abi, _tensor, device, quant_blocks
from .._attention import flash_attn_func, query_support
from ..config import Config, DType
from . import (
    bench_cpu_peers,
    bench_cuda,
    bench_ragged,
    bench_scores,
    extras,
    gpu,
    memory,
    output_file,
    plot,
    problem,
    progression,
    rates,
    words,
)
from .problem import BadInput
from .timing import SELECTED, Contender, Timing

_PICTURE = "bench.png"
_WARM_UP = 0.05  # seconds before the first timed run: threads, caches, clock


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "bench",
        help="time kernels over sequence lengths",
        description="Prints median times and GFLOP/s, counting 2 batch heads seqlen_q seqlen_k "
        "(d_head + d_head_v) operations, half when causal; with --seqlen-q up to "
        f"{rates.MOST_DECODE_QUERIES} it prints GB/s of reading K and V once. Without filters it "
        "times the kernel that the library selects for each dtype. On the CPU it also times numpy, "
        "and torch and onnxruntime where they are installed; with --device cuda it takes GPU "
        "times, and those of torch's FlashAttention-2 and cuDNN (of a d_head above 256, of its "
        "memory-efficient kernel), and of FlashAttention-3 (FA3) if "
        "flash_attn_interface can be imported. With --lengths it times ragged batches.",
    )
    problem.add_filter_argument(parser)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where to compute (cpu)"
    )
    parser.add_argument(
        "--all", action="store_true", help="time every kernel that this machine can run"
    )
    parser.add_argument(
        "--set",
        choices=tuple(progression.SETS),
        help="on a GPU, time a series of kernels each of which has one optimisation more",
    )
    problem.add_shape_options(parser)
    problem.add_mask_options(parser)
    problem.add_padding_option(parser)
    problem.add_q_dtype_option(parser, "FP16")
    parser.add_argument("--runs", type=int, help="timed runs of each row (5, on a GPU 25)")
    parser.add_argument("--threads", type=int, help="number of CPU threads; default: the library's")
    parser.add_argument(
        "--scores",
        choices=bench_scores.SCORES,
        default=bench_scores.ORDINARY,
        help="kind of random scores, on a GPU (ordinary). growing: for every query the key that is "
        "read last outweighs all others, so that kernels with fixed_reference compute most tiles "
        "twice; growing_once: for one query. Both are timed beside ordinary scores",
    )
    parser.add_argument(
        "--no-peers", "--no-numpy", action="store_true", help="do not time other libraries"
    )
    parser.add_argument(
        "--plot",
        nargs="?",
        const=_PICTURE,
        metavar="FILE",
        help=f"also draw the rates, to FILE ({_PICTURE}), which ends with "
        f"{words.choice(plot.ENDINGS)}",
    )
    bench_ragged.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.runs is None:
        args.runs = 25 if args.device == "cuda" else 5
    problem.check_at_least_one(args, "runs")
    problem.check_padding(args)
    if args.plot:
        output_file.check(args.plot, plot.ENDINGS)
    ragged_batches = bench_ragged.batches(args)
    _prepare_device(args)
    own = progression.steps(args) if args.set else _own_contenders(args)
    _check_q_dtype(own, args)
    arrays = extras.of_arrays(args.device, [contender.dtype for contender in own])
    extras.require("rich", *arrays, *(["matplotlib"] if args.plot else []))
    console = extras.console()
    if args.set:
        return progression.run(console, args)
    groups = _contenders(own, args)
    if ragged_batches:
        return bench_ragged.run(console, args, ragged_batches, groups)
    _check_memory(own, args)
    timings = list(_timings(console, groups, args))
    console.print(table(timings, args))
    if args.plot:
        title = plot.heading(_machine(args), _problem(args))
        plot.draw(args.plot, timings, title, rates.unit(args)[0])
        console.print(f"{args.plot} written")
    return 0


def _prepare_device(args: argparse.Namespace) -> None:
    if args.device == "cuda":
        gpu.require("--device cuda")
    elif args.scores != bench_scores.ORDINARY:
        raise BadInput(f"--scores {args.scores} is for CUDA kernels: add --device cuda")
    if args.threads is not None:
        device.set_num_threads(args.threads)


def _check_memory(own: list[Contender], args: argparse.Namespace) -> None:
    """Refuses inputs of any length that do not fit, before the first is measured."""
    for seqlen, contender in itertools.product(args.seqlen, own):
        memory.require_inputs(contender.dtype, *_axes(seqlen, args), args)


def _timings(
    console: Any, groups: list[list[Contender]], args: argparse.Namespace
) -> Iterator[Timing]:
    """Every row of the table, with a progress bar where a person sees it."""
    rounds = list(itertools.product(args.seqlen, groups))
    progress = extras.load("rich.progress")
    with progress.Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=len(rounds))
        for seqlen, contenders in rounds:
            bar.update(task, description=f"{contenders[0].label}, {seqlen}")
            yield from _measure(contenders, seqlen, args)
            bar.advance(task)


def _contenders(own: list[Contender], args: argparse.Namespace) -> list[list[Contender]]:
    """What to time, in groups that are timed together: each alone, or on a GPU those of a dtype."""
    if args.device == "cuda":
        by_dtype = [[c for c in own if c.dtype == dtype] for dtype in DType]
        return [group for group in by_dtype if group]
    dtypes = [dtype for dtype in DType if any(c.dtype == dtype for c in own)]
    return [[c] for c in [*own, *([] if args.no_peers else bench_cpu_peers.contenders(dtypes))]]


def _own_contenders(args: argparse.Namespace) -> list[Contender]:
    on_device = problem.is_cuda if args.device == "cuda" else problem.is_cpu
    if args.filters or args.all:
        rows = problem.forward_kernels(args.filters)
        rows = [row for row in rows if on_device(row.config) and _has_inputs(row.config)]
        problem.require_some(rows)
        return [Contender(str(k.config), DType(k.config.dtype), k.config) for k in rows]
    dtypes = bench_cuda.DTYPES if args.device == "cuda" else problem.NUMPY_NAME
    if args.q_dtype:
        dtypes = (DType.E4M3,)
    return [Contender(f"{SELECTED} ({dtype.name})", dtype, None) for dtype in dtypes]


def _check_q_dtype(own: list[Contender], args: argparse.Namespace) -> None:
    others = {c.dtype.name for c in own if c.dtype != DType.E4M3}
    if args.q_dtype and others:
        raise BadInput(
            f"--q-dtype goes with K and V of E4M3, not {', '.join(sorted(others))}: add dtype=E4M3"
        )


def _has_inputs(config: Config) -> bool:
    return problem.has_arrays(config) or config.dtype in problem.QUANT_BLOCKS


def _measure(contenders: list[Contender], seqlen: int, args: argparse.Namespace) -> list[Timing]:
    """The contenders of a group that serve the problem."""
    if args.device == "cuda":
        times = bench_cuda.measure(contenders, seqlen, problem.batch_size(seqlen, args), args)
    else:
        times = _measure_on_cpu(contenders[0], seqlen, args)
    _, scale = rates.unit(args)
    return [
        Timing(
            label=c.label,
            dtype=c.dtype.name,
            seqlen=seqlen,
            seconds=seconds,
            rate=rates.work(c.dtype, seqlen, args) / seconds / scale,
            is_peer=c.is_peer,
        )
        for c, seconds in times
    ]


def _measure_on_cpu(
    contender: Contender, seqlen: int, args: argparse.Namespace
) -> list[tuple[Contender, float]]:
    q, k, v = random_inputs(contender.dtype, *_axes(seqlen, args), args)
    options = {**problem.mask_options(args), **problem.padding_arrays(len(q), args)}
    if contender.dtype in problem.QUANT_BLOCKS:
        options["kv_dtype"] = problem.QUANT_BLOCKS[contender.dtype]
    if contender.is_peer:
        call = bench_cpu_peers.make_call(contender.label, q, k, v, options)
    else:
        call = _library_call(q, k, v, contender.config, options, problem.d_head_v(args))
    return [] if call is None else [(contender, _median_seconds(call, args.runs))]


def _axes(seqlen: int, args: argparse.Namespace) -> tuple[tuple[int, int], tuple[int, int]]:
    """The first axes of Q, and of K and V."""
    batch = problem.batch_size(seqlen, args)
    return (batch, args.seqlen_q or seqlen), (batch, seqlen)


def random_inputs(
    dtype: DType, queries: tuple[int, int], keys: tuple[int, int], args: argparse.Namespace
) -> list[np.ndarray]:
    """q, k and v, whose first axes are given. Raises BadInput where they do not fit in memory."""
    memory.require_inputs(dtype, queries, keys, args)
    rng = np.random.default_rng(0)
    shapes = problem.shapes(queries, keys, args)
    if dtype in problem.QUANT_BLOCKS:
        return _quantised_inputs(rng, shapes, problem.QUANT_BLOCKS[dtype])
    return [
        rng.standard_normal(shape, np.float32).astype(element)
        for shape, element in zip(shapes, problem.numpy_dtypes(dtype, args))
    ]


def _quantised_inputs(
    rng: np.random.Generator, shapes: tuple[tuple[int, ...], ...], kv_dtype: str
) -> list[np.ndarray]:
    for name, shape in zip(("--d-head", "--d-head-v"), shapes[1:]):
        if shape[-1] % quant_blocks.COLUMNS:
            raise BadInput(f"{name} is {shape[-1]}: a multiple of {quant_blocks.COLUMNS}")
    q, k, v = (rng.standard_normal(shape, np.float32) for shape in shapes)
    return [q, quant_blocks.encode(k, kv_dtype), quant_blocks.encode(v, kv_dtype)]


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
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    config: Config | None,
    options: dict[str, Any],
    d_head_v: int,
) -> Callable[[], None] | None:
    """None: this kernel does not serve the problem; BadInput: no kernel does."""
    anyone = query_support(q, k, v, **options)
    if not anyone:
        raise BadInput(anyone.reason)
    if not query_support(q, k, v, config=config, **options):
        return None
    of_o = _tensor.numpy_dtype(problem.o_name(q.dtype.name))
    out = np.empty((*q.shape[:-1], d_head_v), of_o)

    def call() -> None:
        flash_attn_func(q, k, v, out=out, config=config, **options)

    return call


def table(timings: list[Timing], args: argparse.Namespace, what: str = "") -> Any:
    """The table of timings, whose title begins with what was timed."""
    title = f"{what}: {_title(args)}" if what else _title(args)
    table = extras.load("rich.table").Table(title=title)
    table.add_column("seqlen", justify="right")
    table.add_column("kernel", overflow="fold")
    peers = list(dict.fromkeys(_short(t.label) for t in timings if t.is_peer))
    for name in ("median ms", rates.unit(args)[0], *(f"x {peer}" for peer in peers)):
        table.add_column(name, justify="right")
    seconds = {_peer_key(t, _short(t.label), args): t.seconds for t in timings if t.is_peer}
    for t in timings:
        speeds = [seconds.get(_peer_key(t, peer, args)) for peer in peers]
        shares = ["" if s is None else f"{s / t.seconds:.2f}" for s in speeds]
        numbers = (f"{t.seconds * 1e3:.3f}", f"{t.rate:.1f}")
        table.add_row(str(t.seqlen), t.label, *numbers, *shares)
    return table


def _short(label: str) -> str:
    return label.partition(" (")[0]


def _peer_key(timing: Timing, peer: str, args: argparse.Namespace) -> tuple:
    """torch's kernels are the peers of their own dtype, numpy and onnxruntime of every one."""
    alone = args.device == "cuda" or bench_cpu_peers.is_peer_of_its_type_alone(peer)
    return timing.seqlen, peer, timing.dtype if alone else None


def _title(args: argparse.Namespace) -> str:
    return f"{_problem(args)}, {_machine(args)}"


def _problem(args: argparse.Namespace) -> str:
    batch = f"batch {args.batch}"
    if args.tokens is not None:
        batch = words.count(args.tokens, "token")
    queries = "as many queries as keys"
    if args.seqlen_q is not None:
        queries = words.count(args.seqlen_q, "query", "queries")
    return (
        f"{batch}, {queries}, heads {args.heads}/{args.heads_kv or args.heads}, d_head "
        f"{problem.d_head_text(args)}{problem.q_text(args)}{problem.mask_text(args)}"
    )


def _machine(args: argparse.Namespace) -> str:
    if args.device == "cuda":
        return device.device_info(_abi.FLASH_DEVICE_CUDA_CURRENT).name
    return f"{device.device_info().name}, {words.count(device.num_threads(), 'thread')}"
