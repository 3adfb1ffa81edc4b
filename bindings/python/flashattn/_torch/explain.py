"""This module finds the message for a call that failed: it makes the same call with the functions
for all arrays, up to the point where they raise an exception.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from .. import _append, _attention, _problem
from .._argument_list import ARRAYS
from . import foreign
from .arguments import Outputs, Pages, Places, Queries, Rotary, Scales
from .call import Call, named


def forward(error: Exception, call: Call) -> Exception:
    """Returns the exception for a call of forward() that ended in `error`; that is `error` itself
    where the functions for all arrays raise nothing."""
    return _raised_by(_refuse_forward, (call,)) or error


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


def _refuse_forward(call: Call) -> None:
    """Raises what flash_attn_varlen_func would raise for this call before it calls the library.
    Returns where it would raise nothing."""
    given = named(call)
    foreign.require(**{name: given[name] for name in ("q", "k", "v")})
    foreign.refuse(**{name: given[name] for name in ("out", "lse", *ARRAYS)})
    q, k, v, out, lse, _ = (given.pop(x) for x in ("q", "k", "v", "out", "lse", "return_lse"))
    given["window_size"] = given.pop("window_left"), given.pop("window_right")
    given["out_dtype"] = _name(given["out_dtype"])
    problem = _problem.Problem(q, k, v, given)
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
