"""`bench-decode`: GPU time of few queries over long caches, contiguous and in pages, beside
FlashAttention-3 and torch's kernels where they are installed, and beside only reading as much.

Before each launch 256 MiB are written, so that no cache holds K, V or a kernel's instructions, as
between the layers of a model.
"""

from __future__ import annotations

import argparse
import itertools
import re

from . import (
    decode_report,
    decode_times,
    extras,
    gpu,
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
        description="Prints the median microseconds of one call, and GB/s of reading K and V "
        "once. 'known' is a contiguous cache whose lengths the host knows, 'lengths' one whose "
        "lengths only the device knows, and 'page N' the same in pages of N tokens in random "
        "order. Batches that mix decoding and chunks of prompts are also timed as two calls, one "
        "for each part, and as both calls one after the other ('apart'). Other libraries take "
        "turns with this one: FlashAttention-3 (FA3) if flash_attn_interface can be imported, "
        "cuDNN and FlashAttention-2 (FA2) through torch. 'floor' is the fastest way found of "
        "only reading as many bytes; it is timed if libflashattn_read_floor.so lies beside the "
        "library.",
    )
    _add_batch_options(parser)
    parser.add_argument(
        "--heads",
        default="32/8",
        metavar="H/H_KV,...",
        help="query heads / K/V heads; each pair has a table (32/8)",
    )
    parser.add_argument("--d-head", type=int, default=128, help="head dimension (128)")
    parser.add_argument(
        "--dtype",
        type=str.upper,
        choices=_DTYPES,
        default="BF16",
        help="type of K and V, and of Q, which is BF16 beside E4M3 (BF16)",
    )
    problem.add_q_dtype_option(parser, "BF16")
    parser.add_argument(
        "--page-size",
        type=_page_sizes,
        default="64,16,1",
        metavar="N,N,...",
        help="tokens per page (64,16,1)",
    )
    parser.add_argument(
        "--batch-invariant", action="store_true", help="calls with FLASH_FLAG_BATCH_INVARIANT"
    )
    parser.add_argument("--runs", type=int, default=15, help="timed calls (15)")
    parser.add_argument("--no-peers", action="store_true", help="do not time other libraries")
    parser.add_argument("--json", metavar="FILE", help="also write the results to FILE")
    parser.add_argument(
        "--plot",
        nargs="?",
        const=_PICTURE,
        metavar="FILE",
        help=f"also draw GB/s over the keys, to FILE ({_PICTURE}), which ends with "
        f"{words.choice(plot.ENDINGS)}",
    )
    parser.set_defaults(run=run)


def _add_batch_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("batches")
    group.add_argument("--caches", metavar="BxN,BxN,...", help=f"batch x keys ({_DEFAULT})")
    group.add_argument(
        "--batches",
        type=problem.numbers,
        metavar="B,...",
        help="numbers of sequences, with --contexts",
    )
    group.add_argument(
        "--contexts",
        type=problem.numbers,
        metavar="N,...",
        help="numbers of keys, each timed with each of --batches",
    )
    group.add_argument(
        "--lengths",
        action="append",
        default=[],
        metavar="MIX",
        help=f"a batch of different lengths: {words.choice(list(mixes.NAMED))}; or keys of the "
        "sequences, such as 63x1-500,32768, drawn at random from ranges; or their queries and "
        "keys, such as 60x1:1-8192,2048:4096; or @FILE with such text. Repeat it for more batches",
    )
    group.add_argument("--seed", type=int, default=0, help="seed of random lengths (0)")
    group.add_argument(
        "--queries", type=int, default=1, help="queries of each sequence, causal (1)"
    )


def _page_sizes(text: str) -> list[int]:
    """Parses --page-size, which may be empty."""
    return problem.numbers(text) if text else []


def run(args: argparse.Namespace) -> int:
    _check(args)
    heads = serving_calls.parse_heads(args.heads)
    batches = _batches(args)
    if args.plot and not any(map(mixes.is_uniform, batches)):
        raise BadInput("--plot draws caches of one length: give --caches, or --batches")
    name = gpu.require("bench-decode").name
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
        title = plot.heading(name, f"Reading K and V: {_title(args)}")
        plot.draw_panels(args.plot, panels, title, "keys", "GB/s")
        console.print(f"{args.plot} written")
    return 0


def _title(args: argparse.Namespace) -> str:
    queries = words.count(args.queries, "query", "queries")
    return f"{queries}, d_head {args.d_head}, {args.dtype}{problem.q_text(args)}"


def _check(args: argparse.Namespace) -> None:
    problem.check_q_dtype(args)
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
