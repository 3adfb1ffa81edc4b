"""What flash_attn_with_kvcache must do, in plain numpy: the cache after new tokens were written to
it, and the problem of attention that remains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class CacheCase:
    """A call over a cache. Arrays are as the function takes them; q and the new k and v are lists
    with an array [tokens, heads, d_head] for each sequence."""

    q: list[np.ndarray]
    k_cache: np.ndarray  # [entries, size, n_heads_kv, d_head]
    v_cache: np.ndarray
    lengths: list[int]  # tokens in the cache before the new ones
    new_k: list[np.ndarray] | None = None
    new_v: list[np.ndarray] | None = None
    cos: np.ndarray | None = None  # [positions, rotary_dim / 2]
    sin: np.ndarray | None = None
    interleaved: bool = True
    rotary_seqlens: list[int] | None = None
    leftpad: list[int] | None = None
    table: np.ndarray | None = None
    rows: list[int] | None = None
    same_position: bool = False  # of all queries of a sequence

    def place(self, b: int, position: int) -> tuple[int, int]:
        """Returns the entry of the cache that holds a token, and its offset there."""
        row = b if self.rows is None else self.rows[b]
        if self.table is None:
            return row, position
        size = self.k_cache.shape[1]
        return self.table[row, position // size], position % size

    def turned(self, x: np.ndarray, b: int, same_position: bool = False) -> np.ndarray:
        """Returns tokens of sequence b behind those of its cache, in their type."""
        if self.cos is None:
            return x
        n_pairs = self.cos.shape[1]
        first = np.arange(n_pairs) * (2 if self.interleaved else 1)
        second = first + (1 if self.interleaved else n_pairs)
        found = x.copy()
        start = (self.rotary_seqlens or self.lengths)[b]
        for i, token in enumerate(x.astype(np.float32)):
            at = start if same_position else start + i
            cos, sin = (table[at].astype(np.float32) for table in (self.cos, self.sin))
            found[i][:, first] = token[:, first] * cos - token[:, second] * sin
            found[i][:, second] = token[:, first] * sin + token[:, second] * cos
        return found

    def caches_after(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns K and V with the new tokens."""
        caches = self.k_cache.copy(), self.v_cache.copy()
        for b in range(len(self.q) if self.new_k is not None else 0):
            rows = self.turned(self.new_k[b], b), self.new_v[b]
            for cache, new in zip(caches, rows):
                for i, token in enumerate(new):
                    cache[self.place(b, self.lengths[b] + i)] = token
        return caches

    def keys(self, cache: np.ndarray, b: int) -> np.ndarray:
        """Returns the tokens of sequence b that count, [length, n_heads_kv, d_head]."""
        begin = 0 if self.leftpad is None else self.leftpad[b]
        end = self.lengths[b] + (0 if self.new_k is None else len(self.new_k[b]))
        found = [cache[self.place(b, j)] for j in range(begin, end)]
        return np.array(found, cache.dtype).reshape(-1, *cache.shape[2:])

    def ragged(self, k_cache: np.ndarray, v_cache: np.ndarray) -> tuple[list, dict[str, list[int]]]:
        """Returns q, k, v and the lengths of a ragged batch that is the problem, given the cache
        after the call."""
        batch = range(len(self.q))
        q = [self.turned(self.q[b], b, self.same_position) for b in batch]
        k, v = ([self.keys(cache, b) for b in batch] for cache in (k_cache, v_cache))
        ends = {
            name: np.cumsum([0, *map(len, parts)]).tolist()
            for name, parts in (("cu_seqlens_q", q), ("cu_seqlens_k", k))
        }
        return [np.concatenate(parts) for parts in (q, k, v)], ends
