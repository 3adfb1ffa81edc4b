"""This module does what flash_kv_append() does, in loops over tokens: the oracle of its tests.

It is independent of the kernels. Arithmetic is of numpy's float32, operation by operation, so that
results agree bit for bit; `turned` in float64 is the definition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from flashattn import quant_blocks
from memory import E4M3, dtype_of

LARGEST_E4M3 = 448


@dataclass(frozen=True)
class Token:
    batch_index: int
    i: int  # in its sequence
    number: int  # in the call
    index: tuple[int, ...]  # in its tensor


def tokens_of(x: np.ndarray, cu_seqlens: np.ndarray | None) -> Iterator[Token]:
    """Yields the tokens of [batch, seqlen, heads, d], or of [tokens, heads, d], which without
    cu_seqlens is one sequence."""
    if x.ndim == 4:
        for b in range(x.shape[0]):
            for i in range(x.shape[1]):
                yield Token(b, i, b * x.shape[1] + i, (b, i))
        return
    ends = [0, len(x)] if cu_seqlens is None else cu_seqlens.tolist()
    for b, (begin, end) in enumerate(zip(ends, ends[1:])):
        for i in range(end - begin):
            yield Token(b, i, begin + i, (begin + i,))


def narrowed(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Rounds to nearest; e4m3 saturates."""
    if dtype == dtype_of(E4M3):
        x = np.clip(x, -LARGEST_E4M3, LARGEST_E4M3)
    with np.errstate(over="ignore"):  # of float16, which has infinity
        return x.astype(dtype)


def turned(
    x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool, compute: type = np.float32
) -> np.ndarray:
    """Turns the first elements of rows [heads, d] by the angles of one position."""
    x, cos, sin = (a.astype(compute) for a in (x, cos, sin))
    n = len(cos)
    first, second = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if interleaved else (
        slice(0, n), slice(n, 2 * n)
    )  # fmt: skip
    result = x.copy()
    result[:, first] = x[:, first] * cos - x[:, second] * sin
    result[:, second] = x[:, first] * sin + x[:, second] * cos
    return result


@dataclass
class Oracle:
    """Holds the arguments of flash_kv_append() that have these names. Arrays that it writes are
    given to the functions."""

    seqused_k: np.ndarray | None = None
    slot_mapping: np.ndarray | None = None
    cu_seqlens_new: np.ndarray | None = None
    page_table: np.ndarray | None = None
    v_page_table: np.ndarray | None = None
    page_indptr: np.ndarray | None = None
    page_rows: np.ndarray | None = None
    k_descale: np.ndarray | float | None = None
    v_descale: np.ndarray | float | None = None
    cu_seqlens_q: np.ndarray | None = None
    rotary_cos: np.ndarray | None = None
    rotary_sin: np.ndarray | None = None
    rotary_interleaved: bool = False
    rotary_positions: np.ndarray | None = None
    rotary_start: np.ndarray | None = None
    rotary_q_at_start: bool = False
    page_scales: bool = False

    def append(
        self,
        new: np.ndarray,
        cache: np.ndarray,
        *,
        is_v: bool = False,
        kv_dtype: str | None = None,
    ) -> None:
        """Writes the new tokens that have a place into the cache.

        kv_dtype    that of quantised blocks, whose encoder has tests of its own; None: the cache's
        """
        scale = self.v_descale if is_v else self.k_descale
        for token in tokens_of(new, self.cu_seqlens_new):
            place = self._place(token, cache, is_v)
            if place is None:
                continue
            x = new[token.index]
            if not is_v:
                x = self._turned(x, token, False)
            if kv_dtype is not None:
                x = quant_blocks.encode(x.astype(np.float32), kv_dtype)
            elif x.dtype != cache.dtype:
                x = x.astype(np.float32)
                if cache.dtype == dtype_of(E4M3) and new.dtype != cache.dtype:
                    at = place[0] if self.page_scales else token.batch_index
                    x = x * self._inverse(scale, at)
                x = narrowed(x, cache.dtype)
            cache[place] = x

    def turn_queries(self, q: np.ndarray, out: np.ndarray) -> None:
        for token in tokens_of(q, self.cu_seqlens_q):
            x = self._turned(q[token.index], token, self.rotary_q_at_start)
            n_turned = 2 * self.rotary_cos.shape[1]
            out[token.index] = narrowed(x, out.dtype)
            if q.dtype == out.dtype:  # what does not turn keeps its bits
                out[token.index][:, n_turned:] = q[token.index][:, n_turned:]

    def lengths_after(self, new: np.ndarray) -> np.ndarray:
        if self.cu_seqlens_new is not None:
            return self.seqused_k + np.diff(self.cu_seqlens_new).astype(np.int32)
        return self.seqused_k + np.int32(new.shape[1])

    def _turned(self, x: np.ndarray, token: Token, at_start: bool) -> np.ndarray:
        if self.rotary_cos is None:
            return x
        if self.rotary_positions is not None:
            position = int(self.rotary_positions[token.number])
        else:
            start = self.rotary_start if self.rotary_start is not None else self.seqused_k
            position = int(start[token.batch_index]) + (0 if at_start else token.i)
        position = min(max(position, 0), len(self.rotary_cos) - 1)  # CUDA devices only
        return turned(
            x, self.rotary_cos[position], self.rotary_sin[position], self.rotary_interleaved
        )

    def _inverse(self, scale: np.ndarray | float | None, at: int) -> np.ndarray:
        if scale is None or isinstance(scale, float):
            return np.float32(1) / np.float32(1.0 if scale is None else scale)
        return (np.float32(1) / scale[at])[:, None]

    def _place(self, token: Token, cache: np.ndarray, is_v: bool) -> tuple[int, int] | None:
        n_entries, size = cache.shape[:2]
        b = token.batch_index
        if self.slot_mapping is not None:
            slot = int(self.slot_mapping[token.number])
            return divmod(slot, size) if 0 <= slot < n_entries * size else None
        key = int(self.seqused_k[b]) + token.i
        row = b if self.page_rows is None else int(self.page_rows[b])
        table = self.page_table
        if key < 0:
            return None
        if table is None:
            return (row, key) if key < size and 0 <= row < n_entries else None
        if is_v and self.v_page_table is not None:
            table = self.v_page_table
        if self.page_indptr is not None:
            ids = table[self.page_indptr[b] : self.page_indptr[b + 1]]
        elif row < 0:
            return None
        else:
            ids = table[row]
        page = key // size
        is_page = page < len(ids) and 0 <= ids[page] < n_entries
        return (int(ids[page]), key % size) if is_page else None
