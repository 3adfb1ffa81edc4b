"""Whether arrays fit in memory, which is said before they are made."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from .. import quant_blocks
from ..config import DType
from . import extras, problem, words
from .problem import BadInput

_ITEM_SIZE = {  # of K and V
    DType.FP16: 2,
    DType.BF16: 2,
    DType.FP32: 4,
    DType.E4M3: 1,
    **{
        dtype: quant_blocks.BYTES[kv_dtype] / quant_blocks.COLUMNS
        for dtype, kv_dtype in problem.QUANT_BLOCKS.items()
    },
}
_OF_Q = {DType.E4M3: 2, **dict.fromkeys(problem.QUANT_BLOCKS, 4)}  # where Q has another type
_MEMORY_FILE = Path("/proc/meminfo")


def item_sizes(dtype: DType) -> tuple[float, float]:
    """Bytes of an element of Q and O, and of a column of K and V."""
    return _OF_Q.get(dtype, _ITEM_SIZE[dtype]), _ITEM_SIZE[dtype]


def require_inputs(
    dtype: DType, queries: tuple[int, ...], keys: tuple[int, ...], args: argparse.Namespace
) -> None:
    """Raises BadInput where Q, K, V and O, whose first axes are given, do not fit."""
    of_q, of_k = item_sizes(dtype)
    if dtype == DType.E4M3 and problem.q_name(dtype, args) == "float32":
        of_q = 4
    heads_kv = args.heads_kv or args.heads
    n_queries, n_keys = math.prod(queries), math.prod(keys)
    columns = args.d_head + problem.d_head_v(args)
    n_bytes = round(columns * (n_queries * args.heads * of_q + n_keys * heads_kv * of_k))
    require(
        n_bytes,
        f"Q, K, V and O of {dtype.name} (in all {words.count(n_queries, 'query', 'queries')} and "
        f"{words.count(n_keys, 'key')}, heads {args.heads}/{heads_kv}, "
        f"d_head {problem.d_head_text(args)})",
        args.device,
    )


def require(n_bytes: int, what: str, device: str) -> None:
    """Raises BadInput where "cpu" or "cuda" has not so much memory left."""
    left = available(device)
    if left is not None and n_bytes > left:
        where = "the machine" if device == "cpu" else "the GPU"
        raise BadInput(
            f"{what} take {words.size(n_bytes)}, and {where} has {words.size(left)} of memory left"
        )


def available(device: str) -> int | None:
    """Bytes that can still be had; None: unknown."""
    if device == "cuda":
        cuda = extras.load("torch").cuda
        return cuda.mem_get_info()[0] + cuda.memory_reserved() - cuda.memory_allocated()
    try:
        lines = _MEMORY_FILE.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(found[0]) if found else None


def ran_out(error: RuntimeError) -> bool:
    """Whether torch found no memory, on a GPU (by the class) or on the CPU (by its words)."""
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
