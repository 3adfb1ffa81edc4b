"""Ragged batches of `bench --lengths`: how they are written and drawn, and what there is to do.

1024,4096            two sequences
300x1-256            300 sequences, each of a length from 1 to 256, drawn at random
64x1:1024-8192       decode: 64 sequences of one query, each with its own number of keys
4x512:2048,32x1:999  chunks of prefill, and decode
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from .problem import BadInput

_MOST_TOKENS = 2**31 - 1  # cu_seqlens are int32
_LENGTH = r"(\d+)(?:-(\d+))?"
_GROUP = re.compile(rf"(?:(\d+)x)?{_LENGTH}(?::{_LENGTH})?", re.ASCII)


@dataclass(frozen=True)
class RaggedBatch:
    """Sequence b has lengths_q[b] queries and lengths_k[b] keys."""

    name: str
    lengths_q: list[int]
    lengths_k: list[int]


@dataclass(frozen=True)
class _Group:
    """Sequences whose lengths are drawn from the same (first, last)."""

    count: int
    queries: tuple[int, int]
    keys: tuple[int, int] | None  # None: each as many as queries


def parse(text: str, seed: int) -> RaggedBatch:
    """The batch that --lengths describes, always the same for a text and seed. Raises BadInput."""
    groups = [_parse_group(word) for word in text.split(",")]
    most = sum(group.count * max(group.queries[1], (group.keys or (0, 0))[1]) for group in groups)
    if most > _MOST_TOKENS:
        raise BadInput(f"--lengths {text}: up to {most} tokens, {_MOST_TOKENS} at most")
    rng = np.random.default_rng(seed)
    lengths_q: list[int] = []
    lengths_k: list[int] = []
    for group in groups:
        queries = _draw(rng, group.count, group.queries)
        lengths_q += queries
        lengths_k += _draw(rng, group.count, group.keys) if group.keys else queries
    return RaggedBatch(text, lengths_q, lengths_k)


def _parse_group(word: str) -> _Group:
    match = _GROUP.fullmatch(word)
    if not match:
        raise BadInput(
            f"--lengths: {word!r} is not [COUNTx]QUERIES[:KEYS], each a number or a range as 1-256"
        )
    count, first_q, last_q, first_k, last_k = match.groups()
    if count is not None and int(count) < 1:
        raise BadInput(f"--lengths: {word} has no sequence")
    keys = _parse_range(first_k, last_k, word) if first_k else None
    return _Group(int(count or 1), _parse_range(first_q, last_q, word), keys)


def _parse_range(first: str, last: str | None, word: str) -> tuple[int, int]:
    least, most = int(first), int(last or first)
    if least < 1:
        raise BadInput(f"--lengths: {word} has a length of {least}: at least 1")
    if least > most:
        raise BadInput(f"--lengths: {word}: the range {least}-{most} is empty")
    return least, most


def _draw(rng: np.random.Generator, count: int, lengths: tuple[int, int]) -> list[int]:
    return rng.integers(*lengths, count, endpoint=True).tolist()


def of_one_length(batch: RaggedBatch) -> RaggedBatch:
    """As many sequences, all alike: together about as many pairs of a query and a key, and as many
    keys per query."""
    count = len(batch.lengths_q)
    pairs = sum(q * k for q, k in zip(batch.lengths_q, batch.lengths_k))
    keys_per_query = sum(batch.lengths_k) / sum(batch.lengths_q)
    queries = (pairs / count / keys_per_query) ** 0.5
    q, k = (max(1, round(length)) for length in (queries, queries * keys_per_query))
    name = f"{count}x{q}" if q == k else f"{count}x{q}:{k}"
    return RaggedBatch(name, [q] * count, [k] * count)


def visible_pairs(
    batch: RaggedBatch, causal: bool, window_size: tuple[int, int], chunk: int = 0
) -> int:
    """Counts the pairs of a query and a key that it sees. chunk: keys of a chunk, 0: no chunks."""
    lengths = zip(batch.lengths_q, batch.lengths_k)
    return sum(_visible_pairs(q, k, causal, window_size, chunk) for q, k in lengths)


def _visible_pairs(
    seqlen_q: int, seqlen_k: int, causal: bool, window_size: tuple[int, int], chunk: int
) -> int:
    unbounded = seqlen_q + seqlen_k
    left, right = (unbounded if side < 0 else min(side, unbounded) for side in window_size)
    if causal:
        right = 0
    diagonal = np.arange(seqlen_q) + seqlen_k - seqlen_q
    begin = np.maximum(diagonal - left, 0)
    end = np.minimum(diagonal + right + 1, seqlen_k)
    if chunk > 0:
        own = diagonal // chunk * chunk
        begin, end = np.maximum(begin, own), np.minimum(end, own + chunk)
    return int(np.maximum(end - begin, 0).sum())
