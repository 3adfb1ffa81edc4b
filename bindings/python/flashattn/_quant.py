"""This module passes scales of K, V and Q of e4m3: it fills flash_quant_t of a call, and checks
what the C API cannot see."""

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

    def set(
        self, name: str, member: str, value: Any, shape: tuple[int, int] | None = None
    ) -> None:
        """Sets `member` of the struct, k_scale or v_scale, to the value of the argument of this
        name; shape is another one than [batch, n_heads_kv]."""
        if value is None:
            return
        if isinstance(value, numbers.Real):
            setattr(self.struct, member, self._place(name, _numbers.real(name, value)))
            return
        scale = _tensor.view(value, name, self._stream)
        self._check(name, scale, shape or self._shape)
        self._set(member, scale, ("batch", "head"))

    def set_query(self, q_descale: Any, q_shape: tuple[int, ...]) -> None:
        """Sets the scales of Q: those of an array with as many axes as q are of tokens, a number
        and those of other arrays are as K's."""
        if q_descale is None or isinstance(q_descale, numbers.Real):
            return self.set("q_descale", "q_scale", q_descale)
        scale = _tensor.view(q_descale, "q_descale", self._stream)
        if len(scale.shape) != len(q_shape):
            return self.set("q_descale", "q_scale", q_descale)
        self._check("q_descale", scale, (*q_shape[:-1], 1))
        self._set("q_token_scale", scale, ("batch", "seq", "head")[4 - len(q_shape) :])

    def _set(self, member: str, scale: View, axes: tuple[str, ...]) -> None:
        self._kept.append(scale)
        setattr(self.struct, member, _tensor.address(scale))
        for axis, stride in zip(axes, scale.strides):
            setattr(self.struct, f"{member}_stride_{axis}", stride)

    def _check(self, name: str, scale: View, shape: tuple[int, ...]) -> None:
        if scale.dtype != "float32":
            raise ValueError(f"{name} is {scale.dtype}, not float32")
        if scale.shape != shape:
            raise ValueError(f"{name} has shape {scale.shape}, not {shape}")
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
