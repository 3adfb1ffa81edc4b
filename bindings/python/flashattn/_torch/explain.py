"""This module finds the message for a call that failed: it makes the same call with the functions
for all arrays, up to the point where they raise an exception.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from .. import _append, _attention, _problem
from . import foreign
from .arguments import Bias, Mask, Outputs, Pages, Places, Queries, Ragged, Rotary, Scales, Used


def forward(error: Exception, *arguments: Any) -> Exception:
    """Returns the exception for a call of forward() with these arguments that ended in `error`;
    that is `error` itself where the functions for all arrays raise nothing."""
    return _raised_by(_refuse_forward, arguments) or error


def combine(error: Exception, *arguments: Any) -> Exception:
    """Returns the exception for a call of combine() that ended in `error`, as forward() does."""
    return _raised_by(_refuse_combine, arguments) or error


def append(
    k_new: Any,
    v_new: Any,
    k: Any,
    v: Any,
    cu_new: Any,
    places: Places,
    pages: Pages | None,
    scales: Scales | None,
    queries: Queries | None,
    rotary: Rotary | None,
) -> None:
    """Makes a call of append() with the function for all arrays, which writes either nothing, and
    raises the exception for the call, or what the call asks for."""
    q, q_out, cu_seqlens_q = queries or (None, None, None)
    cos, sin, interleaved, positions, start, q_at_start = rotary or (None, None, False) * 2
    arrays = {
        **dict(zip(("seqused_k", "seqused_k_out", "slot_mapping"), places)),
        **dict(zip(("page_table", "v_page_table", "page_indptr", "page_rows"), pages or ())),
        **dict(zip(("k_descale", "v_descale"), scales or ())),
        **{"cu_seqlens_new": cu_new, "q": q, "q_out": q_out, "cu_seqlens_q": cu_seqlens_q},
        **{"rotary_cos": cos, "rotary_sin": sin},
        **{"rotary_positions": positions, "rotary_start": start},
    }
    foreign.require(k_new=k_new, k_cache=k)
    foreign.refuse(v_new=v_new, v_cache=v, **arrays)
    _append.flash_kv_append(
        k_new,
        v_new,
        k,
        v,
        rotary_interleaved=interleaved,
        rotary_q_at_start=q_at_start,
        **arrays,
    )


def _raised_by(refuse: Callable[..., None], arguments: tuple) -> Exception | None:
    try:
        refuse(*arguments)
    except Exception as refusal:
        return refusal
    return None


def _refuse_forward(
    q: Any,
    k: Any,
    v: Any,
    mask: Mask,
    used: Used | None,
    scales: Scales | None,
    sinks: Any,
    ragged: Ragged | None,
    pages: Pages | None,
    bias: Bias | None,
    outputs: Outputs,
) -> None:
    """Raises what flash_attn_varlen_func would raise for these arguments before it calls the
    library. Returns where it would raise nothing."""
    softmax_scale, causal, window_left, window_right, softcap, batch_invariant, *others = mask
    chunk, n_multiprocessors = others
    out, lse, _, out_dtype = outputs
    *cu_seqlens, max_seqlen_q, max_seqlen_k = ragged or (None, None, None, None)
    *of_bias, mask_keys = bias or (None, None, None, None)
    arrays = {
        "sinks": sinks,
        **dict(zip(("alibi_slopes", "attn_mask", "mask_bits"), of_bias)),
        **dict(zip(("seqused_q", "seqused_k", "leftpad_k"), used or ())),
        **dict(zip(("k_descale", "v_descale"), scales or ())),
        **dict(zip(("cu_seqlens_q", "cu_seqlens_k"), cu_seqlens)),
        **dict(zip(("page_table", "v_page_table", "page_indptr", "page_rows"), pages or ())),
    }
    foreign.require(q=q, k=k, v=v)
    foreign.refuse(out=out, lse=lse, **arrays)
    problem = _problem.Problem(
        q,
        k,
        v,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=(window_left, window_right),
        attention_chunk=chunk,
        softcap=softcap,
        batch_invariant=batch_invariant,
        n_multiprocessors=n_multiprocessors,
        mask_keys=mask_keys,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        out_dtype=_name(out_dtype),
        **arrays,
    )
    if out is not None or lse is not None:
        problem.set_output(q.new_empty(problem.o_shape) if out is None else out, lse)


def _refuse_combine(o_partial: Any, lse_partial: Any, sinks: Any, outputs: Outputs) -> None:
    """Raises what flash_combine raises for these arguments, but accepts an LSE of any strides."""
    out, lse, return_lse, dtype = outputs
    foreign.require(o_partial=o_partial, lse_partial=lse_partial)
    foreign.refuse(sinks=sinks, out=out, lse=lse)
    _attention.flash_combine(
        o_partial,
        _compact(lse_partial),
        sinks=sinks,
        dtype=_name(dtype),
        return_lse=return_lse,
        out=out,
        lse=None if lse is None else _compact(lse),
    )


def _compact(lse: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous tensor with the values of `lse`; one whose strides are all 0 is returned
    as it is."""
    return lse.contiguous() if any(lse.stride()) else lse


def _name(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype).rpartition(".")[2]
