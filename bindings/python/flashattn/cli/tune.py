"""`tune`: measures every kernel that serves given shapes, ranks them, and writes results that the
library's selection follows."""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _abi, device
from .._attention import flash_attn_func, query_support, select_config
from ..config import Config, DType
from ..tuning import measure, tuning_line
from . import bench, bench_cuda, extras, gpu, pages, problem, rates, results_file, words
from .problem import BadInput

_FINALISTS = 3  # the best, which are measured again with more launches
_MORE_LAUNCHES = 4


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "tune",
        help="measure all kernels that serve given shapes, and make selection follow the results",
        description="Ranks every kernel of the library that serves each shape, by the median of "
        "launches that take turns; the best are measured again with more launches. With --output "
        "it writes the fastest of each family as a line of results, which the library follows "
        "when FLASHATTN_TUNING names the file. Results are for CUDA devices: --device cpu only "
        "prints the ranking, since the processor alone decides which CPU kernel is chosen.",
    )
    problem.add_filter_argument(parser)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda", help="where to compute (cuda)"
    )
    problem.add_shape_options(parser, several_d_heads=True)
    problem.add_mask_options(parser)
    problem.add_padding_option(parser)
    _add_cache_options(parser)
    parser.add_argument(
        "--launches", type=int, default=25, help="timed launches of each kernel (25)"
    )
    parser.add_argument(
        "--top",
        type=int,
        default=5,
        help="how many of the fastest kernels to print for each shape (5)",
    )
    parser.add_argument(
        "--output", metavar="FILE", help="write the results to FILE; those of other shapes are kept"
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=0.0,
        metavar="PERCENT",
        help="write only shapes where the best beats the selected kernel by more than this",
    )
    parser.set_defaults(run=run)


def _add_cache_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cache")
    group.add_argument(
        "--page-size",
        type=problem.numbers,
        default=[],
        metavar="N,N,...",
        help="put K and V in pages of N tokens, in random order; each size is a shape",
    )
    group.add_argument(
        "--seqused",
        action="store_true",
        help="pass lengths in device memory, as of a cache that fills; with pages this is always "
        "so",
    )
    group.add_argument(
        "--cold",
        action="store_true",
        help="write 256 MiB before each launch, so that K and V come from memory, as in decoding",
    )


@dataclass(frozen=True)
class Shape:
    """What kernels are ranked for, beside the options of the command line."""

    dtype: DType
    d_head: int
    seqlen: int
    page_size: int | None  # None: contiguous
    args: argparse.Namespace  # with d_head as above

    def __str__(self) -> str:
        args = self.args
        cache = f" in pages of {self.page_size}" if self.page_size else ""
        batch = problem.batch_size(self.seqlen, args)
        heads = f"{args.heads}/{args.heads_kv or args.heads}"
        return (
            f"{self.dtype.name}, d_head {self.d_head}, "
            f"{words.count(args.seqlen_q or self.seqlen, 'query', 'queries')}, "
            f"{words.count(self.seqlen, 'key')}{cache}, batch {batch}, heads {heads}"
            f"{problem.mask_text(args)}"
        )


@dataclass(frozen=True)
class Ranking:
    """The kernels that serve a shape, the fastest first."""

    shape: Shape
    seconds: dict[Config, float]
    selected: Config
    lines: list[str]  # of the fastest of each family; none on the CPU

    @property
    def gain(self) -> float:
        """How much faster than the selected kernel the best is, in percent."""
        best = next(iter(self.seconds.values()))
        return 100 * (self.seconds[self.selected] / best - 1)


def run(args: argparse.Namespace) -> int:
    problem.check_at_least_one(args, "launches", "top", *(["page_size"] if args.page_size else []))
    problem.check_padding(args)
    if args.page_size and args.leftpad_k:
        raise BadInput("--leftpad-k and --page-size do not go together: pages can be left out")
    if args.device == "cuda":
        gpu.require("tune without --device cpu")
    elif args.output:
        raise BadInput("--output: results are for CUDA devices, kernels of the CPU follow none")
    elif args.cold:
        raise BadInput("--cold is for CUDA devices: add --device cuda")
    results = results_file.read(args.output)  # before measuring: it may be unusable
    extras.require("rich", *extras.of_arrays(args.device, _dtypes(args)))
    console = extras.console()
    rankings = []
    for ranking in _rankings(console, args):
        rankings.append(ranking)
        console.print(_table(ranking))
    if args.output:
        console.print(_write(args, results, rankings))
    return 0


def _rankings(console: Any, args: argparse.Namespace) -> Iterator[Ranking]:
    """Ranks the kernels for each shape that some kernel serves. Raises BadInput where none serves
    any."""
    shapes = _shapes(args)
    progress = extras.load("rich.progress")
    reasons = []
    with progress.Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=len(shapes))
        for shape in shapes:
            bar.update(task, description=str(shape))
            tensors, options = _inputs(shape)
            support = query_support(*tensors, **options)
            if support:
                yield _rank(shape, tensors, options)
            else:
                reasons.append(f"{shape}: {support.reason}")
            bar.advance(task)
    if len(reasons) == len(shapes):
        raise BadInput(reasons[0])
    for reason in reasons:
        console.print(f"passed over: {reason}")


def _shapes(args: argparse.Namespace) -> list[Shape]:
    axes = (_dtypes(args), args.d_head, args.seqlen, args.page_size or [None])
    return [
        Shape(*point, argparse.Namespace(**{**vars(args), "d_head": point[1]}))
        for point in itertools.product(*axes)
    ]


