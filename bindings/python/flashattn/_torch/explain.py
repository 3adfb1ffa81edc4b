"""This module finds the message for a call that failed: it makes the same call with the functions
for all arrays, up to the point where they raise an exception.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from .. import _append, _attention, _numbers, _problem
from .._argument_list import ARRAYS, ARRAYS_OF_APPEND
from . import foreign
from .arguments import Outputs
from .call import Call, named
from .schemas import NAMES_OF_APPEND


def forward(error: Exception, call: Call) -> Exception:
    """Returns the exception for a call of forward() that ended in `error`; that is `error` itself
    where the functions for all arrays raise nothing."""
    return _raised_by(_refuse_forward, (call,)) or error


def combine(error: Exception, *arguments: Any) -> Exception:
    """Returns the exception for a call of combine() that ended in `error`, as forward() does."""
    return _raised_by(_refuse_combine, arguments) or error


def append(call: Call) -> None:
    """Makes a call of append() with the function for all arrays, which writes either nothing, and
    raises the exception for the call, or what the call asks for."""
    given = dict(zip(NAMES_OF_APPEND, call))
    tokens = [given.pop(name) for name in NAMES_OF_APPEND[:4]]
    k_new, v_new, k, v = tokens
    foreign.require(k_new=k_new, k_cache=k)
    foreign.refuse(v_new=v_new, v_cache=v, **{name: given[name] for name in ARRAYS_OF_APPEND})
    _append.flash_kv_append(*tokens, **given)


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
    q, k, v, out, lse = (given.pop(x) for x in ("q", "k", "v", "out", "lse"))
    _numbers.is_true("return_lse", given.pop("return_lse"))
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
