"""Measures what each row of the kernel table is worth: by how much some call would be slower
without it.

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/gpu/row_worth.py measure FILE [dtype=BF16 arch=SM80,SM80_DECODE]
        python benchmarks/gpu/row_worth.py report FILE [--margin 3] [--families SM80 SM80_DECODE]

`measure` times every row that serves each of a list of calls, in turns, and writes one line of JSON
for each call. The filters are those of the generator.

`report` needs no GPU. It prints the rows that no call needs: they are left out one after the other,
the one that costs least first, as long as every call keeps a row that takes at most the margin
longer than the fastest of all. Of the rows that stay it prints the call that would be slowest
without the row, and the factor. Last come the calls for which selection takes a row that is slower
than the fastest by more than the margin.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

LAUNCHES = 15
FAR = 1.5  # times the fastest row: rows that take longer at first are not measured again
FOR_FEW = ("SM80_DECODE", "SM90_DECODE", "SM80_MLA", "SM90_MLA", "MIXED")  # queries
MOST_QUERIES = 1024  # of a sequence, for rows of these families
TOKENS = 2048  # times the head dimension is what all query heads of a prompt have together


@dataclass(frozen=True)
class Call:
    """One call: lengths of all sequences alike, or `lengths` of a ragged batch."""

    name: str
    batch: int
    seqlen_q: int
    seqlen_k: int
    heads: tuple[int, int]
    options: dict[str, Any] = field(default_factory=dict)
    page_size: int = 0
    longest: int = 0  # of a ragged batch of `batch` sequences, from 1 token on
    alibi: bool = False
    aligned: bool = True


def _prefill(d_head: int) -> Iterator[Call]:
    heads = TOKENS // d_head
    masks: dict[str, dict[str, Any]] = {
        "full": {},
        "causal": {"causal": True},
        "window 1024": {"causal": True, "window_size": (1023, 0)},
        "window 128": {"causal": True, "window_size": (127, 0)},
        "both sides 256": {"window_size": (256, 256)},
        "softcap": {"causal": True, "softcap": 30.0},
        "softcap full": {"softcap": 30.0},
    }
    sizes = ((1, 512), (1, 2048), (1, 4096), (32, 512), (8, 2048), (4, 4096), (1, 16384))
    for mask, options in masks.items():
        for batch, n in sizes:
            yield Call(f"{mask}, {batch} x {n}", batch, n, n, (heads, heads), options)
        yield Call(f"{mask}, 4/1 heads, 4 x 4096", 4, 4096, 4096, (heads, heads // 4 or 1), options)
    for mask in ("full", "causal", "window 1024"):
        options = masks[mask]
        same = (heads, heads)
        yield Call(f"{mask}, unaligned, 4 x 2048", 4, 2048, 2048, same, options, aligned=False)
        yield Call(f"{mask}, alibi, 4 x 4096", 4, 4096, 4096, same, options, alibi=True)
        for page in (1, 16, 64):
            call = Call(f"{mask}, pages of {page}, 4 x 4096", 4, 4096, 4096, same, options, page)
            yield call
        for batch, longest in ((300, 64), (64, 512), (8, 4096)):
            name = f"{mask}, {batch} of 1 to {longest}"
            yield Call(name, batch, longest, longest, same, options, longest=longest)
            grouped = (heads, heads // 4 or 1)
            name += ", 4/1 heads"
            yield Call(name, batch, longest, longest, grouped, options, longest=longest)
    yield Call("causal, alibi, pages of 16", 4, 4096, 4096, same, {"causal": True}, 16, alibi=True)


def _few_queries() -> Iterator[Call]:
    causal = {"causal": True}
    for heads in ((32, 8), (16, 1)):
        for batch, queries, keys in (
            (1, 1, 1024),
            (1, 1, 32768),
            (16, 1, 4096),
            (64, 1, 8192),
            (16, 4, 8192),
            (8, 16, 4096),
            (4, 32, 16384),
            (1, 128, 8192),
            (1, 512, 8192),
        ):
            for page in (0, 1, 64):
                where = f"pages of {page}" if page else "contiguous"
                name = f"{heads[0]}/{heads[1]} heads, {batch} x {queries} over {keys}, {where}"
                yield Call(name, batch, queries, keys, heads, causal, page)
            if heads == (32, 8):
                for page in (0, 64):
                    name = f"alibi, {batch} x {queries} over {keys}, page {page}"
                    yield Call(name, batch, queries, keys, heads, causal, page, alibi=True)


def calls(d_head: int) -> list[Call]:
    return [*_few_queries()] if d_head == 576 else [*_prefill(d_head), *_few_queries()]


def tensors(call: Call, d_head: int, d_head_v: int, dtype: str) -> tuple[list[Any], dict[str, Any]]:
    """q, k, v and the keywords of the call."""
    import numpy as np
    import torch
    from flashattn.cli import pages

    element = torch.float16 if dtype == "FP16" else torch.bfloat16
    generator = np.random.default_rng(0)
    options = dict(call.options)
    axes_q, axes_k = [call.batch, call.seqlen_q], [call.batch, call.seqlen_k]
    if call.longest:
        lengths = generator.integers(1, call.longest + 1, call.batch)
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        cumulative = torch.from_numpy(ends).cuda()
        options |= {"cu_seqlens_q": cumulative, "cu_seqlens_k": cumulative}
        options |= {"max_seqlen_q": call.longest, "max_seqlen_k": call.longest}
        axes_q = axes_k = [int(ends[-1])]
    if call.page_size:
        axes_k = [call.batch * pages.count(call.seqlen_k, call.page_size), call.page_size]
        options |= pages.on_device(pages.where(call.batch, call.seqlen_k, call.page_size))
    if call.alibi:
        options["alibi_slopes"] = torch.rand(call.heads[0], device="cuda") / 8

    def random(axes: list[int], heads: int, columns: int) -> Any:
        spare = 0 if call.aligned else 1
        shape = (*axes, heads, columns + spare)
        return torch.randn(shape, device="cuda", dtype=element)[..., :columns]

    q = random(axes_q, call.heads[0], d_head)
    k = random(axes_k, call.heads[1], d_head)
    v = k[..., :d_head_v] if d_head == 576 else random(axes_k, call.heads[1], d_head_v)
    if dtype == "E4M3":
        k = k.to(torch.float8_e4m3fn)
        v = k[..., :d_head_v] if d_head == 576 else v.to(torch.float8_e4m3fn)
    return [q, k, v], options


def _has_one(config: Any, text: str) -> bool:
    """Says whether a row has one of the values of a filter, field=value,value..."""
    from flashattn.config import parse_filters

    name, _, values = text.partition("=")
    return any(parse_filters([f"{name}={value}"])(config) for value in values.split(","))


def _rows(filters: list[str]) -> list[Any]:
    """Configurations of CUDA rows that the device runs."""
    from flashattn.cli import problem

    rows = [row.config for row in problem.forward_kernels([])]
    return [c for c in rows if problem.is_cuda(c) and all(_has_one(c, text) for text in filters)]


def _cases(rows: list[Any]) -> Iterator[tuple[Call, int, int, str]]:
    """Each call with the d_head, d_head_v and type of some row."""
    import flashattn

    shapes = {
        (c.dtype, c.d_head, c.d_head_v or c.d_head) for c in rows if c.arch != flashattn.Arch.MIXED
    }
    for dtype, d_head, d_head_v in sorted(shapes):
        for call in calls(d_head):
            yield call, d_head, d_head_v, flashattn.DType(dtype).name


def _times(
    call: Call, rows: list[Any], arrays: list[Any], options: dict[str, Any]
) -> dict[str, int]:
    """Nanoseconds of each row that serves the call, without those that are far from the fastest."""
    import flashattn
    from flashattn.tuning import measure as measured

    for_few = {getattr(flashattn.Arch, name) for name in FOR_FEW}
    serving = [
        config
        for config in rows
        if (call.seqlen_q <= MOST_QUERIES or config.arch not in for_few)
        and flashattn.query_support(*arrays, config=config, **options)
    ]
    if not serving:
        return {}
    q, _, v = arrays
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    first = measured(*arrays, serving, out=out, n_launches=1, **options)
    near = [config for config, s in zip(serving, first) if s <= FAR * min(first)]
    seconds = measured(*arrays, near, out=out, n_launches=LAUNCHES, **options)
    return {str(config): round(s * 1e9) for config, s in zip(near, seconds)}


def measure(path: str, filters: list[str]) -> None:
    import flashattn

    device = flashattn.cuda_devices()[0].name
    rows = _rows(filters)
    with open(path, "w") as file:
        for call, d_head, d_head_v, dtype in _cases(rows):
            of_type = [c for c in rows if flashattn.DType(c.dtype).name == dtype]
            name = f"{dtype}, d_head {d_head}/{d_head_v}, {call.name}"
            try:
                arrays, options = tensors(call, d_head, d_head_v, dtype)
                times = _times(call, of_type, arrays, options)
                selected = str(flashattn.select_config(*arrays, **options).config)
            except (ValueError, NotImplementedError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            if times:
                line = {"call": name, "device": device, "selected": selected, "ns": times}
                print(json.dumps(line), file=file, flush=True)


Times = dict[str, dict[str, int]]  # of each call, of each row that serves it


def _family(row: str) -> str:
    """The family of a short form: SM80's has no name in front."""
    return row.split(" ")[0] if row[0] != "(" else "SM80"


