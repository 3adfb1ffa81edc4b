"""The rates that commands print: operations per second or, of decoding, which reads memory and
computes little, bytes of K and V per second."""

from __future__ import annotations

import argparse

from ..config import DType
from . import memory, problem

MOST_DECODE_QUERIES = 16


def is_decode(args: argparse.Namespace) -> bool:
    return args.seqlen_q is not None and args.seqlen_q <= MOST_DECODE_QUERIES


def unit(args: argparse.Namespace) -> tuple[str, float]:
    """The name of the unit, and how much of work() it is."""
    if is_decode(args):
        return "GB/s", 1e9
    return ("TFLOP/s", 1e12) if args.device == "cuda" else ("GFLOP/s", 1e9)


def work(dtype: DType, seqlen: int, args: argparse.Namespace) -> float:
    """Operations, or bytes, of one call."""
    return _bytes_read(dtype, seqlen, args) if is_decode(args) else problem.operations(seqlen, args)


def _bytes_read(dtype: DType, seqlen: int, args: argparse.Namespace) -> float:
    """K and V, once; with a window or chunks, of the keys that some query sees."""
    keys = seqlen - args.leftpad_k
    first_query, left, chunk = keys - args.seqlen_q, args.window[0], args.attention_chunk
    first = max(first_query - left, 0) if left >= 0 else 0
    if chunk > 0:
        first = max(first, first_query // chunk * chunk)
    keys -= first
    heads_kv = args.heads_kv or args.heads
    batch = problem.batch_size(seqlen, args)
    columns = args.d_head + problem.d_head_v(args)
    return batch * keys * heads_kv * columns * memory.item_sizes(dtype)[1]