def _dtypes(args: argparse.Namespace) -> list[DType]:
    """The types of the rows that the filters leave."""
    on_device = problem.is_cuda if args.device == "cuda" else problem.is_cpu
    rows = problem.forward_kernels(args.filters)
    rows = [row for row in rows if on_device(row.config) and problem.has_arrays(row.config)]
    problem.require_some(rows)
    return sorted({DType(row.config.dtype) for row in rows})


def _rank(shape: Shape, tensors: list[Any], options: dict[str, Any]) -> Ranking:
    args = shape.args
    selected = select_config(*tensors, **options).config
    candidates = [
        row.config
        for row in problem.forward_kernels(args.filters)
        if query_support(*tensors, config=row.config, **options)
    ]
    candidates = list(dict.fromkeys([*candidates, selected]))
    timed = _cold if args.cold else _warm
    seconds = timed(candidates, args.launches, tensors, options)
    finalists = _finalists(seconds, selected)
    final = timed(finalists, _MORE_LAUNCHES * args.launches, tensors, options)
    ranked = dict(sorted({**seconds, **final}.items(), key=lambda item: item[1]))
    lines = []
    if args.device == "cuda":
        best = [next(c for c in ranked if c.arch == arch) for arch in {c.arch for c in ranked}]
        lines = [tuning_line(*tensors, c, ranked[c], **options) for c in best]
    return Ranking(shape, ranked, selected, lines)


def _inputs(shape: Shape) -> tuple[list[Any], dict[str, Any]]:
    """q, k and v, and the keywords of a call."""
    args, seqlen = shape.args, shape.seqlen
    batch = problem.batch_size(seqlen, args)
    is_cuda = args.device == "cuda"
    axes, arrays = (batch, seqlen), {}
    if shape.page_size:
        axes = batch * pages.count(seqlen, shape.page_size), shape.page_size
        arrays = pages.where(batch, seqlen, shape.page_size)
    elif args.seqused:
        arrays = {"seqused_k": np.full(batch, seqlen, np.int32)}
    random_inputs = bench_cuda.random_inputs if is_cuda else bench.random_inputs
    tensors = random_inputs(shape.dtype, (batch, args.seqlen_q or seqlen), axes, args)
    arrays = {**arrays, **problem.padding_arrays(batch, args)}
    where = pages.on_device(arrays) if is_cuda else arrays
    return tensors, {**problem.mask_options(args), **where}


def _warm(
    configs: list[Config], n_launches: int, tensors: list[Any], options: dict[str, Any]
) -> dict[Config, float]:
    """Seconds with what the caches keep of the launch before."""
    out = _output(tensors[0])
    seconds = measure(*tensors, configs, n_launches=n_launches, out=out, **options)
    return dict(zip(configs, seconds))


def _cold(
    configs: list[Config], n_launches: int, tensors: list[Any], options: dict[str, Any]
) -> dict[Config, float]:
    out = _output(tensors[0])
    calls = [
        functools.partial(flash_attn_func, *tensors, out=out, config=config, **options)
        for config in configs
    ]
    return dict(zip(configs, bench_cuda.cold_median_seconds(calls, n_launches)))


def _output(q: Any) -> Any:
    return np.empty_like(q) if isinstance(q, np.ndarray) else q.new_empty(q.shape)


def _finalists(seconds: dict[Config, float], selected: Config) -> list[Config]:
    """The best of each family, and the selected kernel to compare them with."""
    ranked = sorted(seconds, key=seconds.__getitem__)
    families = {config.arch for config in ranked}
    best = [[c for c in ranked if c.arch == arch][:_FINALISTS] for arch in sorted(families)]
    return list(dict.fromkeys([*itertools.chain(*best), selected]))


def _table(ranking: Ranking) -> Any:
    args = ranking.shape.args
    title = f"{ranking.shape}: {words.count(len(ranking.seconds), 'kernel')}"
    table = extras.load("rich.table").Table(title=title)
    unit, scale = rates.unit(args)
    for name in ("rank", "kernel", "median ms", unit, "x selected"):
        table.add_column(name, justify="left" if name == "kernel" else "right", overflow="fold")
    work = rates.work(ranking.shape.dtype, ranking.shape.seqlen, args)
    for rank, (config, seconds) in enumerate(ranking.seconds.items(), 1):
        if rank > args.top and config != ranking.selected:
            continue
        mark = " (selected)" if config == ranking.selected else ""
        share = f"{ranking.seconds[ranking.selected] / seconds:.3f}"
        figures = (f"{seconds * 1e3:.4f}", f"{work / seconds / scale:.1f}", share)
        table.add_row(str(rank), f"{config}{mark}", *figures)
    return table


def _write(args: argparse.Namespace, results: str, rankings: list[Ranking]) -> str:
    gained = [ranking for ranking in rankings if ranking.gain > args.margin or args.margin <= 0]
    lines = [line for ranking in gained for line in ranking.lines]
    name = device.device_info(_abi.FLASH_DEVICE_CUDA_CURRENT).name
    results_file.write(args.output, results, lines, name)
    return (
        f"{words.count(len(lines), 'result')} of {len(gained)} of "
        f"{words.count(len(rankings), 'shape')} written; "
        f"to follow them: export FLASHATTN_TUNING={args.output}"
    )
