"""Several sequences packed one after the other into the rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..compat._call import attend_ragged

_MEMORY = "_flashattn_packing"


@dataclass(frozen=True)
class Packing:
    """Where sequences begin in a flat batch: cu_seqlens int32 [sequences + 1], and the longest
    length."""

    cu_seqlens: Tensor
    longest: int

    @classmethod
    def of_ids(cls, ids: Tensor) -> Packing:
        """ids [batch, seqlen]: a sequence has one id, its neighbours have others."""
        return _kept(ids, lambda plain: plain.diff(dim=1) != 0)

    @classmethod
    def of_positions(cls, position_ids: Tensor | None, q: Tensor, k: Tensor) -> Packing | None:
        """The sequences of one row, each of which begins at the lowest position. None: there is
        only one, or positions of another kind.

        position_ids  [1, seqlen]
        q, k          [batch, seqlen, heads, d_head]: only queries that are all of the keys can be
                      packed
        """
        if position_ids is None or position_ids.shape != (1, k.shape[1]) or k.shape[1] < 2:
            return None
        if q.shape[:2] != k.shape[:2] or q.shape[0] != 1:
            return None
        packing = _kept(position_ids, lambda plain: plain[:, 1:] == plain.min())
        return packing if packing.cu_seqlens.shape[0] > 2 else None


def _kept(tensor: Tensor, begins: Any) -> Packing:
    """The packing of a tensor, kept with it, since all layers of a model share it and finding it
    means to wait for the device. begins(tensor) [batch, seqlen - 1]: a sequence begins there."""
    packing = getattr(tensor, _MEMORY, None)
    if packing is None:
        plain = tensor.as_subclass(Tensor)
        is_first = torch.ones_like(plain, dtype=torch.bool)
        is_first[:, 1:] = begins(plain)
        starts = is_first.flatten().nonzero().flatten()
        cu_seqlens = torch.cat((starts, starts.new_tensor([plain.numel()]))).to(torch.int32)
        packing = Packing(cu_seqlens, int(cu_seqlens.diff().max()))
        setattr(tensor, _MEMORY, packing)
    return packing


def attend_packed(
    q: Tensor, k: Tensor, v: Tensor, of_q: Packing, of_k: Packing, **options: Any
) -> Tensor:
    """O of q's shape; options: keywords of flashattn.flash_attn_varlen_func.

    q      [batch, seqlen_q, n_heads, d_head], which of_q cuts into sequences
    k, v   [batch_k, seqlen_k, n_heads_kv, d_head], which of_k cuts into as many
    """
    flat = (x.flatten(0, 1) for x in (q, k, v))
    out, _ = attend_ragged(
        *flat,
        cu_seqlens_q=of_q.cu_seqlens,
        cu_seqlens_k=of_k.cu_seqlens,
        max_seqlen_q=of_q.longest,
        max_seqlen_k=of_k.longest,
        **options,
    )
    return out.view(q.shape)
