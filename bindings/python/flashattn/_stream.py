"""This module finds the CUDA stream of a call: the caller's current one, as its arrays name it.

A torch tensor stands for torch's current stream on its device, and an array with
`__cuda_array_interface__` names its own. Arrays that name none (CPU arrays, DLPack) follow those
that do. A stream is a cudaStream_t as an integer; 0 is the default stream.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

DEFAULT = 0
_LEGACY_DEFAULT = 1  # the array interface's name for the default stream


def of_call(**arrays: Any) -> int:
    """Returns the stream that these arguments of a call name. Raises ValueError when two name
    different ones: their work has no order between them."""
    named = {name: _of_array(array) for name, array in arrays.items() if array is not None}
    stream = next((stream for stream in named.values() if stream is not None), DEFAULT)
    _check_named(stream, named)
    return stream


def check(stream: int, **arrays: Any) -> None:
    """Raises ValueError for an array that names another stream than the call's."""
    _check_named(stream, {name: _of_array(a) for name, a in arrays.items() if a is not None})


def _check_named(stream: int, named: dict[str, int | None]) -> None:
    for name, own in named.items():
        if own not in (None, stream):
            raise ValueError(
                f"{name} is on the CUDA stream {own:#x}, the call on {stream:#x}: bring all of its "
                "arrays onto one stream"
            )


_OF_TENSORS = ("data_ptr", "stride", "new_empty", "requires_grad")


def is_torch(array: Any) -> bool:
    """Returns whether `array` is a torch tensor, by duck type: importing torch takes seconds."""
    if isinstance(array, np.ndarray) or "torch" not in sys.modules:
        return False
    return _is_tensor_type(type(array)) or all(hasattr(array, name) for name in _OF_TENSORS)


@functools.lru_cache(maxsize=64)
def _is_tensor_type(kind: type) -> bool:
    """Says the same of all instances of a type. A call asks some twenty times."""
    return all(hasattr(kind, name) for name in _OF_TENSORS)


def _of_array(array: Any) -> int | None:
    """Returns the stream that an array names; None if it names none."""
    if isinstance(array, np.ndarray):
        return None
    if is_torch(array):
        if array.device.type != "cuda":
            return None
        return sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
    interface = getattr(array, "__cuda_array_interface__", None) or {}
    stream = interface.get("stream")
    return DEFAULT if stream == _LEGACY_DEFAULT else stream
