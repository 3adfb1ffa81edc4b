"""This module has FlashAttention-2's functions: those of the package flash_attn, version 2.8.

Names, order and defaults of the arguments are flash_attn's, and so are results: O in q's type, and
with return_attn_probs=True (O, LSE, S_dmask), where S_dmask is empty, as it is there without
dropout. A row that sees no key has O = 0 and LSE = +infinity.

torch records the gradients of q, k, v, kv and qkv, also those of LSE.

With dropout_p weights are dropped by a state of torch's generator of q's device, others than
flash_attn drops; return_attn_probs, whose S_dmask would hold them, raises NotImplementedError then.

Arguments that change no result are taken and ignored: deterministic (gradients always are),
num_splits. Other tensors that require a gradient raise NotImplementedError.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Union

import torch
from torch import Tensor

from .._torch.dropout import rng_state_of
from . import _quick
from ._arguments import (
    contiguous_rows,
    lengths_of,
    page_table_of,
    refuse_foreign,
    refuse_foreign_of_cache,
    refuse_other_v,
    refuse_probabilities,
    softmax_options,
)
from ._cache import Cache
from ._call import attend_padded, attend_ragged
from ._kvcache import Queries, attend_cache, lengths_of_cache, new_tokens, rotary_of
from ._packed import attend_packed

Result = Union[Tensor, tuple[Tensor, Tensor, Tensor]]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """O = softmax(softmax_scale * Q K^T, masked) V.

    q                  [batch, seqlen_q, n_heads, d_head]
    k, v               [batch, seqlen_k, n_heads_kv, d_head]
    alibi_slopes       [n_heads] or [batch, n_heads] float32: -slope * |i + seqlen_k - seqlen_q - j|
                       joins the score of query i and key j
    return_attn_probs  also return LSE, float32 [batch, n_heads, seqlen_q], and an empty S_dmask
    """
    if dropout_p == 0 and alibi_slopes is None and _quick.is_possible():
        mask = softmax_scale, causal, window_size, softcap, 0
        found = _quick.attend(q, k, v, mask, return_attn_probs)
        if found is not None and k.shape == v.shape:
            return _result(found)
    _refuse(dropout_p, return_attn_probs, {"q": q, "k": k, "v": v}, alibi_slopes=alibi_slopes)
    options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes)
    options.update(_dropout(dropout_p, q))
    refuse_other_v(k, v)
    return _result(attend_padded(q, k, v, return_lse=return_attn_probs, **options))


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """Computes flash_attn_func with K and V in one tensor: kv [batch, seqlen_k, 2, n_heads_kv,
    d_head]."""
    _refuse(dropout_p, return_attn_probs, {"q": q, "kv": kv}, alibi_slopes=alibi_slopes)
    options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes)
    options.update(_dropout(dropout_p, q))
    return _result(attend_packed(q, kv, _parts_of_kv, return_lse=return_attn_probs, **options))


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """Computes flash_attn_func with all in one tensor: qkv [batch, seqlen, 3, n_heads, d_head]."""
    _refuse(dropout_p, return_attn_probs, {"qkv": qkv}, alibi_slopes=alibi_slopes)
    options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes)
    options.update(_dropout(dropout_p, qkv))
    return _result(attend_packed(None, qkv, _parts_of_qkv, return_lse=return_attn_probs, **options))


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Result:
    """Computes flash_attn_func over a ragged batch: sequences of different lengths, one after the
    other.

    q                  [total_q, n_heads, d_head]
    k, v               [total_k, n_heads_kv, d_head], or pages, [n_pages, page_size, n_heads_kv,
                       d_head], of any page_size
    cu_seqlens_q       [batch + 1] int32: sequence b has the rows cu_seqlens_q[b] up to
                       cu_seqlens_q[b + 1] of q
    cu_seqlens_k       the same for k and v; with pages its differences are the lengths
    max_seqlen_q       no sequence of q is longer; None: the number of rows of q
    max_seqlen_k       the same for k; with pages None is what a row of block_table holds
    block_table        [batch, pages] int32: the pages of each sequence, in order
    return_attn_probs  also return LSE, float32 [n_heads, total_q], and an empty S_dmask
    """
    ends = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    needed = {"q": q, "k": k, "v": v, **ends}
    _refuse(
        dropout_p, return_attn_probs, needed, block_table=block_table, alibi_slopes=alibi_slopes
    )
    refuse_other_v(k, v)
    options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes)
    options.update(_dropout(dropout_p, q))
    if block_table is not None:
        options["page_table"] = page_table_of("block_table", block_table)
    found = attend_ragged(
        q,
        k,
        v,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        return_lse=return_attn_probs,
        **options,
    )
    return _result(found)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """Computes flash_attn_varlen_func with K and V in one tensor: kv [total_k, 2, n_heads_kv,
    d_head]."""
    ends = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    _refuse(dropout_p, return_attn_probs, {"q": q, "kv": kv, **ends}, alibi_slopes=alibi_slopes)
    found = attend_packed(
        q,
        kv,
        _parts_of_ragged_kv,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        return_lse=return_attn_probs,
        **_options(softmax_scale, causal, window_size, softcap, alibi_slopes),
        **_dropout(dropout_p, q),
    )
    return _result(found)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int | None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """Computes flash_attn_varlen_func with all in one tensor: qkv [total, 3, n_heads, d_head]."""
    _refuse(
        dropout_p,
        return_attn_probs,
        {"qkv": qkv, "cu_seqlens": cu_seqlens},
        alibi_slopes=alibi_slopes,
    )
    found = attend_packed(
        None,
        qkv,
        _parts_of_ragged_qkv,
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_k=cu_seqlens,
        max_seqlen_q=max_seqlen,
        max_seqlen_k=max_seqlen,
        return_lse=return_attn_probs,
        **_options(softmax_scale, causal, window_size, softcap, alibi_slopes),
        **_dropout(dropout_p, qkv),
    )
    return _result(found)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes attention over a cache, to which new tokens may be appended first, in place.

    q                   [batch, seqlen_q, n_heads, d_head]
    k_cache, v_cache    [batch or more, capacity, n_heads_kv, d_head], or pages, [n_pages,
                        page_size, n_heads_kv, d_head]; never copied
    k, v                [batch, seqlen_new, n_heads_kv, d_head]: written to the cache behind the
                        first cache_seqlens[b] tokens of each sequence
    rotary_cos, rotary_sin  [seqlen_ro, rotary_dim / 2]: turn k, and q, to the positions
                        cache_seqlens[b], cache_seqlens[b] + 1, ...; all of q to the first of them
                        where there is neither a causal mask nor a window
    cache_seqlens       tokens in the cache before k: int32 [batch], or one int for all; None: all
    cache_batch_idx     [batch] int32: the entry of the cache that each sequence has
    cache_leftpad       [batch] int32: tokens at the beginning that do not count
    block_table         [batch, pages] int32: the pages of each sequence, in order
    return_softmax_lse  also return LSE, float32 [batch, n_heads, seqlen_q]
    """
    if cache_batch_idx is cache_leftpad is alibi_slopes is None and _quick.is_possible():
        mask = softmax_scale, causal, window_size, softcap, 0
        rotary = rotary_cos, rotary_sin, rotary_interleaved
        found = _quick.step(
            q, k_cache, v_cache, k, v, rotary, cache_seqlens, block_table, mask, return_softmax_lse
        )
        if found is not None:
            return _result(found)[:2] if return_softmax_lse else found
    refuse_foreign_of_cache(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx,
        cache_leftpad, block_table=block_table, alibi_slopes=alibi_slopes,
    )  # fmt: skip
    refuse_other_v(k_cache, v_cache)
    if block_table is not None and cache_batch_idx is not None:
        raise ValueError("cache_batch_idx is given with block_table: reorder the table's rows")
    queries = Queries(q)
    table = page_table_of("block_table", block_table)
    cache = Cache(k_cache, v_cache, table, cache_batch_idx, queries.batch)
    new = new_tokens(k, v, cache)
    found = attend_cache(
        queries,
        cache,
        new=new,
        rotary=rotary_of(rotary_cos, rotary_sin, rotary_interleaved, new, cache),
        lengths=lengths_of_cache(cache_seqlens, cache),
        leftpad=lengths_of("cache_leftpad", cache_leftpad, queries.batch),
        return_lse=return_softmax_lse,
        **_options(softmax_scale, causal, window_size, softcap, alibi_slopes),
    )
    return _result(found)[:2] if return_softmax_lse else found


