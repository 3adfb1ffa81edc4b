"""`bench-decode`: GPU time of few queries over long caches, contiguous and in pages, beside
FlashAttention-3 and torch's kernels where they are installed, and beside only reading as much.

Before each launch 256 MiB are written, so that no cache holds K, V or a kernel's instructions, as
between the layers of a model.
"""

from __future__ import annotations

import argparse
import itertools
import re

from ..device import Device, device_info
from . import (
    decode_report,
    decode_times,
    extras,
    json_file,
    mixes,
    output_file,
    plot,
    problem,
    serving_calls,
    words,
)
from .problem import BadInput
from .ragged import RaggedBatch

_DEFAULT = "1x1024,1x8192,1x32768,4x8192,16x1024,16x8192,64x2048,64x8192,256x1024"
_PICTURE = "bench-decode.png"
_DTYPES = ("FP16", "BF16", "E4M3")


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "bench-decode",
        help="time decoding on a GPU",
        description="Median microseconds of one call, and GB/s of reading K and V once. 'known': "
        "all keys of a contiguous cache; 'lengths': as many, but only the device knows; 'page N': "
        "in pages of N tokens in random order. Of batches that mix decoding and chunks of prompts "
        "also the two parts, and both after each other ('apart'). Peers take turns with the "
        "library's kernels: FlashAttention-3 (FA3) if flash_attn_interface can be imported, cuDNN "
        "and FlashAttention-2 (FA2) through torch. 'floor': the fastest way found of only reading "
        "so many bytes, if libflashattn_read_floor.so lies beside the library.",
    )
    _add_batch_options(parser)
    parser.add_argument("--heads", default="32/8", metavar="H/H_KV,...", help="a table each (32/8)")
    parser.add_argument("--d-head", type=int, default=128)
    parser.add_argument("--dtype", choices=_DTYPES, default="BF16", help="of K and V; E4M3: Q BF16")
    parser.add_argument("--page-size", type=_page_sizes, default="64,16,1", metavar="N,N,...")
    parser.add_argument("--batch-invariant", action="store_true")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    parser.add_argument(
        "--plot",
        nargs="?",
        const=_PICTURE,
        metavar="FILE",
        help=f"also draw GB/s over the keys, to FILE ({_PICTURE}); it ends with "
        f"{', '.join(plot.ENDINGS)}",
    )
    parser.set_defaults(run=run)


def _add_batch_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("batches")
    group.add_argument("--caches", metavar="BxN,BxN,...", help=f"batch x keys ({_DEFAULT})")
    group.add_argument("--batches", type=problem.numbers, metavar="B,...", help="with --contexts")
    group.add_argument(
        "--contexts", type=problem.numbers, metavar="N,...", help="each with each of --batches"
    )
    group.add_argument(
        "--lengths",
        action="append",
        default=[],
        metavar="MIX",
        help=f"{', '.join(mixes.NAMED)}; keys as 63x1-500,32768 (drawn at random) or, with queries "
        "of their own, 60x1:1-8192,2048:4096; @FILE. Once for each batch to measure",
    )
    group.add_argument("--seed", type=int, default=0, help="of random lengths (0)")
    group.add_argument("--queries", type=int, default=1, help="of each sequence, causal (1)")


def _page_sizes(text: str) -> list[int]:
    """None at all are allowed, too."""
    return problem.numbers(text) if text else []


def run(args: argparse.Namespace) -> int:
    _check(args)
    heads = serving_calls.parse_heads(args.heads)
    batches = _batches(args)
    if args.plot and not any(map(mixes.is_uniform, batches)):
        raise BadInput("--plot draws caches of one length: give --caches, or --batches")
    name = device_info(Device.CUDA_CURRENT).name  # refuses in the library's own words
    extras.require("rich", "torch", *(["matplotlib"] if args.plot else []))
    console = extras.console()
    rows = []
    for own_heads in heads:
        own = [row for batch in batches for row in decode_times.rows(batch, own_heads, args)]
        title = f"{_title(args)}, heads {own_heads}, {name}"
        console.print(decode_report.table(own, title))
        rows += own
    if args.json:
        json_file.write(args.json, f"{_title(args)}, {name}", map(decode_report.record, rows))
    if args.plot:
        panels = decode_report.panels(rows, heads)
        plot.draw_panels(args.plot, panels, f"{_title(args)}, {name}", "keys", "GB/s")
        console.print(f"{args.plot} written")
    return 0


def _title(args: argparse.Namespace) -> str:
    queries = words.count(args.queries, "query", "queries")
    return f"{queries}, d_head {args.d_head}, {args.dtype}"


def _check(args: argparse.Namespace) -> None:
    sizes = (args.queries, args.d_head, args.runs, *args.page_size)
    if min(sizes) < 1:
        raise BadInput("queries, d_head, page sizes and runs are at least 1")
    if (args.batches is None) != (args.contexts is None):
        raise BadInput("--batches and --contexts go together")
    if args.seed < 0:
        raise BadInput(f"--seed is {args.seed}: at least 0")
    if args.plot:
        output_file.check(args.plot, plot.ENDINGS)
    if args.json:
        output_file.check(args.json)


def _batches(args: argparse.Namespace) -> list[RaggedBatch]:
    caches = list(itertools.product(args.batches or (), args.contexts or ()))
    if args.caches or not (caches or args.lengths):
        caches += _caches(args.caches or _DEFAULT)
    if any(min(cache) < 1 for cache in caches):
        raise BadInput("batches and keys are at least 1")
    uniform = [mixes.uniform(batch, keys, args.queries) for batch, keys in caches]
    return uniform + [mixes.parse(text, args.queries, args.seed) for text in args.lengths]


def _caches(text: str) -> list[tuple[int, int]]:
    words = [re.fullmatch(r"(\d+)x(\d+)", word, re.ASCII) for word in text.split(",")]
    if not all(words):
        raise BadInput(f"--caches {text}: each is BATCHxKEYS, as in 64x8192")
    return [(int(word[1]), int(word[2])) for word in words]
