"""This module passes attention sinks, one number per query head: flash_forward_args_t.sinks."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import _tensor
from ._stream import is_torch
from ._tensor import View

_DTYPES = ("float32", "float16", "bfloat16", "float64")


def sinks_view(array: Any, n_heads: int, stream: int) -> View:
    """Returns a view of the argument `sinks` as contiguous float32 [n_heads]. Other floating-point
    types and strides are copied, if numpy or torch made the array."""
    found = _tensor.view(array, "sinks", stream)
    if found.dtype not in _DTYPES:
        raise ValueError(f"sinks is {found.dtype}: not one of {', '.join(_DTYPES)}")
    if found.shape != (n_heads,):
        raise ValueError(f"sinks has shape {found.shape}, not ({n_heads},): one per query head")
    if found.dtype == "float32" and (n_heads == 1 or found.strides == (1,)):
        return found
    return _tensor.view(_copy(array, found), "sinks", stream)


def _copy(array: Any, found: View) -> Any:
    if is_torch(array):
        return array.to(sys.modules["torch"].float32).contiguous()
    if isinstance(array, np.ndarray):
        with np.errstate(over="ignore"):  # infinity is a sink, too
            return np.ascontiguousarray(array, np.float32)
    raise ValueError(
        f"sinks is {found.dtype} with a stride of {found.strides[0]} elements, and a "
        f"{type(array).__name__} is not copied: it must be contiguous float32"
    )
