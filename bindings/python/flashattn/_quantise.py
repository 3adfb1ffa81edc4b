"""This module quantises Q, K and V to e4m3, and computes attention of them in one call."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import numpy as np

from . import _abi, _attention, _numbers, _stream, _tensor
from ._library import check, library
from ._stream import is_torch


class Quantised(NamedTuple):
    """Holds what quantise() returns.

    codes    the shape of x, of float8_e4m3fn: codes * descale is x, less the mean and turned where
             that was wanted
    descale  float32 [batch, n_scales], or with tokens=True the shape of x with one column
    mean     float32 [batch, n_heads, d_head], or None without minus_mean
    """

    codes: Any
    descale: Any
    mean: Any


def quantise(
    x: Any,
    *,
    n_scales: int | None = None,
    tokens: bool = False,
    minus_mean: bool = False,
    hadamard: bool = False,
    cu_seqlens: Any = None,
    max_seqlen: int | None = None,
) -> Quantised:
    """Quantises q, k or v to float8_e4m3fn, with scales that make the largest finite
    magnitude 448. What is not finite becomes NaN.

    x           [batch, seqlen, n_heads, d_head], or with cu_seqlens [total, n_heads, d_head], of
                float16, bfloat16 or float32
    n_scales    scales of a batch entry, which divide its heads: n_heads_kv for q; None: n_heads
    tokens      a scale for each token and head, which q_descale may be
    minus_mean  for k: each column of a head less its mean over the sequence. No O changes where
                there are no softcap and no sinks; LSE loses softmax_scale * q . mean
    hadamard    for q and k, both: their columns are turned by the same orthogonal matrix
    cu_seqlens  [batch + 1] int32, or a list, as in flash_attn_varlen_func
    max_seqlen  no sequence is longer; None where cu_seqlens is None

    Arrays in CUDA memory are torch's tensors; the call is enqueued on the stream that they name, as
    that of flash_attn_func. Raises as flash_attn_func.
    """
    stream = _stream.of_call(x=x, cu_seqlens=cu_seqlens)
    ragged = cu_seqlens is not None
    view = _tensor.tensor_view(x, "x", 3 if ragged else 4, stream)
    ends = _tensor.lengths_view(cu_seqlens, "cu_seqlens", None, stream) if ragged else None
    _tensor.check_same_device("x", view, cu_seqlens=ends)
    batch = _batch_of(view, ends)
    seqlen = _longest(view, ends, max_seqlen)
    n_heads, d_head = view.shape[-2:]
    by_token = _numbers.is_true("tokens", tokens)
    with_mean = _numbers.is_true("minus_mean", minus_mean)
    n = n_heads if n_scales is None else _numbers.int64("n_scales", n_scales)
    if n < 1 or n_heads % n:
        raise ValueError(f"n_scales is {n}: it does not divide n_heads, {n_heads}")
    shape = (*view.shape[:-1], 1) if by_token else (batch, n)
    codes = _tensor.empty(x, view.device, view.shape, "float8_e4m3fn", "codes")
    descale = _tensor.empty(x, view.device, shape, "float32", "descale")
    mean = None
    if with_mean:
        mean = _tensor.empty(x, view.device, (batch, n_heads, d_head), "float32", "mean")
    flags = _abi.FLASH_FLAG_BROADCAST if view.repeats else 0
    flags |= _abi.FLASH_QUANTISE_TOKENS if by_token else 0
    flags |= _abi.FLASH_QUANTISE_MINUS_MEAN if with_mean else 0
    if _numbers.is_true("hadamard", hadamard):
        flags |= _abi.FLASH_QUANTISE_HADAMARD
    args = _abi.flash_quantise_args_t(
        device=view.device,
        flags=flags,
        x=_tensor.c_tensor(view, ragged=ragged),
        codes=_tensor.c_tensor(_tensor.view(codes, "codes"), ragged=ragged),
        scale=_tensor.address(_tensor.view(descale, "descale")),
        mean=None if mean is None else _tensor.address(_tensor.view(mean, "mean")),
        cu_seqlens=_tensor.address(ends),
        batch=batch,
        seqlen=seqlen,
        n_heads=n_heads,
        n_scales=n,
        d_head=d_head,
    )
    check(library().flash_quantise(args, stream))
    return Quantised(codes, descale, mean)


def _batch_of(x: _tensor.View, ends: _tensor.View | None) -> int:
    if ends is None:
        return x.shape[0]
    batch = ends.shape[0] - 1
    if batch < 0:
        raise ValueError("cu_seqlens is empty: batch + 1 values, from 0 on")
    if ends.device == _abi.FLASH_DEVICE_CPU:
        end = _tensor.read_integer(ends, batch)
        if end != x.shape[0]:
            raise ValueError(f"cu_seqlens ends at {end}, x has {x.shape[0]} tokens")
    return batch


def _longest(x: _tensor.View, ends: _tensor.View | None, max_seqlen: int | None) -> int:
    longest = _numbers.bound("max_seqlen", max_seqlen)
    if ends is None:
        if longest is not None:
            raise ValueError("max_seqlen is given without cu_seqlens")
        return x.shape[1]
    if longest is None:
        raise ValueError("cu_seqlens is given without max_seqlen")
    return min(longest, x.shape[0])


def flash_attn_fp8(
    q: Any,
    k: Any,
    v: Any,
    *,
    q_tokens: bool = True,
    smooth: bool | None = None,
    hadamard: bool = True,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    out_dtype: str | None = None,
    **options: Any,
) -> Any:
    """Computes flash_attn_func of q, k and v, quantised to float8_e4m3fn; with cu_seqlens_q or
    cu_seqlens_k flash_attn_varlen_func.

    q_tokens    q has a scale for each token and head; else one for each K/V head
    smooth      the mean of each column of k over its sequence is taken off first; None: where there
                are no softcap and no sinks, which do not allow it
    hadamard    the columns of q and k are turned
    return_lse  also return LSE, of the scores before the mean was taken off
    out_dtype   type of O; None: that of q
    options     other keywords of that function, less pages, k_descale, v_descale and q_descale

    cu_seqlens_q, cu_seqlens_k, max_seqlen_q and max_seqlen_k are those of flash_attn_varlen_func.
    Keys that are not in use count in scales and means all the same.

    On the CPU kernels multiply fp32, which is exact to the quantised values; P is not rounded, nor
    for up to 32 rows (queries x query heads of a K/V head) on CUDA devices. For more rows devices
    of compute capability 9.0 multiply e4m3 up to a d_head of 256, and P is rounded to it; elsewhere
    such a Q is refused. Raises as flash_attn_func.
    """
    of_tokens_q = {"cu_seqlens": cu_seqlens_q, "max_seqlen": max_seqlen_q}
    of_tokens_k = {"cu_seqlens": cu_seqlens_k, "max_seqlen": max_seqlen_k}
    stream = _stream.of_call(q=q, k=k, v=v)
    view = _tensor.tensor_view(q, "q", 4 if cu_seqlens_q is None else 3, stream)
    n_heads_kv = _tensor.tensor_view(k, "k", 4 if cu_seqlens_k is None else 3, stream).shape[-2]
    smooths = _smooths(smooth, options)
    of_q = quantise(q, n_scales=None if q_tokens else n_heads_kv, tokens=q_tokens,
                    hadamard=hadamard, **of_tokens_q)  # fmt: skip
    of_k = quantise(k, minus_mean=smooths, hadamard=hadamard, **of_tokens_k)
    of_v = quantise(v, **of_tokens_k)
    options |= {"q_descale": of_q.descale, "k_descale": of_k.descale, "v_descale": of_v.descale}
    options |= {"out_dtype": out_dtype or view.dtype, "return_lse": return_lse}
    call = _attention.flash_attn_func
    if cu_seqlens_q is not None or cu_seqlens_k is not None:
        call = _attention.flash_attn_varlen_func
        options |= {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": max_seqlen_q}
        options |= {"cu_seqlens_k": cu_seqlens_k, "max_seqlen_k": max_seqlen_k}
    result = call(of_q.codes, of_k.codes, of_v.codes, **options)
    if not isinstance(result, tuple) or not smooths:
        return result
    o, lse = result
    lse += _lost(q, of_k.mean, cu_seqlens_q, options.get("softmax_scale"))
    return o, lse


def _smooths(smooth: bool | None, options: dict[str, Any]) -> bool:
    given = {"softcap": bool(options.get("softcap")), "sinks": options.get("sinks") is not None}
    present = [name for name, is_given in given.items() if is_given]
    if smooth is None:
        return not present
    smooths = _numbers.is_true("smooth", smooth)
    if smooths and present:
        raise ValueError(f"smooth is True, and {present[0]} is given: scores would not be the same")
    return smooths


def _lost(q: Any, mean: Any, cu_seqlens_q: Any, softmax_scale: float | None) -> Any:
    """Returns what scores lost: [batch, n_heads, seqlen_q], ragged [n_heads, total_q]."""
    scale = 1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    group = q.shape[-2] // mean.shape[-2]
    if is_torch(q):
        own = _of_tokens_torch(mean.repeat_interleave(group, 1), cu_seqlens_q, q)
        return (q.float() * own).sum(-1).transpose(-1, -2) * scale
    own = _of_tokens(np.repeat(mean, group, 1), cu_seqlens_q)
    lost = np.einsum("...hd,...hd->...h", np.asarray(q).astype(np.float32), own)
    return lost.swapaxes(-1, -2) * np.float32(scale)


def _of_tokens(of_sequences: np.ndarray, cu_seqlens: Any) -> np.ndarray:
    """Returns what belongs to the sequence of each token, of arrays [batch, n_heads, d_head]."""
    if cu_seqlens is None:
        return of_sequences[:, None]
    return np.repeat(of_sequences, np.diff(np.asarray(cu_seqlens)), 0)


def _of_tokens_torch(of_sequences: Any, cu_seqlens: Any, tokens: Any) -> Any:
    if cu_seqlens is None:
        return of_sequences[:, None]
    ends = sys.modules["torch"].as_tensor(cu_seqlens, device=tokens.device)
    return of_sequences.repeat_interleave(ends.diff(), 0, output_size=len(tokens))
