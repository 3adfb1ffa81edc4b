"""`bench-chunks`: GPU time of parts of prompts over caches, contiguous and in pages, beside
FlashAttention-3 where it is installed."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import Any

from . import bench_cuda, extras, gpu, json_file, output_file, problem, ragged, serving_calls
from .problem import BadInput
from .ragged import RaggedBatch
from .serving_calls import Caches, Call, Heads

_DEFAULT = (
    "4x4096:4096,1x2048:32768,1x512:8192,1x128:8192,8x16:4096,2x8192:8192@64/8x64,"
    "4x4096:4096@8/4x256"
)
_PAGE_SIZES = "1,3,16,19,64,128,256"
_CHUNK = re.compile(r"(\d+)x(\d+):(\d+)(?:@(\d+/\d+)(?:x(\d+))?)?", re.ASCII)
_SPIN_CYCLES = 400_000  # for each launch to enqueue: several times what the shortest call takes
_CONTIGUOUS = "contiguous"
_OWN, _FA3 = "own", "FA3"


@dataclass(frozen=True)
class Chunks:
    """A batch in which each sequence has as many queries, which are the last ones of its keys."""

    name: str
    batch: int
    queries: int
    keys: int
    heads: Heads
    d_head: int

    @property
    def sequences(self) -> RaggedBatch:
        return RaggedBatch(self.name, [self.queries] * self.batch, [self.keys] * self.batch)

    @property
    def operations(self) -> int:
        """4 heads d_head for every query and key that it sees, causal."""
        pairs = ragged.visible_pairs(self.sequences, True, (-1, -1))
        return 4 * self.heads.n_heads * self.d_head * pairs

    def __str__(self) -> str:
        sizes = f"{self.batch} x {self.queries} over {self.keys}"
        return f"{sizes}, {self.heads}, {self.d_head}"


@dataclass(frozen=True)
class Row:
    chunks: Chunks
    cache: str
    seconds: dict[str, float]  # by whose kernels; "own" is missing where none serves
    contiguous: float | None  # the library's own time without pages

    def rate(self, whose: str) -> float | None:
        """Operations per second."""
        return self.chunks.operations / self.seconds[whose] if whose in self.seconds else None


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "bench-chunks",
        help="time chunks of prompts over caches and pages on a GPU",
        description="Times causal attention of a chunk of a prompt, the last queries of each "
        "sequence over all of its keys, with K and V contiguous and in pages of N tokens in "
        "random order. It prints median times and TFLOP/s, counting 4 heads d_head operations "
        "for every query and key that it sees. FlashAttention-3 (FA3) takes turns with the "
        "library if flash_attn_interface can be imported.",
    )
    parser.add_argument(
        "--chunks",
        default=_DEFAULT,
        metavar="BxQUERIES:KEYS[@H/H_KV[xD]],...",
        help=f"batch x queries over keys, heads and d_head ({_DEFAULT})",
    )
    parser.add_argument(
        "--heads",
        default="32/8",
        metavar="H/H_KV",
        help="query heads / K/V heads of chunks without @ (32/8)",
    )
    parser.add_argument(
        "--d-head", type=int, default=128, help="head dimension of chunks without one (128)"
    )
    parser.add_argument(
        "--dtype",
        type=str.upper,
        choices=("FP16", "BF16", "E4M3"),
        default="BF16",
        help="type of K and V (BF16)",
    )
    problem.add_q_dtype_option(parser, "BF16")
    parser.add_argument(
        "--page-size",
        type=problem.numbers,
        default=_PAGE_SIZES,
        metavar="N,N,...",
        help=f"tokens per page ({_PAGE_SIZES})",
    )
    parser.add_argument("--cold", action="store_true", help="write 256 MiB before each launch")
    parser.add_argument("--runs", type=int, default=15, help="timed calls (15)")
    parser.add_argument("--no-peers", action="store_true", help="do not time other libraries")
    parser.add_argument("--json", metavar="FILE", help="also write the results to FILE")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    chunks = _parse(args)
    if args.json:
        output_file.check(args.json)
    name = gpu.require("bench-chunks").name
    extras.require("rich", "torch")
    console = extras.console()
    rows = [row for each in chunks for row in _rows(each, args)]
    title = f"chunks, {args.dtype}{problem.q_text(args)}, {'cold' if args.cold else 'warm'}, {name}"
    console.print(_table(rows, title))
    if args.json:
        json_file.write(args.json, title, map(_record, rows))
    return 0


def _parse(args: argparse.Namespace) -> list[Chunks]:
    problem.check_q_dtype(args)
    if min(args.d_head, args.runs, *args.page_size) < 1:
        raise BadInput("d_head, page sizes and runs are at least 1")
    return [_parse_word(word, args) for word in args.chunks.split(",")]


def _parse_word(word: str, args: argparse.Namespace) -> Chunks:
    match = _CHUNK.fullmatch(word)
    if not match:
        raise BadInput(f"--chunks: {word!r} is not BxQUERIES:KEYS[@H/H_KV[xD]]")
    batch, queries, keys = (int(number) for number in match.groups()[:3])
    d_head = int(match[5] or args.d_head)
    if min(batch, queries, keys, d_head) < 1:
        raise BadInput(f"--chunks: {word}: sizes are at least 1")
    heads = serving_calls.parse_heads(match[4] or args.heads)
    if len(heads) > 1:
        raise BadInput(f"--heads {args.heads}: only one here; others go into --chunks")
    return Chunks(word, batch, queries, keys, heads[0], d_head)


def _rows(chunks: Chunks, args: argparse.Namespace) -> list[Row]:
    calls = _calls(chunks, args)
    seconds = dict(zip(calls, _median_seconds(list(calls.values()), args)))
    caches = dict.fromkeys(cache for cache, _ in calls)
    contiguous = seconds.get((_CONTIGUOUS, _OWN))
    return [
        Row(chunks, cache, {w: s for (kind, w), s in seconds.items() if kind == cache}, contiguous)
        for cache in caches
    ]


def _median_seconds(calls: list[Call], args: argparse.Namespace) -> list[float]:
    if args.cold:
        return bench_cuda.cold_median_seconds(calls, args.runs)
    return bench_cuda.median_seconds(calls, args.runs, _SPIN_CYCLES)


def _calls(chunks: Chunks, args: argparse.Namespace) -> dict[tuple[str, str], Call]:
    """(kind of cache, whose) -> call, for those that serve."""
    own = argparse.Namespace(**{**vars(args), "d_head": chunks.d_head})
    caches = Caches(chunks.sequences, chunks.heads, args.page_size, own)
    calls = {(_CONTIGUOUS, _OWN): serving_calls.own(caches.known())}
    if not args.no_peers:
        calls[_CONTIGUOUS, _FA3] = serving_calls.fa3(caches.with_lengths())
    for size in args.page_size:
        p = caches.in_pages(size)
        calls[f"page {size}", _OWN] = serving_calls.own(p)
        if not args.no_peers:
            calls[f"page {size}", _FA3] = serving_calls.fa3(p)
    return {key: call for key, call in calls.items() if call is not None}


def _table(rows: list[Row], title: str) -> Any:
    table = extras.load("rich.table").Table(title=title)
    has_peer = any(_FA3 in row.seconds for row in rows)
    table.add_column("batch x queries over keys, heads, d_head")
    peer_columns = ("FA3 TFLOP/s", "x FA3") if has_peer else ()
    for column in ("cache", "ms", "TFLOP/s", "x contiguous", *peer_columns):
        table.add_column(column, justify="right")
    for row in rows:
        cells = [str(row.chunks), row.cache, *_own_cells(row)]
        if has_peer:
            own, peer = row.rate(_OWN), row.rate(_FA3)
            cells += [_teraflops(peer), f"{own / peer:.3f}" if own and peer else ""]
        table.add_row(*cells)
    return table


def _own_cells(row: Row) -> tuple[str, str, str]:
    own = row.seconds.get(_OWN)
    if own is None:
        return "none serves", "", ""
    share = "" if row.contiguous is None else f"{row.contiguous / own:.3f}"
    return f"{own * 1e3:.4f}", _teraflops(row.rate(_OWN)), share


def _teraflops(rate: float | None) -> str:
    return "" if rate is None else f"{rate / 1e12:.1f}"


def _record(row: Row) -> dict[str, Any]:
    chunks = row.chunks
    return {
        "batch": chunks.batch,
        "queries": chunks.queries,
        "keys": chunks.keys,
        "heads": chunks.heads.n_heads,
        "heads_kv": chunks.heads.n_heads_kv,
        "d_head": chunks.d_head,
        "cache": row.cache,
        "operations": chunks.operations,
        "seconds": row.seconds,
    }
