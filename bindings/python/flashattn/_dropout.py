"""This module passes dropout of attention weights, flash_forward_args_t.dropout: a probability, and
a state that says which weights are dropped."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _abi, _numbers, _tensor
from ._tensor import View

_TYPES = ("int64", "uint64")
_BITS = 2**64 - 1


class Dropout:
    """Holds flash_dropout_t, whose seed and offset are two integers of the host, or lie in an array
    of the call's device. view keeps that alive; None: there is none."""

    def __init__(self, dropout_p: float, rng_state: Any, stream: int) -> None:
        """Raises ValueError for a state that is no pair of integers of 64 bits."""
        p = _numbers.float32("dropout_p", dropout_p)
        self.struct = _abi.flash_dropout_t(p=p)
        self.view: View | None = None
        if rng_state is None:
            raise ValueError(
                f"dropout_p is {dropout_p}, and rng_state is None: it says which weights are "
                "dropped, two integers (seed, offset)"
            )
        if isinstance(rng_state, (list, tuple)):
            self._set_numbers(rng_state)
        else:
            self._set_array(rng_state, stream)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.struct)

    def _set_numbers(self, rng_state: Any) -> None:
        if len(rng_state) != 2:
            raise ValueError(f"rng_state has {len(rng_state)} values, not 2: (seed, offset)")
        seed, offset = (_numbers.integer("rng_state", x) for x in rng_state)
        for number in (seed, offset):
            if not -(2**63) <= number <= _BITS:
                raise ValueError(f"rng_state holds {number}, which does not fit 64 bits")
        self.struct.seed, self.struct.offset = seed & _BITS, offset & _BITS

    def _set_array(self, rng_state: Any, stream: int) -> None:
        view = self.view = _tensor.view(rng_state, "rng_state", stream)
        if view.dtype not in _TYPES:
            raise ValueError(f"rng_state is {view.dtype}, not {' or '.join(_TYPES)}")
        if view.shape != (2,) or view.strides != (1,):
            raise ValueError(
                f"rng_state has shape {view.shape} and strides {view.strides}: not two integers "
                "beside each other, (seed, offset)"
            )
        self.struct.seed_ptr, self.struct.offset_ptr = view.data, view.data + 8
