"""This module registers the operator flashattn::kv_append, which writes to its arguments k_cache,
v_cache, seqused_k_out and q_out, and returns nothing."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from . import derivatives, direct
from .append import append
from .registration import LIBRARY, PAGES, TAGS, note_written

ARGUMENTS = (
    "Tensor k_new, Tensor? v_new, Tensor(a!) k_cache, Tensor(b!)? v_cache, "
    "Tensor? seqused_k=None, Tensor(c!)? seqused_k_out=None, Tensor? slot_mapping=None, "
    f"Tensor? cu_seqlens_new=None, {PAGES}, Tensor? k_descale=None, Tensor? v_descale=None, "
    "Tensor? q=None, Tensor(d!)? q_out=None, Tensor? cu_seqlens_q=None, "
    "Tensor? rotary_cos=None, Tensor? rotary_sin=None, bool rotary_interleaved=False, "
    "Tensor? rotary_positions=None, Tensor? rotary_start=None, bool rotary_q_at_start=False"
)


def kv_append(
    k_new: Tensor,
    v_new: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    seqused_k: Tensor | None = None,
    seqused_k_out: Tensor | None = None,
    slot_mapping: Tensor | None = None,
    cu_seqlens_new: Tensor | None = None,
    page_table: Tensor | None = None,
    v_page_table: Tensor | None = None,
    page_indptr: Tensor | None = None,
    page_rows: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    q: Tensor | None = None,
    q_out: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    rotary_interleaved: bool = False,
    rotary_positions: Tensor | None = None,
    rotary_start: Tensor | None = None,
    rotary_q_at_start: bool = False,
) -> None:
    """Calls append() with an operator's arguments. q needs q_out, which may be q."""
    pages = scales = rotary = queries = None
    if (q is None) != (q_out is None):
        raise ValueError(
            "q_out is given without q" if q is None else "q is given without q_out: it may be q"
        )
    if not page_table is v_page_table is page_indptr is page_rows is None:
        pages = page_table, v_page_table, page_indptr, page_rows
    if k_descale is not None or v_descale is not None:
        scales = k_descale, v_descale
    if rotary_cos is not None or rotary_sin is not None:
        rotary = (
            rotary_cos, rotary_sin, rotary_interleaved, rotary_positions, rotary_start,
            rotary_q_at_start,
        )  # fmt: skip
    if q is not None:
        queries = q, q_out, cu_seqlens_q
    append(
        k_new,
        v_new,
        k_cache,
        v_cache,
        cu_seqlens_new,
        (seqused_k, seqused_k_out, slot_mapping),
        pages,
        scales,
        queries,
        rotary,
    )
    note_written(k_cache, v_cache, seqused_k_out, q_out)


_NAMES = list(inspect.signature(kv_append).parameters)
_AT_Q = _NAMES.index("q")


def _without_data(*arguments: Any) -> None:
    derivatives.refuse(_NAMES, arguments)


def _underived(keys: torch._C.DispatchKeySet, *arguments: Any) -> None:
    """Runs before the kernel where torch would record derivatives: see registration.py."""
    if direct.is_possible_with(*arguments[:4], *arguments[_AT_Q : _AT_Q + 2]):
        return kv_append(*arguments)  # which refuses gradients too
    derivatives.refuse(_NAMES, arguments)
    return _operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)


LIBRARY.define(f"kv_append({ARGUMENTS}) -> ()", tags=TAGS)
_operator = torch.ops.flashattn.kv_append.default
for _key in ("CPU", "CUDA"):
    LIBRARY.impl("kv_append", kv_append, _key)
LIBRARY.impl("kv_append", _underived, "Autograd", with_keyset=True)
torch.library.register_fake("flashattn::kv_append", _without_data, lib=LIBRARY)