def _refuse(
    dropout_p: float,
    return_attn_probs: bool,
    needed: dict[str, Tensor],
    **optional: Tensor | None,
) -> None:
    refuse_probabilities(dropout_p, return_attn_probs)
    refuse_foreign(needed, are_derived=True, **optional)


def _options(
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: Tensor | None,
) -> dict[str, Any]:
    options = softmax_options(softmax_scale, causal, window_size, softcap)
    return {**options, "alibi_slopes": contiguous_rows(alibi_slopes)}


def _dropout(dropout_p: float, q: Tensor) -> dict[str, Any]:
    """Returns the binding's keywords for dropout, none without."""
    if dropout_p == 0:
        return {}
    return {"dropout_p": dropout_p, "rng_state": rng_state_of(dropout_p, None, q)}


def _unpacked(name: str, packed: Tensor, *, n_parts: int, n_axes: int) -> tuple[Tensor, ...]:
    """Returns the parts of a packed tensor, which lie side by side along its third axis from the
    end. Raises ValueError where the tensor does not have that shape."""
    if packed.ndim != n_axes or packed.shape[-3] != n_parts:
        raise ValueError(
            f"{name} has shape {tuple(packed.shape)}: it must have {n_axes} axes, the third from "
            f"the end of {n_parts}"
        )
    return packed.unbind(dim=-3)


_parts_of_kv = partial(_unpacked, "kv", n_parts=2, n_axes=5)
_parts_of_qkv = partial(_unpacked, "qkv", n_parts=3, n_axes=5)
_parts_of_ragged_kv = partial(_unpacked, "kv", n_parts=2, n_axes=4)
_parts_of_ragged_qkv = partial(_unpacked, "qkv", n_parts=3, n_axes=4)


def _result(found: Any) -> Any:
    """Returns O as it is, and (O, LSE) as (O, LSE, S_dmask) with an empty S_dmask. The LSE of rows
    that see no key becomes +infinity, as in FlashAttention-2."""
    if isinstance(found, Tensor):
        return found
    out, lse = found
    fill = lse.masked_fill if lse.requires_grad else lse.masked_fill_
    return out, fill(lse == -torch.inf, torch.inf), out.new_empty(0)


__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
