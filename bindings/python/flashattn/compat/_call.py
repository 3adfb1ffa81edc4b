"""Calls of the binding with what flash-attn allows and the binding does not: an innermost axis that
is not contiguous, and rows behind a ragged batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import flashattn

from ._arguments import contiguous_rows


def attend_padded(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """(O, LSE) of padded q, k and v; options: keywords of flashattn.flash_attn_func."""
    q, k, v = map(contiguous_rows, (q, k, v))
    return flashattn.flash_attn_func(q, k, v, return_lse=True, **options)


def attend_ragged(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """(O, LSE) of a ragged batch; options: keywords of flashattn.flash_attn_varlen_func.

    A longest length that is None counts as the number of tokens. q may have more tokens than
    cu_seqlens_q covers; on the CPU their O is 0 and their LSE -infinity.
    """
    q, k, v = map(contiguous_rows, (q, k, v))
    cu_seqlens_q, cu_seqlens_k = map(contiguous_rows, (cu_seqlens_q, cu_seqlens_k))
    if options.get("page_table") is None:
        max_seqlen_k = _longest(k, cu_seqlens_k, max_seqlen_k)
    options.update(
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=_longest(q, cu_seqlens_q, max_seqlen_q),
        max_seqlen_k=max_seqlen_k,
        return_lse=True,
    )
    used = q.shape[0]
    if cu_seqlens_q is not None and cu_seqlens_q.device.type == "cpu":
        used = min(used, int(cu_seqlens_q[-1]))
    if cu_seqlens_q is None or used == q.shape[0]:
        return flashattn.flash_attn_varlen_func(q, k, v, **options)
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    lse = torch.full((q.shape[1], q.shape[0]), -torch.inf)
    flashattn.flash_attn_varlen_func(q[:used], k, v, out=out[:used], lse=lse[:, :used], **options)
    return out, lse


def _longest(tensor: Tensor, cu_seqlens: Tensor | None, longest: int | None) -> int | None:
    """The bound on the lengths of a ragged tensor; a padded one has none."""
    if cu_seqlens is None:
        return None
    return tensor.shape[0] if longest is None else int(longest)