def _worth(row: str, kept: set[str], times: Times) -> tuple[float, str]:
    """The most by which a call is slower without the row, relative to its fastest row of all, and
    the call."""
    worst, name = 1.0, ""
    for call, rows in times.items():
        if row not in rows:
            continue
        of_kept = {other: t for other, t in rows.items() if other in kept}
        others = min((t for other, t in of_kept.items() if other != row), default=inf)
        factor = others / min(rows.values())
        if others > of_kept[row] and factor > worst:
            worst, name = factor, call
    return worst, name


def report(path: str, margin: float, families: list[str]) -> None:
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    for line in lines:
        line["ns"] = {r: t for r, t in line["ns"].items() if not families or _family(r) in families}
    lines = [line for line in lines if line["ns"]]
    times = {line["call"]: line["ns"] for line in lines}
    kept = {row for rows in times.values() for row in rows}
    while True:
        worth = {row: _worth(row, kept, times) for row in sorted(kept)}
        row = min(worth, key=lambda row: worth[row][0])
        if worth[row][0] > 1 + margin / 100:
            break
        kept.remove(row)
        print(f"{worth[row][0]:.3f}  can go  {row}  {worth[row][1]}")
    for row in sorted(kept):
        factor, call = worth[row]
        print(f"{factor:.3f}  stays   {row}  {call}")
    for line in lines:
        best = min(line["ns"].values())
        chosen = line["ns"].get(line["selected"], best)
        if chosen > best * (1 + margin / 100):
            fastest = min(line["ns"], key=line["ns"].__getitem__)
            selected = f"selected {line['selected']} before {fastest}"
            print(f"{chosen / best:.3f}  {selected}  {line['call']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="time all rows that serve each call")
    measuring.add_argument("file")
    measuring.add_argument("filters", nargs="*")
    reporting = commands.add_parser("report", help="print what each row is worth")
    reporting.add_argument("file")
    reporting.add_argument("--families", nargs="*", default=[], help="as if there were no others")
    reporting.add_argument("--margin", type=float, default=3, help="in percent (3)")
    args = parser.parse_args()
    if args.command == "measure":
        measure(args.file, args.filters)
    else:
        report(args.file, args.margin, args.families)


if __name__ == "__main__":
    main()
