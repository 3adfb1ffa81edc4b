"""`bench --set progression...`: kernels that each have one optimisation more than the one before,
beside the peer that the family is measured against."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from .. import device
from .._abi import FLASH_DEVICE_CUDA_CURRENT
from ..config import Config, DType, kernels
from . import bench_cuda, extras, problem, words
from .problem import BadInput
from .timing import Contender


@dataclass(frozen=True)
class Progression:
    """Short forms in the order of the steps, which is not the table's."""

    reference: str  # a peer of bench_cuda
    full: tuple[str, ...]
    causal: tuple[str, ...]  # empty: not for causal attention

    def steps(self, causal: bool) -> tuple[str, ...]:
        return self.causal if causal else self.full


# The last step keeps Q in registers instead of loading fragments ahead.
_SM80 = Progression(
    reference="torch FA2",
    full=(
        "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles",
        "(FP16, 128, 64, 64, 4): async+swizzled+load_0_0_0_tiles",
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_0_0_tiles",
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles",
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer",
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    ),
    causal=(),
)
# Full attention leaves longest_first out: its tiles are all of a length.
_SM90_SHAPE = "SM90 (BF16, 128, 128, 128, 12)"
_SM90 = Progression(
    reference="torch cuDNN",
    full=(
        f"{_SM90_SHAPE}: stages_2",
        f"{_SM90_SHAPE}: stages_2+overlap",
        f"{_SM90_SHAPE}: stages_2+overlap+ping_pong",
        f"{_SM90_SHAPE}: stages_2+overlap+ping_pong+persistent",
        f"{_SM90_SHAPE}: stages_2+overlap+ping_pong+persistent+fixed_reference",
    ),
    causal=(
        f"{_SM90_SHAPE}: stages_2+causal",
        f"{_SM90_SHAPE}: stages_2+overlap+causal",
        f"{_SM90_SHAPE}: stages_2+overlap+ping_pong+causal",
        f"{_SM90_SHAPE}: stages_2+overlap+ping_pong+persistent+causal",
        f"{_SM90_SHAPE}: stages_2+overlap+ping_pong+persistent+longest_first+causal",
        f"{_SM90_SHAPE}: stages_2+overlap+ping_pong+persistent+longest_first+fixed_reference"
        "+causal",
    ),
)
# By the names of the generator's sets.
SETS = {"progression": _SM80, "progression_sm90": _SM90}


def steps(args: argparse.Namespace) -> list[Contender]:
    """The kernels of --set. Raises BadInput where it cannot be measured."""
    _check_options(args)
    return _contenders(SETS[args.set].steps(args.causal), args.set)


def run(console: Any, args: argparse.Namespace) -> int:
    chosen, contenders = SETS[args.set], steps(args)
    columns = ["seqlen", "step", "median ms", "TFLOP/s", "x step before"]
    if not args.no_peers:
        columns.append(f"x {chosen.reference}")
    table = extras.load("rich.table").Table(title=_title(args))
    for column in columns:
        table.add_column(column, justify="left" if column == "step" else "right", overflow="fold")
    for seqlen in args.seqlen:
        measured = bench_cuda.measure(contenders, seqlen, problem.batch_size(seqlen, args), args)
        for row in _rows(measured, chosen.reference, seqlen, args):
            table.add_row(*row[: len(columns)])
        table.add_section()
    console.print(table)
    return 0


def _check_options(args: argparse.Namespace) -> None:
    if args.device != "cuda":
        raise BadInput(f"--set {args.set} compares CUDA kernels: add --device cuda")
    if args.filters or args.all or args.plot:
        raise BadInput("--set chooses the kernels and prints a table: no filters, --all or --plot")


def _contenders(steps: tuple[str, ...], name: str) -> list[Contender]:
    if not steps:
        raise BadInput(f"--set {name} has steps for full attention alone: no --causal")
    held = {str(kernel.config) for kernel in kernels()}
    missing = [step for step in steps if step not in held]
    if missing:
        raise BadInput(
            f'this library has no kernel {missing[0]}: build it with -DFLASH_KERNELS="ship {name}"'
        )
    configs = [Config.parse(step) for step in steps]
    return [Contender(str(config), DType(config.dtype), config) for config in configs]


def _rows(
    measured: list[tuple[Contender, float]],
    reference: str,
    seqlen: int,
    args: argparse.Namespace,
) -> list[tuple[str, ...]]:
    """A row for each step, and one for the peer."""
    peers = [(c, s) for c, s in measured if c.is_peer and c.label.startswith(reference)]
    steps = [(c, s) for c, s in measured if not c.is_peer]
    if not steps:
        raise BadInput("the kernels of the progression do not serve this problem: see their rules")
    rows, before = [], None
    for contender, seconds in [*steps, *peers]:
        rate = problem.operations(seqlen, args) / seconds / 1e12
        gain = f"{before / seconds:.2f}" if before and not contender.is_peer else ""
        share = f"{peers[0][1] / seconds:.2f}" if peers else ""
        figures = (f"{seconds * 1e3:.3f}", f"{rate:.0f}", gain, share)
        rows.append((str(seqlen), contender.label, *figures))
        before = seconds
    return rows


def _title(args: argparse.Namespace) -> str:
    tokens = f"batch {args.batch}" if args.tokens is None else words.count(args.tokens, "token")
    gpu = device.device_info(FLASH_DEVICE_CUDA_CURRENT).name
    mask = ", causal" if args.causal else ""
    return (
        f"{args.set}: {tokens}, heads {args.heads}, d_head {problem.d_head_text(args)}{mask}, {gpu}"
    )
