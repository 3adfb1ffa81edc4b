"""`bench --lengths`: GPU time of ragged batches, beside torch's FlashAttention-2 on the same batch
and the library's own kernel on as many sequences of one length.

What is compared with the latter is the rate: its operations are about as many, not exactly.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import dataclass
from typing import Any

from .. import device
from .._abi import FLASH_DEVICE_CUDA_CURRENT
from ..compare import RELATIVE_ERROR
from ..config import DType
from . import bench_cuda, bench_scores, extras, problem, ragged
from .problem import BadInput
from .ragged import RaggedBatch
from .timing import Contender

_FA2, _ONE_LENGTH = "torch FA2", "one length"
_SPIN_CYCLES = 500_000  # for each launch to enqueue: about 0.25 ms, lengths take the host longer
# Options that --lengths has no use for, and what they are where they are not given.
_OTHERS = {
    "seqlen": problem.DEFAULT_SEQLEN,
    "seqlen_q": None,
    "batch": 1,
    "tokens": None,
    "leftpad_k": 0,
    "set": None,
    "plot": None,
    "scores": bench_scores.ORDINARY,
}


@dataclass(frozen=True)
class _Entry:
    """Something to time, and on what."""

    label: str
    batch: RaggedBatch
    call: bench_cuda.Call
    reference: str | None = None  # the column of those that are measured against it


@dataclass(frozen=True)
class _Result:
    entry: _Entry
    seconds: float
    rate: float  # operations per second
    deviation: float | None  # of O from FA2's; None: not compared


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ragged batches, on a GPU")
    group.add_argument(
        "--lengths",
        action="append",
        metavar="[Nx]QUERIES[:KEYS],...",
        help="in place of --seqlen and --batch: a batch of sequences of these lengths, such as "
        "300x1-256 (300 sequences of random lengths) or 64x1:1024-8192 (64 sequences of one query "
        "and random numbers of keys). Repeat it for more batches",
    )
    group.add_argument("--seed", type=int, default=0, help="seed of random lengths (0)")


def batches(args: argparse.Namespace) -> list[RaggedBatch]:
    """The batches of --lengths. Raises BadInput, also for options that do not go with it."""
    if not args.lengths:
        return []
    if args.device != "cuda":
        raise BadInput("--lengths is for CUDA kernels: add --device cuda")
    for name, absent in _OTHERS.items():
        if getattr(args, name) != absent:
            raise BadInput(f"--lengths and --{name.replace('_', '-')} do not go together")
    if args.seed < 0:
        raise BadInput(f"--seed is {args.seed}: at least 0")
    return [ragged.parse(text, args.seed) for text in args.lengths]


def run(
    console: Any,
    args: argparse.Namespace,
    ragged_batches: list[RaggedBatch],
    groups: list[list[Contender]],
) -> int:
    """Prints a table of all contenders, which are timed in groups of a dtype. 1: one is wrong."""
    table = extras.load("rich.table").Table(title=_title(args))
    columns = ("lengths", "kernel", "median ms", "TFLOP/s", f"x {_FA2}", f"x {_ONE_LENGTH}")
    for column in (*columns, f"off {_FA2}"):
        is_text = column in ("lengths", "kernel")
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    complaints = []
    for batch, contenders in itertools.product(ragged_batches, groups):
        results = _measure(contenders, batch, args)
        for row in _rows(results):
            table.add_row(*row)
        of_q = problem.q_name(contenders[0].dtype, args)
        complaints += _complaints(results, problem.o_name(of_q))
    console.print(table)
    for complaint in complaints:
        print(f"flashattn: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _measure(
    contenders: list[Contender], batch: RaggedBatch, args: argparse.Namespace
) -> list[_Result]:
    dtype, mask = contenders[0].dtype, problem.mask_options(args)
    entries = _ragged_entries(contenders, batch, mask, args)
    entries += _one_length_entries(dtype, ragged.of_one_length(batch), mask, args)
    deviations = _deviations(entries)
    calls = [entry.call for entry in entries]
    seconds = bench_cuda.median_seconds(calls, args.runs, _SPIN_CYCLES)
    return [
        _Result(entry, s, _operations(entry.batch, args) / s, deviation)
        for entry, s, deviation in zip(entries, seconds, deviations)
    ]


def _operations(batch: RaggedBatch, args: argparse.Namespace) -> int:
    """2 heads (d_head + d_head_v) for every query and key that it sees."""
    pairs = ragged.visible_pairs(batch, args.causal, tuple(args.window), args.attention_chunk)
    return 2 * args.heads * (args.d_head + problem.d_head_v(args)) * pairs


def _ragged_entries(
    contenders: list[Contender],
    batch: RaggedBatch,
    mask: dict[str, Any],
    args: argparse.Namespace,
) -> list[_Entry]:
    """The contenders that serve the batch, and the peer."""
    dtype, options = contenders[0].dtype, {**mask, **_length_options(batch)}
    tokens = (sum(batch.lengths_q),), (sum(batch.lengths_k),)
    q, k, v = bench_cuda.random_inputs(dtype, *tokens, args)
    calls = [(c.label, bench_cuda.kernel_call(q, k, v, c, options)) for c in contenders]
    entries = [_Entry(label, batch, call) for label, call in calls if call is not None]
    peer = None if args.no_peers else _peer_call(q, k, v, options)
    if peer and bench_cuda.can_run(peer):
        entries.append(_Entry(f"{_FA2} ({dtype.name})", batch, peer, _FA2))
    return entries


def _length_options(batch: RaggedBatch) -> dict[str, Any]:
    """Keywords of flash_attn_varlen_func, lengths in device memory."""
    torch = extras.load("torch")
    options: dict[str, Any] = {}
    for side, lengths in (("q", batch.lengths_q), ("k", batch.lengths_k)):
        ends = [0, *itertools.accumulate(lengths)]
        options[f"cu_seqlens_{side}"] = torch.tensor(ends, dtype=torch.int32, device="cuda")
        options[f"max_seqlen_{side}"] = max(lengths)
    return options


def _peer_call(q: Any, k: Any, v: Any, options: dict[str, Any]) -> bench_cuda.Call | None:
    """torch's FlashAttention-2, by the operator behind its nested tensors."""
    if not problem.is_plain(options):
        return None
    forward = extras.load("torch").ops.aten._flash_attention_forward
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    lengths = [options[name] for name in names]
    dropout, debug_mask = 0.0, False

    def call() -> Any:
        return forward(
            q,
            k,
            v,
            *lengths,
            dropout,
            options["causal"],
            debug_mask,
            scale=options["softmax_scale"],
        )[0]

    return call


