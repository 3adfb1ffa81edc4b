"""This module makes and reads rows of quantised blocks, as FLASH_DTYPE_Q8_0 and FLASH_DTYPE_Q4_0
have them (ggml's block_q8_0 and block_q4_0): uint8 [..., d_head / 32 * 34], or 18 instead of 34.
Each block has 32 columns, behind their scale in float16.

It serves tests, examples and small caches in CPU memory: it works in numpy and copies. A cache that
grows gets its tokens by flash_kv_append().
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _abi

COLUMNS = _abi.FLASH_QUANT_BLOCK  # of a block
BYTES = {"q8_0": _abi.FLASH_Q8_0_BYTES, "q4_0": _abi.FLASH_Q4_0_BYTES}  # of a block, by kv_dtype
_SCALE_BYTES = 2
_HALF = COLUMNS // 2


def row_bytes(columns: int, kv_dtype: str) -> int:
    """Returns the bytes of a row of so many columns. Raises ValueError unless these are whole
    blocks."""
    if columns % COLUMNS:
        raise ValueError(f"{columns} columns are not a multiple of {COLUMNS}, those of a block")
    return columns // COLUMNS * _block_bytes(kv_dtype)


def columns(n_bytes: int, kv_dtype: str) -> int:
    """Returns the columns of a row of so many bytes. Raises ValueError unless these are whole
    blocks."""
    block = _block_bytes(kv_dtype)
    if n_bytes % block:
        raise ValueError(f"{n_bytes} bytes are not a multiple of {block}, those of a {kv_dtype}")
    return n_bytes // block * COLUMNS


def encode(x: Any, kv_dtype: str) -> np.ndarray:
    """Returns rows in uint8 of numbers [..., d_head], as flash_kv_append() writes them and ggml's
    reference (quantize_row_q8_0_ref, quantize_row_q4_0_ref) does. Raises ValueError for another
    kv_dtype than "q8_0" and "q4_0", and for a d_head that is not a multiple of 32."""
    x = np.asarray(x).astype(np.float32)
    n_bytes = row_bytes(x.shape[-1], kv_dtype)
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // COLUMNS, COLUMNS)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        scales, elements = (_q8_0 if kv_dtype == "q8_0" else _q4_0)(blocks)
        halves = np.ascontiguousarray(scales.astype(np.float16))
    parts = [halves[..., None].view(np.uint8), elements.astype(np.uint8)]
    return np.concatenate(parts, axis=-1).reshape(*x.shape[:-1], n_bytes)


def decode(rows: Any, kv_dtype: str) -> np.ndarray:
    """Returns the numbers [..., d_head] in float64 of rows, exactly. Raises ValueError for another
    type or last axis."""
    rows = np.ascontiguousarray(rows)
    if rows.dtype != np.uint8:
        raise ValueError(f"rows are {rows.dtype}: not uint8")
    d_head = columns(rows.shape[-1], kv_dtype)
    blocks = rows.reshape(*rows.shape[:-1], d_head // COLUMNS, BYTES[kv_dtype])
    scales = np.ascontiguousarray(blocks[..., :_SCALE_BYTES]).view(np.float16).astype(np.float64)
    codes = blocks[..., _SCALE_BYTES:]
    if kv_dtype == "q8_0":
        elements = codes.view(np.int8).astype(np.float64)
    else:
        elements = np.concatenate([codes & 0xF, codes >> 4], axis=-1).astype(np.float64) - 8
    with np.errstate(invalid="ignore"):
        return (elements * scales).reshape(*rows.shape[:-1], d_head)


def _block_bytes(kv_dtype: str) -> int:
    if kv_dtype not in BYTES:
        raise ValueError(f"kv_dtype is {kv_dtype!r}: not {', '.join(map(repr, BYTES))}")
    return BYTES[kv_dtype]


def _inverses(scales: np.ndarray) -> np.ndarray:
    """Returns what numbers are multiplied by, in float32: 0 for a scale of 0, or near it."""
    inverses = np.float32(1) / scales
    return np.where(np.isfinite(inverses), inverses, np.float32(0))[..., None]


def _q8_0(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns scales in float32, and the elements of blocks of numbers."""
    finite = np.isfinite(blocks).all(axis=-1)
    scales = np.where(finite, np.abs(blocks).max(axis=-1) / np.float32(127), np.float32(np.nan))
    scaled = np.where(finite[..., None], blocks * _inverses(scales), np.float32(0))
    rounded = np.trunc(scaled.astype(np.float64) + np.copysign(0.5, scaled))  # halves away from 0
    return scales, rounded.astype(np.int8).view(np.uint8)


def _q4_0(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    finite = np.isfinite(blocks).all(axis=-1)
    first = np.abs(np.nan_to_num(blocks)).argmax(axis=-1)[..., None]
    extremes = np.take_along_axis(blocks, first, axis=-1)[..., 0] + np.float32(0)  # -0 is 0
    scales = np.where(finite, extremes / np.float32(-8), np.float32(np.nan))
    scaled = np.where(finite[..., None], blocks * _inverses(scales), np.float32(-8.5))
    elements = np.minimum(15, (scaled + np.float32(8.5)).astype(np.int8)).astype(np.uint8)
    return scales, elements[..., :_HALF] | elements[..., _HALF:] << 4
