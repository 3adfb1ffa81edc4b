"""This module computes the rotary embedding of tokens by torch operations."""

from __future__ import annotations

import torch
from torch import Tensor


class Rotary:
    """Holds the tables of one call.

    cos, sin      [seqlen_ro, rotary_dim / 2]: the angles of each position; the elements of a head
                  beyond rotary_dim are left as they are
    interleaved   element 2 i turns with element 2 i + 1, otherwise i with i + rotary_dim / 2
    """

    def __init__(self, cos: Tensor, sin: Tensor, interleaved: bool, d_head: int) -> None:
        if cos.shape != sin.shape or cos.ndim != 2:
            raise ValueError(
                f"rotary_cos has shape {tuple(cos.shape)}, and rotary_sin {tuple(sin.shape)}: both "
                "must be [seqlen_ro, rotary_dim / 2]"
            )
        if 2 * cos.shape[1] > d_head:
            raise ValueError(f"rotary_dim is {2 * cos.shape[1]}, and d_head only {d_head}")
        self.cos, self.sin, self.interleaved = cos, sin, interleaved

    @property
    def n_positions(self) -> int:
        return self.cos.shape[0]

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Returns x [..., n_heads, d_head] rotated to the positions, which broadcast to its other
        axes, in x's type. Products and sums are of float32; a position beyond the tables counts as
        their last."""
        at = positions.clamp(max=self.n_positions - 1).long()
        cos, sin = (table[at].to(torch.float32)[..., None, :] for table in (self.cos, self.sin))
        turned = x.clone(memory_format=torch.contiguous_format)
        first, second = (half.to(torch.float32) for half in self._halves(x))
        values = (
            torch.addcmul(first * cos, second, sin, value=-1),
            torch.addcmul(first * sin, second, cos),
        )
        for half, value in zip(self._halves(turned), values):
            half.copy_(value)
        return turned

    def _halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n_pairs = self.cos.shape[1]
        if self.interleaved:
            return x[..., : 2 * n_pairs : 2], x[..., 1 : 2 * n_pairs : 2]
        return x[..., :n_pairs], x[..., n_pairs : 2 * n_pairs]
