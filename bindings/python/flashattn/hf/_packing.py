"""This module handles sequences that are packed one after the other into the rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..compat._call import attend_ragged


@dataclass(frozen=True)
class Packing:
    """Holds where sequences begin in a flat batch, as cu_seqlens int32 [sequences + 1], and the
    longest length."""

    cu_seqlens: Tensor
    longest: int

    @classmethod
    def of_ids(cls, ids: Tensor) -> Packing:
        """Returns the packing of sequences whose tokens have the same id in ids, integers [batch,
        seqlen], and their neighbours' others."""
        return cls.of_beginnings(ids.diff(dim=1) != 0)

    @classmethod
    def of_beginnings(cls, begins: Tensor) -> Packing:
        """Returns the packing of sequences that begin where begins, bool [batch, seqlen - 1], is
        true. It lacks the first token of each row, which begins a sequence anyway."""
        begins = torch.cat((begins.new_ones((begins.shape[0], 1)), begins), 1)
        starts = begins.flatten().nonzero().flatten()
        cu_seqlens = torch.cat((starts, starts.new_tensor([begins.numel()]))).to(torch.int32)
        return cls(cu_seqlens, int(cu_seqlens.diff().max()))

    @classmethod
    def of_arguments(
        cls, q: Tensor, k: Tensor, kwargs: dict[str, Any]
    ) -> tuple[Packing | None, Packing | None]:
        """Returns how the arguments cu_seq_lens_ and max_length_ of q and k pack each of them
        [batch, seqlen, heads, d_head]; (None, None) unless both are given."""
        of_q, of_k = (cls._of_arguments(name, x, kwargs) for name, x in (("q", q), ("k", k)))
        return (of_q, of_k) if of_q is not None and of_k is not None else (None, None)

    @classmethod
    def _of_arguments(cls, name: str, x: Tensor, kwargs: dict[str, Any]) -> Packing | None:
        cu_seqlens, longest = (
            kwargs.get(f"{kind}_{name}") for kind in ("cu_seq_lens", "max_length")
        )
        if cu_seqlens is None:
            return None
        n_tokens = x.shape[0] * x.shape[1]
        return cls(cu_seqlens.to(torch.int32), n_tokens if longest is None else int(longest))

    @classmethod
    def of_positions(cls, position_ids: Tensor | None, q: Tensor, k: Tensor) -> Packing | None:
        """Returns the packing of the sequences of one row, each of which begins at the lowest
        position; None where there is only one, or positions are of another kind.

        position_ids  [1, seqlen]
        q, k          [batch, seqlen, heads, d_head]: only queries that are all of the keys can be
                      packed
        """
        if position_ids is None or position_ids.shape != (1, k.shape[1]) or k.shape[1] < 2:
            return None
        if q.shape[:2] != k.shape[:2] or q.shape[0] != 1:
            return None
        packing = cls.of_beginnings(position_ids[:, 1:] == position_ids.min())
        return packing if packing.cu_seqlens.shape[0] > 2 else None


def attend_packed(
    q: Tensor, k: Tensor, v: Tensor, of_q: Packing, of_k: Packing, **options: Any
) -> Tensor:
    """Returns O, of q's shape but for the last axis, which is v's. The options are keywords of
    torch_ops.flash_attn_varlen_func.

    q      [batch, seqlen_q, n_heads, d_head], which of_q cuts into sequences
    k, v   [batch_k, seqlen_k, n_heads_kv, d_head], which of_k cuts into as many
    """
    flat = (x.flatten(0, 1) for x in (q, k, v))
    out = attend_ragged(
        *flat,
        cu_seqlens_q=of_q.cu_seqlens,
        cu_seqlens_k=of_k.cu_seqlens,
        max_seqlen_q=of_q.longest,
        max_seqlen_k=of_k.longest,
        **options,
    )
    return out.view(*q.shape[:-1], v.shape[-1])
