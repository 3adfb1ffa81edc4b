"""This module has the mask of blocks of queries and keys that a caller passes as attn_mask."""

from __future__ import annotations

from typing import Any

from . import _numbers


class BlockMask:
    """Says for each block of queries and block of keys whether the ones see the others: an
    attn_mask of the functions for all arrays.

    blocks    bool [..., blocks of queries, blocks of keys], which broadcasts to [batch, n_heads,
              ceil(longest / block_q), ceil(keys / block_k)], of numpy or torch: True where queries
              see keys. Each call packs it into bits. Or int32 or uint32 with the bits themselves:
              words of 32 blocks of keys, the first in the lowest bit, which no call copies
    block_q   queries of a block, counted within each sequence, in ragged batches too
    block_k   keys of a block

    Time goes by the blocks that are seen. Blocks of 64 or 128 pay most.
    """

    def __init__(self, blocks: Any, block_q: int = 128, block_k: int = 128) -> None:
        self.blocks = blocks
        self.block_q = _positive("block_q", block_q)
        self.block_k = _positive("block_k", block_k)

    def __repr__(self) -> str:
        shape = tuple(getattr(self.blocks, "shape", ()))
        return f"BlockMask(blocks of shape {shape}, {self.block_q}, {self.block_k})"


def _positive(name: str, value: Any) -> int:
    number = _numbers.integer(name, value)
    if not 1 <= number < 2**31:
        raise ValueError(f"{name} is {number}: not within 1 ... {2**31 - 1}")
    return number
