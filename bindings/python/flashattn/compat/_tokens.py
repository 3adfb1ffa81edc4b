"""Which sequence a token belongs to, in padded and in ragged tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """The tokens of a tensor in the order of its rows, each with its sequence and its rank there.

    Ragged tensors may have rows beyond the last sequence, which do not exist. Everything is on the
    tensor's device, and nothing here waits for it.
    """

    sequence: Tensor  # [n_tokens] int64
    rank: Tensor  # [n_tokens] int64
    exists: Tensor  # [n_tokens] bool
    lengths: Tensor  # [batch] int32

    @classmethod
    def padded(cls, batch: int, seqlen: int, device: torch.device) -> Tokens:
        grid = torch.arange(batch * seqlen, device=device)
        return cls(
            grid // max(seqlen, 1),
            grid % max(seqlen, 1),
            torch.ones_like(grid, dtype=torch.bool),
            torch.full((batch,), seqlen, dtype=torch.int32, device=device),
        )

    @classmethod
    def ragged(cls, n_tokens: int, cu_seqlens: Tensor) -> Tokens:
        """cu_seqlens: [batch + 1] int32, with a batch of at least 1."""
        row = torch.arange(n_tokens, device=cu_seqlens.device)
        begin = cu_seqlens.long()
        sequence = torch.searchsorted(begin[1:], row, right=True)
        batch = begin.shape[0] - 1
        exists = sequence < batch
        sequence = sequence.clamp(max=batch - 1)
        return cls(sequence, row - begin[sequence], exists, cu_seqlens.diff())
