"""This module says which sequence a token belongs to, in padded and in ragged tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """Holds the tokens of a tensor in the order of its rows, with their sequences and ranks there.

    Tensors have an element for each token: [batch, seqlen] where the tensor is padded (or what
    broadcasts to that, since each operation here is a kernel on CUDA devices), and else [n_tokens].
    Ragged tensors may have rows beyond the last sequence, which do not exist. Everything is on the
    tensor's device, and nothing here waits for it.
    """

    sequence: Tensor  # int64
    rank: Tensor  # int64
    exists: Tensor | None  # bool; None: all tokens exist
    lengths: Tensor | int  # [batch] int32, or the length of every sequence

    @classmethod
    def padded(cls, batch: int, seqlen: int, device: torch.device) -> Tokens:
        sequence = torch.arange(batch, device=device)[:, None]
        return cls(sequence, torch.arange(seqlen, device=device), None, seqlen)

    @classmethod
    def ragged(cls, n_tokens: int, cu_seqlens: Tensor) -> Tokens:
        """Returns the tokens of a ragged tensor. cu_seqlens is [batch + 1] int32, with a batch of
        at least 1."""
        row = torch.arange(n_tokens, device=cu_seqlens.device)
        begin = cu_seqlens.long()
        sequence = torch.searchsorted(begin[1:], row, right=True)
        batch = begin.shape[0] - 1
        exists = sequence < batch
        sequence = sequence.clamp(max=batch - 1)
        return cls(sequence, row - begin[sequence], exists, cu_seqlens.diff())

    def of_sequences(self, values: Tensor) -> Tensor:
        """Returns, for each token, the value of its sequence. values is [batch]."""
        return values[:, None] if self.exists is None else values[self.sequence]

    def positions(self, starts: Tensor) -> Tensor:
        """Returns int64 positions: where each token is if the first one of each sequence b is at
        starts[b]."""
        return self.of_sequences(starts) + self.rank

    def length(self, b: int) -> int:
        return self.lengths if isinstance(self.lengths, int) else int(self.lengths[b])
