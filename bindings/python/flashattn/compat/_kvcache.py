"""This module computes attention over a cache: it rotates queries and new tokens, writes the latter
into the cache, and calls the library once.

The functions flash_attn_with_kvcache of fa2 and fa3 both call it, with fewer or more arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._arguments import lengths_of
from ._cache import Cache
from ._call import attend_padded, attend_ragged
from ._rotary import Rotary
from ._tokens import Tokens


@dataclass(frozen=True)
class Queries:
    """Holds q [batch, seqlen_q, n_heads, d_head], or with cu_seqlens [total_q, n_heads, d_head]."""

    q: Tensor
    cu_seqlens: Tensor | None = None
    max_seqlen: int | None = None

    @property
    def batch(self) -> int:
        return self.q.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1


@dataclass(frozen=True)
class New:
    """Holds the tokens to append: k, v [batch, seqlen_new, n_heads_kv, d_head], or with cu_seqlens
    [total_new, n_heads_kv, d_head]."""

    k: Tensor
    v: Tensor
    cu_seqlens: Tensor | None = None


def new_tokens(
    k: Tensor | None, v: Tensor | None, cache: Cache, cu_seqlens: Tensor | None = None
) -> New | None:
    """Returns the tokens that the arguments k, v and cu_seqlens_k_new stand for; None without k and
    v. Raises ValueError for tokens whose type or shape does not fit the cache."""
    if (k is None) != (v is None):
        raise ValueError("k is given without v, or v without k")
    if k is None and cu_seqlens is not None:
        raise ValueError("cu_seqlens_k_new is given without k and v")
    if k is None:
        return None
    cu_seqlens = lengths_of("cu_seqlens_k_new", cu_seqlens, cache.batch + 1)
    if k.shape[:-2] != v.shape[:-2]:
        raise ValueError(f"k has shape {tuple(k.shape)}, and v {tuple(v.shape)}")
    if cu_seqlens is None and (k.ndim != 4 or k.shape[0] != cache.batch):
        raise ValueError(f"k has shape {tuple(k.shape)}, and q a batch of {cache.batch}")
    for name, new, of in (("k", k, cache.k), ("v", v, cache.v)):
        if new.dtype != of.dtype:
            raise ValueError(f"{name} is {new.dtype}, and {name}_cache {of.dtype}")
        if new.shape[-2:] != of.shape[-2:]:
            raise ValueError(
                f"{name} has heads and d_head {tuple(new.shape[-2:])}, and {name}_cache "
                f"{tuple(of.shape[-2:])}"
            )
    return New(k, v, cu_seqlens)


def lengths_of_cache(cache_seqlens: int | Tensor | None, cache: Cache) -> Tensor | None:
    """Returns cache_seqlens as int32 [batch]. A single number is the length of every sequence."""
    if isinstance(cache_seqlens, int):
        return torch.full((cache.batch,), cache_seqlens, dtype=torch.int32, device=cache.k.device)
    return lengths_of("cache_seqlens", cache_seqlens, cache.batch)


def rotary_of(
    cos: Tensor | None, sin: Tensor | None, interleaved: bool, new: New | None, cache: Cache
) -> Rotary | None:
    """Returns the rotary embedding of a call; None without cos and sin. Raises ValueError where
    flash-attn would, and NotImplementedError for new tokens of 8 bits."""
    if (cos is None) != (sin is None):
        raise ValueError("rotary_cos is given without rotary_sin, or rotary_sin without rotary_cos")
    if cos is None:
        return None
    if new is None:
        raise ValueError(
            "rotary_cos is given without k and v: it turns new tokens, and q with them"
        )
    if new.k.dtype.itemsize == 1:
        raise NotImplementedError(f"rotary_cos is given, and k is {new.k.dtype}")
    rotary = Rotary(cos, sin, interleaved, new.k.shape[-1])
    if rotary.n_positions < cache.capacity:
        raise ValueError(
            f"rotary_cos has {rotary.n_positions} positions, and the cache room for "
            f"{cache.capacity} tokens"
        )
    return rotary


def attend_cache(
    queries: Queries,
    cache: Cache,
    *,
    new: New | None,
    rotary: Rotary | None,
    lengths: Tensor | None,
    leftpad: Tensor | None,
    rotary_seqlens: Tensor | None = None,
    **options: Any,
) -> Any:
    """Returns O of queries over the cache, after new tokens have been written to it, or (O, LSE)
    with return_lse=True.

    lengths         [batch] int32: tokens of each sequence before the new ones; None: all of the
                    cache
    leftpad         [batch] int32: tokens at the beginning of the cache that do not count, though
                    they count in lengths
    rotary_seqlens  [batch] int32: the position of the first new token and query; None: lengths
    options         keywords of torch_ops.flash_attn_func
    """
    if new is not None:
        if lengths is None:
            raise ValueError("k and v are given without cache_seqlens: where should they go?")
        starts = lengths if rotary_seqlens is None else rotary_seqlens
        tokens = _tokens(new.k, new.cu_seqlens)
        k, v = new.k, new.v
        if rotary is not None:
            k = rotary.rotate(k, tokens.positions(starts))
            queries = _rotated(queries, rotary, starts, is_ordered=_is_ordered(options))
        k, v = (x.reshape(-1, *x.shape[-2:]) for x in (k, v))
        cache.append(k, v, tokens, lengths)
        lengths = lengths + tokens.lengths
    return _attend(queries, cache, lengths, leftpad, options)


def _attend(
    queries: Queries,
    cache: Cache,
    lengths: Tensor | None,
    leftpad: Tensor | None,
    options: dict[str, Any],
) -> Any:
    k, v, where = cache.options(leftpad)
    if lengths is None and where:
        shape = (queries.batch,)
        lengths = torch.full(shape, cache.capacity, dtype=torch.int32, device=k.device)
    if leftpad is not None:
        lengths = (lengths - leftpad).clamp(min=0)
    options = {**options, **where, "seqused_k": lengths}
    if queries.cu_seqlens is None:
        return attend_padded(queries.q, k, v, **options)
    return attend_ragged(
        queries.q,
        k,
        v,
        cu_seqlens_q=queries.cu_seqlens,
        max_seqlen_q=queries.max_seqlen,
        **options,
    )


def _tokens(x: Tensor, cu_seqlens: Tensor | None) -> Tokens:
    if cu_seqlens is not None:
        return Tokens.ragged(x.shape[0], cu_seqlens)
    return Tokens.padded(*x.shape[:2], x.device)


def _is_ordered(options: dict[str, Any]) -> bool:
    """Returns whether queries have positions of their own: where every query sees every key,
    flash-attn gives all of them the position of the first."""
    return options["causal"] or options["window_size"] != (-1, -1)


def _rotated(queries: Queries, rotary: Rotary, starts: Tensor, is_ordered: bool) -> Queries:
    q = queries.q
    tokens = _tokens(q, queries.cu_seqlens)
    position = tokens.positions(starts) if is_ordered else tokens.of_sequences(starts)
    turned = rotary.rotate(q, position)
    return Queries(turned, queries.cu_seqlens, queries.max_seqlen)
