"""Random masks of blocks for attention problems (problems.py), for the oracle and for a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import flashattn
import numpy as np

if TYPE_CHECKING:
    from problems import AttentionProblem


@dataclass(frozen=True)
class BlockCase:
    """A random mask of blocks: what BiasCase is of the other masks. Axes that `repeats` names, of
    "bhq", have one element. from_end: it covers the last n_keys keys."""

    block_q: int = 64
    block_k: int = 64
    shown: float = 0.4  # share of blocks
    repeats: str = ""
    n_keys: int | None = None
    from_end: bool = False
    more_rows: int = 0  # than the longest sequence needs
    seed: int = 0

    def _blocks(self, p: AttentionProblem) -> np.ndarray:
        n_keys = p.seqlen_k if self.n_keys is None else self.n_keys
        of_queries = -(-p.seqlen_q // self.block_q) + self.more_rows
        rows = zip("bhq", (p.batch, p.n_heads, of_queries))
        shape = [1 if axis in self.repeats else n for axis, n in rows]
        drawn = np.random.default_rng([self.seed, 13]).random((*shape, -(-n_keys // self.block_k)))
        return drawn < self.shown

    def options(self, p: AttentionProblem) -> dict[str, object]:
        """Returns keywords of the oracle: a mask with an element for each query and key."""
        n_keys = p.seqlen_k if self.n_keys is None else self.n_keys
        blocks = self._blocks(p)
        shape = (p.batch, p.n_heads, blocks.shape[2])
        wide = np.broadcast_to(blocks, (*shape, blocks.shape[3])).repeat(self.block_k, axis=3)
        wide = wide[..., :n_keys]

        def rows(b: int, n: int) -> np.ndarray:  # [n_heads, n, n_keys]
            at = np.arange(n) // self.block_q if "q" not in self.repeats else np.zeros(n, int)
            return wide[b][:, at]

        if p.cu_seqlens_q is None:
            mask = np.stack([rows(b, p.seqlen_q) for b in range(p.batch)]) if p.batch else wide
        else:
            lengths = np.diff(p.cu_seqlens_q)
            parts = [rows(b, n) for b, n in enumerate(lengths)]
            mask = np.concatenate([np.zeros((p.n_heads, 0, n_keys), bool), *parts], axis=1)
        return {"attn_mask": mask, "mask_keys": n_keys if self.from_end else None}

    def call_options(self, p: AttentionProblem) -> dict[str, object]:
        return {"attn_mask": flashattn.BlockMask(self._blocks(p), self.block_q, self.block_k)}
