"""This module passes scales of K and V of e4m3: it fills flash_quant_t of a call, and checks what
the C API cannot see."""

from __future__ import annotations

import ctypes
import numbers
import sys
from typing import Any

from . import _abi, _numbers, _tensor
from ._stream import is_torch
from ._tensor import View


class Quant:
    """Holds the scales of one call, each an array [batch, n_heads_kv] of the caller's or one number
    for all: `struct` points into the arrays, which the views keep alive, or at numbers of its own.

    like is the caller's array called `like_name`, which says where a number must lie.
    """

    def __init__(
        self, like: Any, like_view: View, shape: tuple[int, int], stream: int, like_name: str = "q"
    ) -> None:
        self.struct = _abi.flash_quant_t()
        self._like, self._like_view, self._like_name = like, like_view, like_name
        self._shape, self._stream = shape, stream
        self._kept: list[Any] = []

    def set(self, name: str, member: str, value: Any) -> None:
        """Sets `member` of the struct, k_scale or v_scale, to the value of the argument of this
        name."""
        if value is None:
            return
        if isinstance(value, numbers.Real):
            setattr(self.struct, member, self._place(name, _numbers.real(name, value)))
            return
        scale = _tensor.view(value, name, self._stream)
        self._check(name, scale)
        self._kept.append(scale)
        setattr(self.struct, member, scale.data)
        setattr(self.struct, f"{member}_stride_batch", scale.strides[0])
        setattr(self.struct, f"{member}_stride_head", scale.strides[1])

    def _check(self, name: str, scale: View) -> None:
        if scale.dtype != "float32":
            raise ValueError(f"{name} is {scale.dtype}, not float32")
        if scale.shape != self._shape:
            raise ValueError(f"{name} has shape {scale.shape}, not {self._shape}")
        _tensor.check_same_device(self._like_name, self._like_view, **{name: scale})

    def _place(self, name: str, number: float) -> int:
        """Returns the address of the number, in memory of the call's device."""
        if self._like_view.device == _abi.FLASH_DEVICE_CPU:
            self._kept.append(ctypes.c_float(number))
            return ctypes.addressof(self._kept[-1])
        if not is_torch(self._like):
            raise ValueError(
                f"{name} is a number, and {self._like_name} a {type(self._like).__name__} in CUDA "
                f"memory: it must be a float32 array on {self._like_name}'s device"
            )
        self._kept.append(self._like.new_full((1,), number, dtype=sys.modules["torch"].float32))
        return self._kept[-1].data_ptr()
