"""This module has FlashAttention-3's functions: those of the module flash_attn_interface.

Names, order and defaults of the arguments are that module's, and so are results: O in q's type
(bfloat16 if q is float8_e4m3fn), or (O, LSE). A row that sees no key has O = 0 and LSE = -infinity.

torch records the gradients of q, k, v and qkv, also those of LSE.

Arguments that change no result are taken and ignored: num_splits, pack_gqa, deterministic
(gradients always are), scheduler_metadata. On a CUDA device a call leaves sm_margin multiprocessors
to others. qv outside of a cache of latent attention, new tokens for a cache in which the d_head of
V is not that of K, and other tensors that require a gradient raise NotImplementedError.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from .. import torch_ops
from . import _quick
from ._arguments import (
    contiguous_rows,
    ends_of,
    lengths_of,
    multiprocessors,
    page_table_of,
    refuse,
    refuse_beside_qv,
    refuse_foreign,
    refuse_foreign_of_cache,
    softmax_options,
)
from ._cache import Cache
from ._call import attend_padded, attend_ragged
from ._kvcache import Queries, attend_cache, lengths_of_cache, new_tokens, rotary_of
from ._latent import join_latent
from ._packed import attend_packed
from ._scales import scales_of


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """O = softmax(softmax_scale * Q K^T, masked) V.

    q                  [batch, seqlen_q, n_heads, d_head]
    k, v               [batch, seqlen_k, n_heads_kv, d_head]; v may have a d_head of its own, which
                       is that of O
    q_descale, k_descale, v_descale  float32 [batch, n_heads_kv]: scales of float8_e4m3fn elements
    attention_chunk    keys of a chunk: a query sees only those of its own; 0: none
    return_attn_probs  also return LSE, float32 [batch, n_heads, seqlen_q]
    """
    is_plain = qv is q_descale is k_descale is v_descale is None and sm_margin == 0
    if is_plain and _quick.is_possible():
        mask = softmax_scale, causal, window_size, softcap, attention_chunk
        found = _quick.attend(q, k, v, mask, return_attn_probs)
        if found is not None:
            return found
    refuse(qv=qv)
    needed = {"q": q, "k": k, "v": v}
    scales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    refuse_foreign(needed, are_derived=True, **scales)
    scales = scales_of(q, k, q_descale, k_descale, v_descale)
    options = softmax_options(softmax_scale, causal, window_size, softcap, attention_chunk)
    options.update(multiprocessors(q, sm_margin))
    return attend_padded(q, k, v, return_lse=return_attn_probs, **options, **scales)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes flash_attn_func with all in one tensor: qkv [batch, seqlen, 3, n_heads, d_head], or
    [batch, seqlen, num_heads_q + 2 * n_heads_kv, d_head] with num_heads_q."""
    refuse_foreign({"qkv": qkv}, are_derived=True)
    split = partial(_unpacked, num_heads_q=num_heads_q)
    if q_descale is k_descale is v_descale is None and qkv.dtype.itemsize > 1:
        options = softmax_options(softmax_scale, causal, window_size, softcap, attention_chunk)
        options.update(multiprocessors(qkv, sm_margin))
        return attend_packed(None, qkv, split, return_lse=return_attn_probs, **options)
    return flash_attn_func(
        *split(qkv),
        softmax_scale,
        causal,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        window_size=window_size,
        attention_chunk=attention_chunk,
        softcap=softcap,
        sm_margin=sm_margin,
        return_attn_probs=return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes flash_attn_func over a ragged batch: sequences of different lengths, one after the
    other.

    q                  [total_q, n_heads, d_head], or padded where cu_seqlens_q is None
    k, v               [total_k, n_heads_kv, d_head], or padded where cu_seqlens_k is None; v may
                       have a d_head of its own, as in flash_attn_func
    cu_seqlens_q       [batch + 1] int32: sequence b has the rows cu_seqlens_q[b] up to
                       cu_seqlens_q[b + 1] of q
    cu_seqlens_k       the same for k and v
    max_seqlen_q       no sequence of q is longer; None: the number of rows of q
    max_seqlen_k       the same for k
    seqused_q          [batch] int32: only the first seqused_q[b] queries of sequence b exist; rows
                       of O and LSE beyond them are not written
    seqused_k          [batch] int32: only the first seqused_k[b] keys of sequence b exist
    return_attn_probs  also return LSE, float32 [n_heads, total_q]
    """
    refuse(qv=qv)
    refuse_foreign(
        {"q": q, "k": k, "v": v},
        are_derived=True,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
    )
    scales = scales_of(q, k, q_descale, k_descale, v_descale)
    return attend_ragged(
        q,
        k,
        v,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        seqused_q=contiguous_rows(seqused_q),
        seqused_k=contiguous_rows(seqused_k),
        return_lse=return_attn_probs,
        **softmax_options(softmax_scale, causal, window_size, softcap, attention_chunk),
        **multiprocessors(q, sm_margin),
        **scales,
    )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes attention over a cache, to which new tokens may be appended first, in place.

    q                   [batch, seqlen_q, n_heads, d_head], or with cu_seqlens_q [total_q, n_heads,
                        d_head]
    k_cache, v_cache    [batch or more, capacity, n_heads_kv, d_head], or pages, [n_pages,
                        page_size, n_heads_kv, d_head]; never copied. Without k and v, v_cache may
                        have a d_head of its own
    k, v                [batch, seqlen_new, n_heads_kv, d_head], or with cu_seqlens_k_new
                        [total_new, n_heads_kv, d_head]: written to the cache behind the first
                        cache_seqlens[b] tokens of each sequence, divided by k_descale and v_descale
                        where the cache alone is of float8_e4m3fn
    qv                  [batch, seqlen_q, n_heads, d_head of v_cache], or with cu_seqlens_q without
                        the batch: scores are those of Q K^T + Qv V^T, as in decode of latent
                        attention (MLA); without k, v and rotary_cos. v_cache and k_cache are
                        neighbouring columns of one tensor, [..., d_head of v_cache + d_head]
    rotary_cos, rotary_sin  [seqlen_ro, rotary_dim / 2]: turn k, and q, to the positions p, p + 1,
                        ...; all of q to p where there is neither a causal mask nor a window
    rotary_seqlens      p, int32 [batch]; None: cache_seqlens
    cache_seqlens       tokens in the cache before k: int32 [batch], or one int for all; None: all
    cache_batch_idx     [batch] int32: the entry of the cache, or the row of page_table, that each
                        sequence has
    cache_leftpad       [batch] int32: tokens at the beginning that do not count
    page_table          [rows, pages] int32: the pages of each sequence, in order
    cu_seqlens_q, cu_seqlens_k_new  [batch + 1] int32: the rows of q, and of k and v, by sequence
    max_seqlen_q        no sequence of q is longer; None: the number of rows of q
    q_descale, k_descale, v_descale  float32 [batch, n_heads_kv]: scales of float8_e4m3fn elements
    return_softmax_lse  return (O, LSE, and two empty tensors in the place of partial results); LSE
                        is float32 [batch, n_heads, seqlen_q], or [n_heads, total_q]
    """
    has_scales = not q_descale is k_descale is v_descale is None
    has_order = not cache_batch_idx is cache_leftpad is rotary_seqlens is None
    is_ragged = not cu_seqlens_q is cu_seqlens_k_new is None
    is_plain = qv is None and sm_margin == 0 and not (has_scales or has_order or is_ragged)
    if is_plain and _quick.is_possible():
        mask = softmax_scale, causal, window_size, softcap, attention_chunk
        rotary = rotary_cos, rotary_sin, rotary_interleaved
        found = _quick.step(
            q, k_cache, v_cache, k, v, rotary, cache_seqlens, page_table, mask, return_softmax_lse
        )
        if found is not None:
            return _with_partials(found) if return_softmax_lse else found
    refuse_foreign_of_cache(
        q,
        k_cache,
        v_cache,
        k,
        v,
        rotary_cos,
        rotary_sin,
        cache_seqlens,
        cache_batch_idx,
        cache_leftpad,
        qv=qv,
        page_table=page_table,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k_new=cu_seqlens_k_new,
        rotary_seqlens=rotary_seqlens,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
    )
    if qv is not None:
        refuse_beside_qv(k=k, rotary_cos=rotary_cos)
        q, k_cache = join_latent(q, k_cache, v_cache, qv)
    scales = scales_of(q, k_cache, q_descale, k_descale, v_descale)
    new_scales = {"k_descale": k_descale, "v_descale": v_descale}
    queries = Queries(q, ends_of("cu_seqlens_q", cu_seqlens_q), max_seqlen_q)
    table = page_table_of("page_table", page_table)
    cache = Cache(k_cache, v_cache, table, cache_batch_idx, queries.batch)
    new = new_tokens(k, v, cache, cu_seqlens_k_new)
    found = attend_cache(
        queries,
        cache,
        new=new,
        rotary=rotary_of(rotary_cos, rotary_sin, rotary_interleaved, new, cache),
        lengths=lengths_of_cache(cache_seqlens, cache),
        leftpad=lengths_of("cache_leftpad", cache_leftpad, queries.batch),
        rotary_seqlens=lengths_of("rotary_seqlens", rotary_seqlens, queries.batch),
        new_scales=new_scales,
        return_lse=return_softmax_lse,
        **softmax_options(softmax_scale, causal, window_size, softcap, attention_chunk),
        **multiprocessors(q, sm_margin),
        **scales,
    )
    return _with_partials(found) if return_softmax_lse else found


def flash_attn_combine(
    out_partial: Tensor,
    lse_partial: Tensor,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns (O, LSE) merged from partial results over disjoint sets of keys.

    out_partial  [num_splits, batch, seqlen, n_heads, d_head]
    lse_partial  float32 [num_splits, batch, seqlen, n_heads]
    out          tensor to write O to, [batch, seqlen, n_heads, d_head]; None: a new one
    out_dtype    O's type where out is None; None: that of out_partial

    LSE is float32 [batch, seqlen, n_heads].
    """
    refuse_foreign({"out_partial": out_partial, "lse_partial": lse_partial}, out=out)
    if lse_partial.ndim != 4:
        raise ValueError(f"lse_partial has {lse_partial.ndim} axes, not 4")
    out, lse = torch_ops.flash_combine(
        contiguous_rows(out_partial),
        lse_partial.transpose(-1, -2),
        dtype=out_dtype if out is None else None,
        return_lse=True,
        out=out,
    )
    return out, lse.transpose(-1, -2)


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Tensor:
    """Returns an empty int32 tensor on the device of cache_seqlens: kernels here plan for
    themselves, and scheduler_metadata is ignored where it is passed on."""
    refuse_foreign({"cache_seqlens": cache_seqlens})
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)


def _with_partials(found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out, lse = found
    return out, lse, lse.new_empty(0), lse.new_empty(0)


def _unpacked(qkv: Tensor, num_heads_q: int | None) -> tuple[Tensor, ...]:
    shape = tuple(qkv.shape)
    if qkv.ndim == 5 and shape[2] == 3:
        return qkv.unbind(dim=2)
    if qkv.ndim != 4 or num_heads_q is None or (shape[2] - num_heads_q) % 2:
        raise ValueError(
            f"qkv has shape {shape} and num_heads_q is {num_heads_q}: neither [batch, seqlen, 3, "
            "n_heads, d_head] nor [batch, seqlen, num_heads_q + 2 * n_heads_kv, d_head]"
        )
    n_heads_kv = (shape[2] - num_heads_q) // 2
    return qkv.split([num_heads_q, n_heads_kv, n_heads_kv], dim=2)


__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]
