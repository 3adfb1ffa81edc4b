"""This module defines torch.ops.flash_attn_3.fwd as FlashAttention-3's extension flash_attn_3._C
does, for the process that imports it. It has no other operation of that extension."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import fa3
from ._arguments import refuse

_SCHEMA = (
    "fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new=None, Tensor(v_new!)? v_new=None, "
    "Tensor? q_v=None, Tensor(out!)? out=None, Tensor? cu_seqlens_q=None, "
    "Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None, "
    "Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
    "Tensor? page_table=None, Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, "
    "Tensor? rotary_cos=None, Tensor? rotary_sin=None, Tensor? seqlens_rotary=None, "
    "Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, "
    "float? softmax_scale=None, bool is_causal=False, int window_size_left=-1, "
    "int window_size_right=-1, int attention_chunk=0, float softcap=0.0, "
    "bool is_rotary_interleaved=False, Tensor? scheduler_metadata=None, int num_splits=0, "
    "bool? pack_gqa=None, int sm_margin=0) -> (Tensor(out!), Tensor, Tensor, Tensor)"
)


def _fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_new: Tensor | None = None,
    v_new: Tensor | None = None,
    q_v: Tensor | None = None,
    out: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    page_table: Tensor | None = None,
    kv_batch_idx: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    seqlens_rotary: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    is_rotary_interleaved: bool = False,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns (O, LSE, two empty tensors), computed by flash_attn_with_kvcache or
    flash_attn_varlen_func of fa3."""
    refuse(q_v=q_v)
    options: dict[str, Any] = {
        "q_descale": q_descale,
        "k_descale": k_descale,
        "v_descale": v_descale,
        "softmax_scale": softmax_scale,
        "causal": is_causal,
        "window_size": (window_size_left, window_size_right),
        "attention_chunk": attention_chunk,
        "softcap": softcap,
        "sm_margin": sm_margin,
    }
    of_cache = {
        "k": k_new,
        "v": v_new,
        "rotary_cos": rotary_cos,
        "rotary_sin": rotary_sin,
        "cache_batch_idx": kv_batch_idx,
        "cache_leftpad": leftpad_k,
        "page_table": page_table,
        "cu_seqlens_k_new": cu_seqlens_k_new,
        "rotary_seqlens": seqlens_rotary,
    }
    if any(argument is not None for argument in of_cache.values()):
        _refuse_with_cache(seqused_q=seqused_q, cu_seqlens_k=cu_seqlens_k)
        o, lse, *_ = fa3.flash_attn_with_kvcache(
            q,
            k,
            v,
            cache_seqlens=seqused_k,
            cu_seqlens_q=cu_seqlens_q,
            max_seqlen_q=max_seqlen_q,
            rotary_interleaved=is_rotary_interleaved,
            return_softmax_lse=True,
            **of_cache,
            **options,
        )
    else:
        o, lse = fa3.flash_attn_varlen_func(
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            max_seqlen_q,
            max_seqlen_k,
            seqused_q,
            seqused_k,
            return_attn_probs=True,
            **options,
        )
    if out is not None:
        o = out.copy_(o)
    return o, lse, lse.new_empty(0), lse.new_empty(0)


def _refuse_with_cache(**arguments: Tensor | None) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"{name} is given with an argument of a cache")


_LIBRARY = torch.library.Library("flash_attn_3", "DEF")
_LIBRARY.define(_SCHEMA)
# Compilers decompose this operator, so that they see those of flashattn.torch_ops in its place.
_LIBRARY.impl("fwd", _fwd, "CompositeImplicitAutograd")

__all__: list[str] = []
