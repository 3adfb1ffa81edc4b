"""This module offers attention as operators of torch: for torch.compile, torch.export and CUDA
graphs, and for eager code, where a call costs the host a fraction of what flashattn.flash_attn_func
costs it.

    from flashattn.torch_ops import flash_attn_func

    o = flash_attn_func(q, k, v, causal=True)

flash_attn_func, flash_attn_varlen_func, flash_combine, flash_kv_append and quantise are those of
the package flashattn with the same arguments, less `config` and `workspace`, for torch tensors
alone. The operators are torch.ops.flashattn.fwd, varlen_fwd, decode and combine, each with the
overloads default (returns O), lse (returns O and LSE) and out (writes to `out` and `lse`),
kv_append, which writes to its arguments, quantise and its overload minus_mean, and bwd and
varlen_bwd, which compute gradients. docs/torch.md shows them.

Attention records gradients of q, k, v and sinks, less those of K and V in pages or of e4m3, and on
CUDA devices of a d_head above 256; other tensors that require one are refused while gradients are
recorded. Under torch.autocast q, k and v become the type of autocast. CUDA tensors are computed on
torch's current stream of their device, with working memory of torch's allocator.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from . import _numbers, _quantise
from ._torch import (
    append_operator,
    backward,
    direct,
    extension,
    foreign,
    quantise_operator,
    schemas,
)
from ._torch.append import append
from ._torch.arguments import Outputs
from ._torch.call import PLACES, Call, named
from ._torch.combine import combine
from ._torch.dropout import is_given, rng_state_of
from ._torch.forward import forward, lse_shape, type_of_o
from ._torch.registration import note_written

__all__ = [
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_combine",
    "flash_kv_append",
    "quantise",
]

backward.register()
_ops = torch.ops.flashattn
_RAGGED, _K_DESCALE, _V_DESCALE, _Q_DESCALE, _PAGE_SCALES = (
    PLACES[x] for x in ("ragged", "k_descale", "v_descale", "q_descale", "page_scales")
)
_AT_SCALES = schemas.NAMES_OF_APPEND.index("k_descale")
_ZERO = 0
_FLOAT32_MAX = 3.4028234663852886e38


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    diagonal_offset: int = 0,
    softcap: float = 0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    attn_mask: Tensor | None = None,
    mask_bits: Tensor | None = None,
    mask_keys: int | None = None,
    mask_head_scale: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    page_table: Tensor | None = None,
    v_page_table: Tensor | None = None,
    page_indptr: Tensor | None = None,
    page_rows: Tensor | None = None,
    page_holes: bool = False,
    k_descale: Tensor | float | None = None,
    v_descale: Tensor | float | None = None,
    q_descale: Tensor | float | None = None,
    dropout_p: float = 0,
    rng_state: Tensor | None = None,
    page_scales: bool = False,
    batch_invariant: bool = False,
    n_multiprocessors: int = 0,
    return_lse: bool = False,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    lse: Tensor | None = None,
) -> Any:
    """Computes attention as flashattn.flash_attn_func does, for torch tensors: see there for
    arguments, result and errors.

    Lengths and page tables are int32 tensors on the device of q, rows of tables also int64, and
    out_dtype is a type of torch. With dropout_p and without rng_state, that is drawn from torch's
    generator of q's device.
    Where torch records operators, it records flashattn::decode if K and V lie in pages, and
    flashattn::fwd otherwise.
    """
    try:
        left, right = window_size
    except (TypeError, ValueError):
        left, right = _numbers.window(window_size)  # which raises
    pages = bias = None
    if not page_table is v_page_table is page_indptr is page_rows is None:
        pages = page_table, v_page_table, page_indptr, page_rows
    if not alibi_slopes is attn_mask is mask_bits is mask_keys is mask_head_scale is None:
        bias = alibi_slopes, attn_mask, mask_bits, mask_keys, mask_head_scale
    call = (
        q, k, v, out, lse, return_lse, out_dtype, None, pages, bias, softmax_scale, causal, left,
        right, softcap, batch_invariant, k_descale, v_descale, sinks, seqused_q, seqused_k,
    )  # fmt: skip
    are_plain = attention_chunk is n_multiprocessors is diagonal_offset is _ZERO
    drops = is_given(dropout_p, rng_state)
    is_plain = are_plain and leftpad_k is q_descale is None and page_holes is page_scales is False
    if drops or not is_plain:
        call += attention_chunk, leftpad_k, n_multiprocessors, diagonal_offset, page_holes
        call += (q_descale,)
        if drops or page_scales is not False:
            call += dropout_p, rng_state_of(dropout_p, rng_state, q)
        if page_scales is not False:
            call += (page_scales,)
    if extension.forward and not direct.is_compiled():
        found = extension.forward(*call)
        if found is not None:
            return found if out is lse is None else _noted(found, out, lse)
    if k_descale is v_descale is q_descale is None and direct.is_possible(q, k, v, sinks):
        return _results(forward(call), out, lse)
    return _attend("fwd" if pages is None else "decode", call)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    page_table: Tensor | None = None,
    v_page_table: Tensor | None = None,
    page_indptr: Tensor | None = None,
    page_rows: Tensor | None = None,
    page_holes: bool = False,
    k_descale: Tensor | float | None = None,
    v_descale: Tensor | float | None = None,
    q_descale: Tensor | float | None = None,
    dropout_p: float = 0,
    rng_state: Tensor | None = None,
    page_scales: bool = False,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    diagonal_offset: int = 0,
    softcap: float = 0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    attn_mask: Tensor | None = None,
    mask_bits: Tensor | None = None,
    mask_keys: int | None = None,
    mask_head_scale: Tensor | None = None,
    batch_invariant: bool = False,
    n_multiprocessors: int = 0,
    return_lse: bool = False,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    lse: Tensor | None = None,
) -> Any:
    """Computes attention over a ragged batch as flashattn.flash_attn_varlen_func does, for torch
    tensors, as in flash_attn_func above. Where torch records operators, it records
    flashattn::varlen_fwd."""
    try:
        left, right = window_size
    except (TypeError, ValueError):
        left, right = _numbers.window(window_size)  # which raises
    ragged = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    pages = bias = None
    if not page_table is v_page_table is page_indptr is page_rows is None:
        pages = page_table, v_page_table, page_indptr, page_rows
    if not alibi_slopes is attn_mask is mask_bits is mask_keys is mask_head_scale is None:
        bias = alibi_slopes, attn_mask, mask_bits, mask_keys, mask_head_scale
    call = (
        q, k, v, out, lse, return_lse, out_dtype, ragged, pages, bias, softmax_scale, causal, left,
        right, softcap, batch_invariant, k_descale, v_descale, sinks, seqused_q, seqused_k,
    )  # fmt: skip
    are_plain = attention_chunk is n_multiprocessors is diagonal_offset is _ZERO
    drops = is_given(dropout_p, rng_state)
    is_plain = are_plain and leftpad_k is q_descale is None and page_holes is page_scales is False
    if drops or not is_plain:
        call += attention_chunk, leftpad_k, n_multiprocessors, diagonal_offset, page_holes
        call += (q_descale,)
        if drops or page_scales is not False:
            call += dropout_p, rng_state_of(dropout_p, rng_state, q)
        if page_scales is not False:
            call += (page_scales,)
    if extension.forward and not direct.is_compiled():
        found = extension.forward(*call)
        if found is not None:
            return found if out is lse is None else _noted(found, out, lse)
    if k_descale is v_descale is q_descale is None and direct.is_possible(q, k, v, sinks):
        return _results(forward(call), out, lse)
    return _attend("varlen_fwd", call)


def flash_combine(
    o_partial: Tensor,
    lse_partial: Tensor,
    *,
    sinks: Tensor | None = None,
    dtype: torch.dtype | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> Any:
    """Merges partial results as flashattn.flash_combine does, for torch tensors; lse_partial and
    lse may have any strides. Where torch records operators, it records flashattn::combine."""
    given = [x for x in (out, lse) if x is not None]
    are_tensors = all(isinstance(x, Tensor) for x in (o_partial, lse_partial, *given))
    if are_tensors and o_partial.dim() == 4 and lse_partial.dim() == 3:
        return _combine_ragged(
            o_partial, lse_partial, sinks, out, lse, dtype=dtype, return_lse=return_lse
        )
    outputs = out, lse, return_lse, dtype
    if direct.is_possible(o_partial, lse_partial, lse_partial):
        return _results(combine(o_partial, lse_partial, sinks, outputs), out, lse)
    return _record("combine", (o_partial, lse_partial, sinks), outputs)


def _combine_ragged(
    o_partial: Tensor,
    lse_partial: Tensor,
    sinks: Tensor | None,
    out: Tensor | None,
    lse: Tensor | None,
    **options: Any,
) -> Any:
    """Merges a ragged batch as one sequence of all tokens."""
    merged = flash_combine(
        o_partial.unsqueeze(1),
        lse_partial.unsqueeze(1),
        sinks=sinks,
        out=None if out is None else out.unsqueeze(0),
        lse=None if lse is None else lse.unsqueeze(0),
        **options,
    )
    if isinstance(merged, tuple):
        o, merged_lse = merged
        return (
            o.squeeze(0) if out is None else out,
            merged_lse.squeeze(0) if lse is None else lse,
        )
    return merged.squeeze(0) if out is None else out


def flash_kv_append(
    k_new: Tensor,
    v_new: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    *,
    seqused_k: Tensor | None = None,
    seqused_k_out: Tensor | None = None,
    slot_mapping: Tensor | None = None,
    cu_seqlens_new: Tensor | None = None,
    page_table: Tensor | None = None,
    v_page_table: Tensor | None = None,
    page_indptr: Tensor | None = None,
    page_rows: Tensor | None = None,
    k_descale: Tensor | float | None = None,
    v_descale: Tensor | float | None = None,
    q: Tensor | None = None,
    q_out: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    rotary_interleaved: bool = False,
    rotary_positions: Tensor | None = None,
    rotary_start: Tensor | None = None,
    rotary_q_at_start: bool = False,
    page_scales: bool = False,
) -> Tensor | None:
    """Writes new tokens into a cache as flashattn.flash_kv_append does, for torch tensors: see
    there for arguments, result and errors.

    Lengths and page tables are int32 tensors, slots and positions int64 tensors, rows of tables
    either, all on the device of k_new. A new q_out is contiguous. Where torch records operators, it
    records flashattn::kv_append, which writes to k_cache, v_cache, seqused_k_out and q_out.
    """
    if q is not None and q_out is None and _shape_of(q):
        q_out = torch.empty(*q.shape, dtype=q.dtype, device=q.device)
    call = (
        k_new, v_new, k_cache, v_cache, seqused_k, seqused_k_out, slot_mapping, cu_seqlens_new,
        page_table, v_page_table, page_indptr, page_rows, k_descale, v_descale, q, q_out,
        cu_seqlens_q, rotary_cos, rotary_sin, rotary_interleaved, rotary_positions, rotary_start,
        rotary_q_at_start, page_scales,
    )  # fmt: skip
    if extension.append and not direct.is_compiled() and extension.append(*call):
        note_written(k_cache, v_cache, seqused_k_out, q_out)
        return q_out
    if k_descale is not None or v_descale is not None:
        sequences = (k_cache, None) if page_scales else (k_new, cu_seqlens_new)
        scales = _scales_of(k_descale, v_descale, *sequences, k_new)
        call = (*call[:_AT_SCALES], *scales, *call[_AT_SCALES + 2 :])
    if direct.is_possible_with(k_new, v_new, k_cache, v_cache, q, q_out):
        append(call)
        note_written(k_cache, v_cache, seqused_k_out, q_out)
        return q_out
    foreign.refuse_in(call, append_operator.TENSORS, ("k_new", "k_cache"))
    append_operator.OPERATOR(*call)
    return q_out


def quantise(
    x: Tensor,
    *,
    n_scales: int | None = None,
    tokens: bool = False,
    minus_mean: bool = False,
    hadamard: bool = False,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> _quantise.Quantised:
    """Quantises to float8_e4m3fn as flashattn.quantise does, for torch tensors: see there for
    arguments, result and errors. Where torch records operators, it records flashattn::quantise."""
    foreign.require(x=x)
    foreign.refuse(cu_seqlens=cu_seqlens)
    options = {"n_scales": n_scales, "tokens": tokens, "hadamard": hadamard}
    options |= {"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen}
    if direct.is_possible_with(x, cu_seqlens):
        return _quantise.quantise(x, minus_mean=minus_mean, **options)
    if minus_mean:
        return _quantise.Quantised(*quantise_operator.WITH_MEAN(x, **options))
    return _quantise.Quantised(*quantise_operator.OPERATOR(x, **options), None)


def _noted(found: Any, *written: Tensor | None) -> Any:
    """Returns what the extension found, after it has written to these."""
    note_written(*written)
    return found


def _attend(operator: str, call: Call) -> Any:
    """Computes attention with scales by a call of the library, or by this operator where torch has
    to see it."""
    q, k, v, out, lse, return_lse, out_dtype = call[:7]
    if not call[_K_DESCALE] is call[_V_DESCALE] is None or len(call) > _Q_DESCALE:
        call = _with_arrays_of_scales(call)
        if direct.is_possible(q, k, v):
            return _results(forward(call), out, lse)
    given = named(call)
    for name in ("softmax_scale", "softcap"):  # which are numbers to the operator
        if isinstance(given[name], Tensor):
            _numbers.refuse_gradient(name, given[name])
    arguments = tuple(given[name] for name in schemas.NAMES[operator])
    return _record(operator, arguments, (out, lse, return_lse, out_dtype))


def _results(results: tuple[Tensor, Tensor | None], out: Tensor | None, lse: Tensor | None) -> Any:
    if not out is lse is None:
        note_written(out, lse)
    return results[0] if results[1] is None else results


def _record(operator: str, arguments: tuple, outputs: Outputs) -> Any:
    """Calls the overload of an operator that gives these outputs."""
    out, lse, return_lse, dtype = outputs
    if isinstance(return_lse, (str, bytes)):
        raise ValueError(f"return_lse is of type {type(return_lse).__name__}: not a bool")
    is_combine = operator == "combine"
    needed = ("o_partial", "lse_partial") if is_combine else ("q", "k", "v")
    foreign.refuse_in(arguments, schemas.TENSORS[operator], needed, out=out, lse=lse)
    packet = getattr(_ops, operator)
    if out is None and lse is None:
        overload = packet.lse if return_lse else packet.default
        return overload(*arguments, out_dtype=dtype)
    like = arguments[0]
    if is_combine and like.ndim:
        like = like[:1].squeeze(0)
    if out is None:
        width = like.shape[-1] if is_combine else arguments[2].shape[-1]
        of_o = dtype or type_of_o(like.dtype)
        out = torch.empty(*like.shape[:-1], width, dtype=of_o, device=like.device)
    elif dtype is not None and out.dtype != dtype:
        raise ValueError(f"out is {out.dtype}, and out_dtype {dtype}")
    if lse is None and return_lse:
        lse = torch.empty(lse_shape(like), dtype=torch.float32, device=like.device)
    packet.out(*arguments, out=out, lse=lse)
    return out if lse is None else (out, lse)


def _with_arrays_of_scales(call: Call) -> Call:
    """Returns the call with a tensor for a scale that is a number."""
    q, k, ragged = call[0], call[1], call[_RAGGED]
    cu_seqlens_q = None if ragged is None else ragged[0]
    of_keys = q, cu_seqlens_q, k
    if len(call) > _PAGE_SCALES and call[_PAGE_SCALES]:
        of_keys = k, None, k  # the first axis of K is that of pages
    scales = _scales_of(call[_K_DESCALE], call[_V_DESCALE], *of_keys)
    call = (*call[:_K_DESCALE], *scales, *call[_V_DESCALE + 1 :])
    if len(call) <= _Q_DESCALE:
        return call
    q_scale = _scales_of(call[_Q_DESCALE], None, q, cu_seqlens_q, k, "q_descale")[0]
    return (*call[:_Q_DESCALE], q_scale, *call[_Q_DESCALE + 1 :])


def _scales_of(
    k_descale: Any,
    v_descale: Any,
    tokens: Tensor,
    cu_seqlens: Tensor | None,
    k: Tensor,
    first_name: str = "k_descale",
) -> tuple:
    """Returns both scales; a number becomes a tensor [batch, n_heads_kv] that repeats it. The
    sequences are those of cu_seqlens or, without it, of the first axis of four of tokens.

    What has not the axes for that gets a scale of some size: the call will refuse it.
    """
    if cu_seqlens is not None:
        batch = max(sum(_shape_of(cu_seqlens)) - 1, 0)
    else:
        batch = _shape_of(tokens)[0] if len(_shape_of(tokens)) == 4 else 1
    shape = batch, (1, 1, *_shape_of(k))[-2]
    return (
        _scale_of(first_name, k_descale, tokens, shape),
        _scale_of("v_descale", v_descale, tokens, shape),
    )


def _scale_of(name: str, scale: Any, tokens: Tensor, shape: tuple[int, int]) -> Any:
    if not isinstance(scale, (int, float)) or not isinstance(tokens, Tensor):
        return scale
    number = _numbers.real(name, scale)
    if abs(number) > _FLOAT32_MAX:
        number = math.copysign(math.inf, number)
    return torch.full((1, 1), number, dtype=torch.float32, device=tokens.device).expand(shape)


def _shape_of(x: Any) -> tuple[int, ...]:
    """Returns the shape of a tensor, and () for what has none."""
    return tuple(x.shape) if isinstance(x, Tensor) and not x.is_nested else ()
