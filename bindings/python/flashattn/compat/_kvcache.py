"""This module computes attention over a cache by two calls of the library: the first turns queries
and new tokens and writes the latter into the cache, the second computes.

The functions flash_attn_with_kvcache of fa2 and fa3 both call it, with fewer or more arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import torch_ops
from ._arguments import contiguous_rows, lengths_of
from ._cache import Cache
from ._call import attend_padded, attend_ragged

_E4M3 = torch.float8_e4m3fn
# _NAMES holds names of the binding's arguments, and of flash-attn's for the same.
_NAMES = (
    ("seqused_k", "cache_seqlens"),
    ("cu_seqlens_new", "cu_seqlens_k_new"),
    ("page_rows", "cache_batch_idx"),
    ("rotary_start", "rotary_seqlens"),
)


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
    v. Raises ValueError for tokens whose type or shape does not fit the cache: their type is that
    of the cache, or any where the cache is of float8_e4m3fn."""
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
        becomes_e4m3 = of.dtype == _E4M3 and new.dtype == k.dtype
        if new.dtype != of.dtype and not becomes_e4m3:
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
) -> dict[str, Any] | None:
    """Returns the binding's keywords for the rotary embedding of a call; None without cos and sin.
    Raises ValueError where flash-attn would."""
    if (cos is None) != (sin is None):
        raise ValueError("rotary_cos is given without rotary_sin, or rotary_sin without rotary_cos")
    if cos is None:
        return None
    if new is None:
        raise ValueError(
            "rotary_cos is given without k and v: it turns new tokens, and q with them"
        )
    if cos.shape != sin.shape or cos.ndim != 2:
        raise ValueError(
            f"rotary_cos has shape {tuple(cos.shape)}, and rotary_sin {tuple(sin.shape)}: both "
            "must be [seqlen_ro, rotary_dim / 2]"
        )
    if 2 * cos.shape[1] > new.k.shape[-1]:
        raise ValueError(f"rotary_dim is {2 * cos.shape[1]}, and d_head only {new.k.shape[-1]}")
    if cos.shape[0] < cache.capacity:
        raise ValueError(
            f"rotary_cos has {cos.shape[0]} positions, and the cache room for "
            f"{cache.capacity} tokens"
        )
    if cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    return {
        "rotary_cos": contiguous_rows(cos),
        "rotary_sin": contiguous_rows(sin),
        "rotary_interleaved": bool(interleaved),
    }


def attend_cache(
    queries: Queries,
    cache: Cache,
    *,
    new: New | None,
    rotary: dict[str, Any] | None,
    lengths: Tensor | None,
    leftpad: Tensor | None,
    rotary_seqlens: Tensor | None = None,
    new_scales: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Returns O of queries over the cache, after new tokens have been written to it, or (O, LSE)
    with return_lse=True.

    lengths         [batch] int32: tokens of each sequence before the new ones; None: all of the
                    cache
    leftpad         [batch] int32: tokens at the beginning of the cache that do not count, though
                    they count in lengths
    rotary_seqlens  [batch] int32: the position of the first new token and query; None: lengths
    new_scales      k_descale and v_descale, by which new tokens are divided that become e4m3
    options         keywords of torch_ops.flash_attn_func
    """
    if new is not None:
        if lengths is None:
            raise ValueError("k and v are given without cache_seqlens: where should they go?")
        if rotary is not None:
            at_start = not _is_ordered(options)
            rotary = {**rotary, "rotary_start": rotary_seqlens, "rotary_q_at_start": at_start}
        queries, lengths = _append(queries, cache, new, rotary, lengths, new_scales)
    return _attend(queries, cache, lengths, leftpad, options)


def _append(
    queries: Queries,
    cache: Cache,
    new: New,
    rotary: dict[str, Any] | None,
    lengths: Tensor,
    scales: dict[str, Any] | None,
) -> tuple[Queries, Tensor]:
    """Returns the queries, turned, and the lengths with the new tokens."""
    k, v, where = cache.options()
    k_new, v_new = contiguous_rows(new.k), contiguous_rows(new.v)
    where.update(seqused_k=lengths, cu_seqlens_new=new.cu_seqlens)
    k_scale = v_scale = None
    if scales and new.k.dtype != k.dtype:
        k_scale, v_scale = scales["k_descale"], scales["v_descale"]
    turned = {}
    if rotary is not None:
        turned = {"q": contiguous_rows(queries.q), "cu_seqlens_q": queries.cu_seqlens, **rotary}
    after = torch.empty_like(lengths)
    turned.update(seqused_k_out=after, k_descale=k_scale, **where)
    try:
        q = torch_ops.flash_kv_append(k_new, v_new, k, v, v_descale=v_scale, **turned)
    except ValueError as error:
        error.args = (_renamed(str(error)),)
        raise
    if q is None:
        return queries, after
    return Queries(q, queries.cu_seqlens, queries.max_seqlen), after


def _renamed(message: str) -> str:
    """Returns a message of the binding with the names of flash-attn's arguments."""
    for name, other in _NAMES:
        message = message.replace(name, other)
    return message


def _attend(
    queries: Queries,
    cache: Cache,
    lengths: Tensor | None,
    leftpad: Tensor | None,
    options: dict[str, Any],
) -> Any:
    k, v, where = cache.options()
    if lengths is None and where:
        shape = (queries.batch,)
        lengths = torch.full(shape, cache.capacity, dtype=torch.int32, device=k.device)
    if leftpad is not None and cache.table is not None:
        k, v, where = cache.pages_of_tokens(leftpad)
        lengths, leftpad = (lengths - leftpad).clamp(min=0), None
    options = {**options, **where, "seqused_k": lengths, "leftpad_k": leftpad}
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


def _is_ordered(options: dict[str, Any]) -> bool:
    """Returns whether queries have positions of their own: where every query sees every key,
    flash-attn gives all of them the position of the first."""
    has_window = options["window_size"] != (-1, -1)
    return options["causal"] or has_window or options["attention_chunk"] > 0
