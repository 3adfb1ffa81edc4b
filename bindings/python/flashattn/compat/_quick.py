"""This module makes the plain calls, which most programs make in most steps, by the extension.

Each function returns None for a call that it does not serve: the caller then takes the long way,
which serves all others, and says what is wrong with a call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import torch_ops
from .._torch import direct, extension
from .._torch.registration import note_written

# A mask holds softmax_scale, causal, window_size, softcap, attention_chunk, as flash-attn has them.
Mask = tuple[Any, bool, tuple[int, int], float, int]
# Numbers holds the same as the binding has them, and the two numbers of a window apart.
Numbers = tuple[Any, bool, int, int, float, int]


def is_possible() -> bool:
    """Returns whether the extension is there, and no compiler looks at the call."""
    return extension.forward is not None and not direct.is_compiled()


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    return_lse: bool,
    lengths: Tensor | None = None,
    table: Tensor | None = None,
) -> Any:
    """Returns O of padded q, k and v, or of a cache with these lengths, or (O, LSE)."""
    numbers = _numbers_of(mask)
    if numbers is None:
        return None
    return _attend(q, k, v, numbers, return_lse, lengths, table)


def step(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    rotary: tuple[Tensor | None, Tensor | None, bool],
    lengths: Any,
    table: Tensor | None,
    mask: Mask,
    return_lse: bool,
) -> Any:
    """Returns O of q over a cache of entries in order, or in pages, as attend() does, after new
    tokens k and v, if there are any, were written to it. rotary holds cos, sin, interleaved."""
    numbers = _numbers_of(mask)
    if numbers is None:
        return None
    if k is v is rotary[0] is rotary[1] is None:
        if not _has_entries(q, k_cache, table) or type(lengths) is not Tensor:
            return None
        return _attend(q, k_cache, v_cache, numbers, return_lse, lengths, table)
    try:
        appended = _append(q, k_cache, v_cache, k, v, rotary, lengths, table, numbers)
    except Exception:  # some tensor is none that torch knows: nothing was written
        return None
    if appended is None:
        return None
    q, after = appended
    note_written(k_cache, v_cache)
    found = _attend(q, k_cache, v_cache, numbers, return_lse, after, table)
    if found is not None:
        return found
    scale, causal, left, right, softcap, chunk = numbers
    return torch_ops.flash_attn_func(
        q,
        k_cache,
        v_cache,
        softmax_scale=scale,
        causal=bool(causal),
        window_size=(left, right),
        attention_chunk=chunk,
        softcap=softcap,
        seqused_k=after,
        page_table=table,
        return_lse=return_lse,
    )


def _numbers_of(mask: Mask) -> Numbers | None:
    """Returns the numbers of a mask; None where one of them is none."""
    scale, causal, window, softcap, chunk = mask
    try:
        left, right = window
        return scale, causal, max(left, -1), max(right, -1), max(softcap, 0.0), max(chunk, 0)
    except (TypeError, ValueError, RuntimeError):
        return None


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    numbers: Numbers,
    return_lse: bool,
    lengths: Tensor | None,
    table: Tensor | None,
) -> Any:
    scale, causal, left, right, softcap, chunk = numbers
    pages = None if table is None else (table, None, None, None)
    return extension.forward(
        q, k, v, None, None, return_lse, None, None, pages, None, scale, causal, left, right,
        softcap, False, None, None, None, None, lengths, chunk,
    )  # fmt: skip


def _append(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor,
    v: Tensor,
    rotary: tuple[Tensor | None, Tensor | None, bool],
    lengths: Tensor,
    table: Tensor | None,
    numbers: Numbers,
) -> tuple[Tensor, Tensor] | None:
    """Returns q, turned if there is a rotary embedding, and the lengths after new tokens have been
    written. May raise anything where nothing was."""
    if not _has_entries(q, k_cache, table):
        return None
    if k.dtype is not k_cache.dtype or v.dtype is not v_cache.dtype or k.dtype.itemsize == 1:
        return None
    if k_cache.shape[-1] != v_cache.shape[-1]:
        return None
    cos, sin, interleaved = rotary
    q_in = q_out = None
    if cos is not None:
        if type(cos) is not Tensor or cos.shape[0] < _capacity(k_cache, table):
            return None
        q_in, q_out = q, torch.empty_like(q)
    _, causal, left, right, _, chunk = numbers
    at_start = cos is not None and not (causal or left >= 0 or right >= 0 or chunk > 0)
    after = torch.empty_like(lengths)
    is_done = extension.append(
        k, v, k_cache, v_cache, lengths, after, None, None, table, None, None, None, None, None,
        q_in, q_out, None, cos, sin, cos is not None and bool(interleaved), None, None, at_start,
        False,
    )  # fmt: skip
    return (q if q_out is None else q_out, after) if is_done else None


def _has_entries(q: Tensor, k_cache: Tensor, table: Tensor | None) -> bool:
    """Returns whether the cache has pages, or an entry for each sequence and no more."""
    if table is not None:
        return True
    if not type(q) is type(k_cache) is Tensor or q.is_nested or k_cache.is_nested:
        return False
    if q.ndim != 4 or k_cache.ndim != 4:
        return False
    return k_cache.shape[0] == q.shape[0]


def _capacity(k_cache: Tensor, table: Tensor | None) -> int:
    return k_cache.shape[1] * (1 if table is None else table.shape[-1])
