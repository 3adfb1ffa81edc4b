"""This module handles sequences that are packed one after the other into the rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..compat._call import attend_ragged


class SequenceIds(Tensor):
    """Holds integers [batch, seqlen]: all tokens of a sequence have the same one, and those of its
    neighbours have others. It is never written to."""

    @cached_property
    def packing(self) -> Packing:
        """The packing is found once for all layers of a model: the host waits for the device."""
        ids = self.as_subclass(Tensor)
        return Packing.of_beginnings(ids.diff(dim=1) != 0)


@dataclass(frozen=True)
class Packing:
    """Holds where sequences begin in a flat batch, as cu_seqlens int32 [sequences + 1], and the
    longest length."""

    cu_seqlens: Tensor
    longest: int

    @classmethod
    def of_beginnings(cls, begins: Tensor) -> Packing:
        """Returns the packing of sequences that begin where begins, bool [batch, seqlen - 1], is
        true. It lacks the first token of each row, which begins a sequence anyway."""
        begins = torch.cat((begins.new_ones((begins.shape[0], 1)), begins), 1)
        starts = begins.flatten().nonzero().flatten()
        cu_seqlens = torch.cat((starts, starts.new_tensor([begins.numel()]))).to(torch.int32)
        return cls(cu_seqlens, int(cu_seqlens.diff().max()))

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
