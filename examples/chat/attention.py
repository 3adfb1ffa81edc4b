"""The model's attention and rotary embedding: the library's over a paged cache, and numpy's as the
reference."""

from __future__ import annotations

from functools import lru_cache

import flashattn
import numpy as np

from .arrays import Arrays
from .llama import Attention, Sizes, rotary_tables

PAGE_SIZE = 16  # tokens


class FlashAttention:
    """libflashattn's attention over one dialogue, whose K and V it keeps in pages. A page of a
    layer is [PAGE_SIZE, n_heads_kv, d_head]; the layers share the page table."""

    def __init__(self, sizes: Sizes, capacity: int, arrays: Arrays) -> None:
        """capacity: the largest number of tokens of the dialogue."""
        n_pages = -(-capacity // PAGE_SIZE)
        pages = (n_pages, PAGE_SIZE, sizes.n_heads_kv, sizes.d_head)
        self.arrays = arrays
        self.length = 0  # tokens whose K and V are in the cache, or about to be
        self._k = [arrays.empty(pages) for _ in range(sizes.n_layers)]
        self._v = [arrays.empty(pages) for _ in range(sizes.n_layers)]
        self._free = list(range(n_pages))  # the last is taken first, so that no page is in order
        self._table = np.zeros((1, n_pages), np.int32)
        cos, sin = (arrays.send(x.astype(np.float32)) for x in rotary_tables(sizes, capacity))
        self._rotary = {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": True}

    def extend(self, count: int) -> int:
        """Makes room for new tokens; returns the position of the first. Then every layer is to be
        called with those tokens."""
        first = self.length
        self.length += count
        self._count = count
        for i in range(-(-first // PAGE_SIZE), -(-self.length // PAGE_SIZE)):
            self._table[0, i] = self._free.pop()
        put = self.arrays.put
        self._pages = {"page_table": put(self._table)}
        self._lengths = put(np.array([first], np.int32))
        self._new_lengths = put(np.array([self.length], np.int32))
        return first

    def __call__(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        cache = self._k[layer], self._v[layer]
        q, k, v = (self.arrays.send(x)[None] for x in (q, k, v))
        q = flashattn.flash_kv_append(
            k,
            v,
            *cache,
            seqused_k=self._lengths,
            seqused_k_out=self._new_lengths,
            q=q,
            q_out=self.arrays.empty(q.shape),
            **self._pages,
            **self._rotary,
        )
        o = flashattn.flash_attn_func(
            q, *cache, causal=True, seqused_k=self._new_lengths, **self._pages
        )
        return self.arrays.get(o[0])

    def kernel(self, n_heads: int) -> flashattn.Selection:
        """The kernel that serves the tokens of the last extend, and why."""
        q = self.arrays.empty((1, self._count, n_heads, self._k[0].shape[-1]))
        lengths = {"seqused_k": self._new_lengths, **self._pages}
        return flashattn.select_config(q, self._k[0], self._v[0], causal=True, **lengths)


def reference_attention(sizes: Sizes) -> Attention:
    """The textbook's attention in float64, without a cache: for all tokens at once."""

    def attend(layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        cos, sin = rotary_tables(sizes, len(q))
        q, k, v = (x.astype(np.float64) for x in (q, k, v))
        q, k = (rotated(x, cos, sin) for x in (q, k))
        return numpy_attention(q, k, v).astype(np.float32)

    return attend


def rotated(heads: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """The rotary embedding: a pair of elements, 2 i and 2 i + 1, is a complex number."""
    return (heads.view(np.complex128) * (cos + 1j * sin)[:, None]).view(np.float64)


def numpy_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """softmax(Q K^T / sqrt(d_head)) V of the last tokens over all, causal, with a matrix of scores:
    q and o [seqlen_q, n_heads, d_head], k and v [seqlen_k, n_heads_kv, d_head]. In place where
    numpy can: it is also the baseline, and should not be slower than it must."""
    group = q.shape[1] // k.shape[1]
    o = np.empty(q.shape, q.dtype)
    for head in range(k.shape[1]):
        queries = slice(head * group, (head + 1) * group)
        scores = q[:, queries].transpose(1, 0, 2) @ k[:, head].T
        scores *= q.dtype.type(q.shape[-1] ** -0.5)
        if len(q) > 1:
            scores += causal_mask(len(q), len(k), q.dtype)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        sums = scores.sum(axis=-1, keepdims=True)
        o[:, queries] = ((scores @ v[:, head]) / sums).transpose(1, 0, 2)
    return o


@lru_cache(maxsize=1)  # for all layers
def causal_mask(seqlen_q: int, seqlen_k: int, dtype: np.dtype) -> np.ndarray:
    """What is added to scores: 0, or -infinity for keys after the query's own. The last query's is
    the last key."""
    return np.triu(np.full((seqlen_q, seqlen_k), -np.inf, dtype), k=1 + seqlen_k - seqlen_q)
