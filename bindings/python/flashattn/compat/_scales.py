"""This module maps scales of e4m3, which FlashAttention-3 has for Q, K and V, and finds kernels for
a Q of e4m3: on the CPU each takes one, on CUDA devices those that multiply e4m3 as such."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ..config import DType, Feature, kernels

_E4M3 = torch.float8_e4m3fn
# A kernel must cover these features where torch_ops.flash_attn_func is given the arguments.
_FEATURES = {
    "cu_seqlens_q": Feature.VARLEN,
    "cu_seqlens_k": Feature.VARLEN,
    "seqused_q": Feature.VARLEN,
    "seqused_k": Feature.VARLEN,
    "leftpad_k": Feature.VARLEN,
    "page_table": Feature.VARLEN | Feature.PAGED,
    "page_rows": Feature.VARLEN | Feature.PAGED,
}


def scales_of(
    q: Tensor,
    k: Tensor,
    q_descale: Tensor | None,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
) -> dict[str, Tensor | None]:
    """Returns the binding's keywords for the scales. Without e4m3 in k they are ignored, as in
    FlashAttention-3."""
    if k.dtype != _E4M3:
        if q.dtype == _E4M3:
            raise ValueError(f"q is {q.dtype}, and k {k.dtype}: k and v must be {_E4M3} too")
        return {}
    if q.dtype == _E4M3:
        return {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    if q_descale is not None:
        raise ValueError(f"q_descale is given, and q is {q.dtype}, which has no scale")
    return {"k_descale": k_descale, "v_descale": v_descale}


def in_16_bits(q: Tensor, options: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """Returns q of e4m3 as bfloat16, which holds its values exactly, and the options without its
    scale, which multiplies that of k, since scores are products of both."""
    options = dict(options)
    of_q, of_k = options.pop("q_descale", None), options.get("k_descale")
    if of_q is not None:
        if of_k is not None and of_k.shape != of_q.shape:
            raise ValueError(
                f"q_descale has shape {tuple(of_q.shape)}, and k_descale {tuple(of_k.shape)}"
            )
        options["k_descale"] = of_q if of_k is None else of_q * of_k
    return q.to(torch.bfloat16), options


def needs_16_bits(q: Tensor, v: Tensor, options: dict[str, Any]) -> bool:
    """Returns whether q is of e4m3 on a CUDA device, and no kernel there multiplies it as such with
    these keywords of torch_ops.flash_attn_func."""
    if q.dtype != _E4M3 or q.is_cpu:
        return False
    if q.shape[-1] % 16 or v.shape[-1] % 16:
        return True  # kernels read rows of such a q in whole 16 bytes
    needed = Feature(0)
    for name, features in _FEATURES.items():
        if options.get(name) is not None:
            needed |= features
    if options.get("causal"):
        needed |= Feature.CAUSAL
    if options.get("window_size", (-1, -1)) != (-1, -1) or options.get("attention_chunk"):
        needed |= Feature.WINDOW
    if options.get("softcap"):
        needed |= Feature.SOFTCAP
    d_head = max(q.shape[-1], v.shape[-1])
    return not any(d_head <= most and needed in features for most, features in _products())


def may_be_refused(q: Tensor) -> bool:
    """Returns whether q is of e4m3, and a kernel that looks right may refuse a call for its strides
    or sizes; in compiled graphs nobody can look."""
    return q.dtype == _E4M3 and not q.is_cpu and not torch.compiler.is_compiling()


@torch.compiler.assume_constant_result
def _products() -> tuple[tuple[int, Feature], ...]:
    return _runnable_products()


@functools.cache
def _runnable_products() -> tuple[tuple[int, Feature], ...]:
    """Returns the d_head and the features of each kernel that multiplies e4m3 as such, and that the
    current CUDA device can run."""
    return tuple(
        (kernel.config.d_head, Feature(kernel.config.features))
        for kernel in kernels()
        if kernel.config.operand_dtype == DType.E4M3 and kernel.is_runnable
    )
