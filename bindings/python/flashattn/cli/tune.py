"""`tune`: measures every kernel that serves given shapes, ranks them, and writes results that the
library's selection follows."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import _abi, device
from .._attention import query_support, select_config
from ..config import Config, DType
from ..tuning import measure, tuning_line
from . import bench, bench_cuda, problem, results_file
from .problem import BadInput

_FINALISTS = 3  # the best, which are measured again with more launches
_MORE_LAUNCHES = 4


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "tune",
        help="measure all kernels that serve given shapes, and make selection follow the results",
        description="Ranks every kernel of the library that serves each shape, by the median of "
        "launches that take turns; the best are measured again with more launches. With --output "
        "the fastest of each family is written as a line of results, which the library follows "
        "when FLASH_TUNING names the file. Results are for CUDA devices: --device cpu prints the "
        "ranking alone, since kernels of the CPU are chosen by the processor alone.",
    )
    problem.add_filter_argument(parser)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    problem.add_shape_options(parser, several_d_heads=True)
    problem.add_mask_options(parser)
    parser.add_argument("--launches", type=int, default=25, help="of each kernel (25)")
    parser.add_argument("--top", type=int, default=5, help="ranks to print of each shape (5)")
    parser.add_argument("--output", metavar="FILE", help="results; those of other shapes are kept")
    parser.add_argument(
        "--margin",
        type=float,
        default=0.0,
        metavar="PERCENT",
        help="write only shapes where the best beats the selected kernel by more than this",
    )
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class Ranking:
    """The kernels that serve a shape, the fastest first."""

    dtype: DType
    seqlen: int
    args: argparse.Namespace  # with the d_head of this shape
    seconds: dict[Config, float]
    selected: Config
    lines: list[str]  # of the fastest of each family; none on the CPU

    @property
    def gain(self) -> float:
        """How much faster than the selected kernel the best is, in percent."""
        best = next(iter(self.seconds.values()))
        return 100 * (self.seconds[self.selected] / best - 1)


def run(args: argparse.Namespace) -> int:
    console = problem.extra("rich.console").Console()
    problem.check_at_least_one(args, "launches", "top")
    if args.device == "cuda":
        device.device_info(_abi.FLASH_DEVICE_CUDA_CURRENT)  # refuses in the library's own words
    elif args.output:
        raise BadInput("--output: results are for CUDA devices, kernels of the CPU follow none")
    results = results_file.read(args.output)  # before measuring: it may be unusable
    rankings = []
    for ranking in _rankings(console, args):
        rankings.append(ranking)
        console.print(_table(ranking))
    if args.output:
        console.print(_write(args, results, rankings))
    return 0


def _rankings(console: Any, args: argparse.Namespace) -> Iterator[Ranking]:
    shapes = list(itertools.product(_dtypes(args), args.d_head, args.seqlen))
    progress = problem.extra("rich.progress")
    with progress.Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=len(shapes))
        for dtype, d_head, seqlen in shapes:
            bar.update(task, description=f"{dtype.name}, d_head {d_head}, {seqlen}")
            own = argparse.Namespace(**{**vars(args), "d_head": d_head})
            yield _rank(dtype, seqlen, own)
            bar.advance(task)


def _dtypes(args: argparse.Namespace) -> list[DType]:
    """Of the rows that the filters leave."""
    on_device = problem.is_cuda if args.device == "cuda" else problem.is_cpu
    rows = problem.chosen_kernels(args.filters, runnable=True)
    found = sorted({DType(row.config.dtype) for row in rows if on_device(row.config)})
    if not found:
        raise BadInput("no kernel that this machine can run matches")
    return found


def _rank(dtype: DType, seqlen: int, args: argparse.Namespace) -> Ranking:
    options = problem.mask_options(args)
    q, k, v = _inputs(dtype, seqlen, args)
    out = q.new_empty(q.shape) if args.device == "cuda" else q.copy()
    selected = select_config(q, k, v, **options).config
    candidates = [
        row.config
        for row in problem.chosen_kernels(args.filters, runnable=True)
        if query_support(q, k, v, config=row.config, **options)
    ]
    candidates = list(dict.fromkeys([*candidates, selected]))
    seconds = _measure(candidates, args.launches, q, k, v, out=out, **options)
    finalists = _finalists(seconds, selected)
    final = _measure(finalists, _MORE_LAUNCHES * args.launches, q, k, v, out=out, **options)
    ranked = dict(sorted({**seconds, **final}.items(), key=lambda item: item[1]))
    lines = []
    if args.device == "cuda":
        best = [next(c for c in ranked if c.arch == arch) for arch in {c.arch for c in ranked}]
        lines = [tuning_line(q, k, v, c, ranked[c], **options) for c in best]
    return Ranking(dtype, seqlen, args, ranked, selected, lines)


def _inputs(dtype: DType, seqlen: int, args: argparse.Namespace) -> list[Any]:
    if args.device == "cpu":
        return bench.inputs(dtype, seqlen, args)
    return bench_cuda.inputs(dtype, seqlen, problem.batch_size(seqlen, args), args)


def _measure(configs: list[Config], n_launches: int, *tensors: Any, **options: Any) -> dict:
    return dict(zip(configs, measure(*tensors, configs, n_launches=n_launches, **options)))


def _finalists(seconds: dict[Config, float], selected: Config) -> list[Config]:
    """The best of each family, and the selected kernel to compare them with."""
    ranked = sorted(seconds, key=seconds.__getitem__)
    families = {config.arch for config in ranked}
    best = [[c for c in ranked if c.arch == arch][:_FINALISTS] for arch in sorted(families)]
    return list(dict.fromkeys([*itertools.chain(*best), selected]))


def _table(ranking: Ranking) -> Any:
    args = ranking.args
    causal = ", causal" if args.causal else ""
    title = (
        f"{ranking.dtype.name}, d_head {args.d_head}, {args.seqlen_q or ranking.seqlen} queries, "
        f"{ranking.seqlen} keys, batch {problem.batch_size(ranking.seqlen, args)}, heads "
        f"{args.heads}/{args.heads_kv or args.heads}{causal}: {len(ranking.seconds)} kernels"
    )
    table = problem.extra("rich.table").Table(title=title)
    unit, scale = ("TFLOP/s", 1e12) if args.device == "cuda" else ("GFLOP/s", 1e9)
    for name in ("rank", "kernel", "median ms", unit, "x selected"):
        table.add_column(name, justify="left" if name == "kernel" else "right", overflow="fold")
    operations = problem.operations(ranking.seqlen, args)
    for rank, (config, seconds) in enumerate(ranking.seconds.items(), 1):
        if rank > args.top and config != ranking.selected:
            continue
        mark = " (selected)" if config == ranking.selected else ""
        share = f"{ranking.seconds[ranking.selected] / seconds:.3f}"
        figures = (f"{seconds * 1e3:.4f}", f"{operations / seconds / scale:.1f}", share)
        table.add_row(str(rank), f"{config}{mark}", *figures)
    return table


def _write(args: argparse.Namespace, results: str, rankings: list[Ranking]) -> str:
    gained = [ranking for ranking in rankings if ranking.gain > args.margin or args.margin <= 0]
    lines = [line for ranking in gained for line in ranking.lines]
    name = device.device_info(_abi.FLASH_DEVICE_CUDA_CURRENT).name
    results_file.write(args.output, results, lines, name)
    return (
        f"{len(lines)} results of {len(gained)} of {len(rankings)} shapes written; "
        f"to follow them: export FLASH_TUNING={args.output}"
    )
