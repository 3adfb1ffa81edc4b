"""Sequences of different lengths as one batch: ragged (packed end to end, no padding) or padded (to
the longest). The rest of the model is the same for both; only attention sees the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Batch:
    token_ids: np.ndarray  # [total tokens] or [batch, longest]
    positions: np.ndarray  # like token_ids: each token's place in its sequence
    lengths: np.ndarray  # [batch] int32

    def real_tokens(self, rows: np.ndarray) -> np.ndarray:
        """The rows that are not padding, packed end to end. rows: one per token of the batch."""
        if self.token_ids.ndim == 1:
            return rows
        padded = rows.reshape(*self.token_ids.shape, *rows.shape[1:])
        return padded[self.positions < self.lengths[:, None]]


def ragged_batch(sequences: Sequence[Sequence[int]]) -> Batch:
    return Batch(
        np.concatenate([np.asarray(s, np.int64) for s in sequences]),
        np.concatenate([np.arange(len(s)) for s in sequences]),
        lengths_of(sequences),
    )


def padded_batch(sequences: Sequence[Sequence[int]]) -> Batch:
    lengths = lengths_of(sequences)
    token_ids = np.zeros((len(sequences), lengths.max()), np.int64)  # 0 is the padding token
    for row, sequence in zip(token_ids, sequences):
        row[: len(sequence)] = sequence
    positions = np.broadcast_to(np.arange(token_ids.shape[1]), token_ids.shape)
    return Batch(token_ids, positions, lengths)


def lengths_of(sequences: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([len(s) for s in sequences], np.int32)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Where each sequence of a ragged batch begins, and where the last ends (cu_seqlens)."""
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