def _one_length_entries(
    dtype: DType, batch: RaggedBatch, mask: dict[str, Any], args: argparse.Namespace
) -> list[_Entry]:
    """The library's choice for a padded batch."""
    count = len(batch.lengths_q)
    axes = (count, batch.lengths_q[0]), (count, batch.lengths_k[0])
    q, k, v = bench_cuda.random_inputs(dtype, *axes, args)
    selected = Contender(f"{_ONE_LENGTH} ({dtype.name}): {batch.name}", dtype, None)
    call = bench_cuda.kernel_call(q, k, v, selected, mask)
    return [] if call is None else [_Entry(selected.label, batch, call, _ONE_LENGTH)]


def _deviations(entries: list[_Entry]) -> list[float | None]:
    """How far the library's results on the batch are from FA2's, where that is there."""
    peer = next((entry for entry in entries if entry.reference == _FA2), None)
    if peer is None:
        return [None] * len(entries)
    expected = peer.call()
    return [
        None if entry.reference else _deviation(entry.call(), expected, entry.batch.lengths_q)
        for entry in entries
    ]


def _deviation(o: Any, expected: Any, lengths: list[int]) -> float:
    """|O - expected| / |expected| of the sequence where it is largest."""
    pairs = zip(o.double().split(lengths), expected.double().split(lengths))
    deviations = [(a - b).norm() / b.norm() for a, b in pairs]
    return float(extras.load("torch").stack(deviations).max())  # NaN, if there is one


def _complaints(results: list[_Result], of_o: str) -> list[str]:
    """About results that are further from the peer's than two right ones can be."""
    allowed = 2 * RELATIVE_ERROR[of_o]
    return [
        f"{r.entry.label} on {r.entry.batch.name}: O is {r.deviation:.1e} off {_FA2}'s, allowed "
        f"{allowed:.1e}"
        for r in results
        if r.deviation is not None and not r.deviation <= allowed
    ]


def _rows(results: list[_Result]) -> list[tuple[str, ...]]:
    rates = {r.entry.reference: r.rate for r in results}
    rows = []
    for r in results:
        figures = [f"{r.seconds * 1e3:.3f}", f"{r.rate / 1e12:.1f}"]
        for reference in (_FA2, _ONE_LENGTH):
            figures.append(f"{r.rate / rates[reference]:.2f}" if reference in rates else "")
        figures.append("" if r.deviation is None else f"{r.deviation:.1e}")
        rows.append((results[0].entry.batch.name, r.entry.label, *figures))
    return rows


def _title(args: argparse.Namespace) -> str:
    gpu = device.device_info(FLASH_DEVICE_CUDA_CURRENT).name
    heads = f"{args.heads}/{args.heads_kv or args.heads}"
    return (
        f"ragged, heads {heads}, d_head {problem.d_head_text(args)}{problem.mask_text(args)}, "
        f"seed {args.seed}, {gpu}"
    )
