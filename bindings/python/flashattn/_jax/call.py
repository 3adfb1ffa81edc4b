"""This module has a call of flashattn.jax as JAX knows it while it traces: shapes, types and
numbers, without data.

It asks Problem, as the functions for all arrays do, about arrays of the same shapes that take no
memory: so messages are the same, and so are the numbers that go to the library.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _abi, _argument_list, _numbers, latent, quant_blocks
from .._argument_list import ATTENTION, MEMBERS
from .._attention import workspace_size
from .._problem import Problem
from .._tensor import parts_of_kv_dtype

# OPERANDS is the order in which arrays are passed, which the library's handlers have too. A call
# that is divided among devices, or mapped, has other numbers of sequences and heads than the whole,
# by which weights are dropped: there is no dropout.
ABSENT = _argument_list.names_of("dropout")
OPERANDS = ("q", "k", "v", *(x for x in _argument_list.ARRAYS if x not in ABSENT))

# These members of flash_forward_args_t, by their names, are attributes of a call.
_INTEGERS = (
    *("flags", "seqlen_k", "seqlen_q", "window_left", "window_right"),
    *(x.name for x in MEMBERS if x.kind in (_argument_list.INTEGER, _argument_list.COUNT)),
)
_REALS = tuple(x.name for x in MEMBERS if x.kind in (_argument_list.POSITIVE, _argument_list.CAP))


class Keys(NamedTuple):
    """Says what the arrays of K and V do not.

    kv_dtype   as the functions for all arrays have it: the type of arrays of bytes
    v_columns  V is the first columns of K, so many, and its array is K's; 0: V has its own
    """

    kv_dtype: Any = None
    v_columns: int = 0

    @property
    def dtypes(self) -> tuple[str | None, str | None]:
        return parts_of_kv_dtype(self.kv_dtype)

    @property
    def v_is_k(self) -> bool:
        return self.v_columns != 0

    def width_of_v(self, elements: int) -> int:
        """Returns the columns of V, the last axis of whose array has so many elements."""
        of_v = self.dtypes[1]
        if self.v_is_k:
            return self.v_columns
        return elements if of_v is None else quant_blocks.columns(elements, of_v)

    def values_in(self, k: Any) -> Any:
        """Returns the part of K's array that V is."""
        of_k = self.dtypes[0]
        if of_k == latent.KV_DTYPE:
            return k
        return k[
            ..., : self.v_columns if of_k is None else quant_blocks.row_bytes(self.v_columns, of_k)
        ]


def keys_of(k: Any, v: Any, kv_dtype: Any, d_head_v: Any) -> Keys:
    """Returns what a call says of its keys. Raises ValueError where that cannot be."""
    of_k, of_v = parts_of_kv_dtype(kv_dtype)
    columns = _numbers.bound("d_head_v", d_head_v)
    if latent.KV_DTYPE in (of_k, of_v):
        if v is not None and v is not k:
            raise ValueError(f"kv_dtype is {kv_dtype!r}: v is k itself, or None")
        if columns not in (None, latent.CODES):
            raise ValueError(f"d_head_v is {columns}: kv_dtype {kv_dtype!r} has {latent.CODES}")
        return Keys(kv_dtype, latent.CODES)
    if v is not None:
        if columns is not None:
            raise ValueError(f"d_head_v is {columns}, and v is given, whose last axis says it")
        return Keys(kv_dtype)
    if columns is None or columns < 1:
        raise ValueError(f"v is None, and d_head_v {columns}: not a number of columns of k")
    if of_k != of_v:
        raise ValueError(f"v is None, and kv_dtype {kv_dtype!r}: v has the type of k")
    return Keys(kv_dtype, columns)


class Call(NamedTuple):
    """Holds what of a call does not change with shapes: it can be hashed.

    operands  names of the arrays, in the order of OPERANDS
    numbers   (name, value) of each other argument of the list
    """

    operands: tuple[str, ...]
    numbers: tuple[tuple[str, Any], ...]
    out_dtype: str | None
    return_lse: bool
    keys: Keys

    def problem(self, arrays: Sequence[Any]) -> Problem:
        """Returns the call's problem for arrays, or avals, of these shapes and types."""
        numbers = {**dict(self.numbers), "out_dtype": self.out_dtype}
        return problem_of(dict(zip(self.operands, arrays)), numbers, self.keys)

    def attributes(self, problem: Problem) -> dict[str, np.generic]:
        """Returns the attributes of the custom call. Those that are 0 are left out."""
        args = problem.args
        integers = {name: getattr(args, name) for name in _INTEGERS}
        integers["operands"] = sum(1 << OPERANDS.index(name) for name in self.operands)
        if args.mask is not None:
            mask = ctypes.cast(args.mask, ctypes.POINTER(_abi.flash_mask_t)).contents
            integers |= {"mask_keys": mask.n_keys, "mask_flags": mask.flags}
        of_k, of_v = self.keys.dtypes
        integers["k_dtype"] = 0 if of_k is None else args.k.dtype
        integers["v_dtype"] = 0 if of_v is None else args.v.dtype
        integers["v_columns"] = self.keys.v_columns
        found = {name: np.int64(value) for name, value in integers.items()}
        found |= {name: np.float32(getattr(args, name)) for name in _REALS}
        return {name: value for name, value in sorted(found.items()) if value != 0}


def problem_of(arrays: Mapping[str, Any], numbers: Mapping[str, Any], keys: Keys) -> Problem:
    """Returns the problem of arrays, or avals, by name, and of the other arguments that describe
    it. Raises what a call of the functions for all arrays would raise for them."""
    stand_ins = {name: _stand_in(name, array, arrays) for name, array in arrays.items()}
    q, k, v = (stand_ins.pop(name) for name in ("q", "k", "v"))
    if keys.v_is_k:
        v = keys.values_in(k)
    problem = Problem(q, k, v, {**stand_ins, **numbers, "kv_dtype": keys.kv_dtype})
    if keys.v_is_k and problem.args.d_head_v != keys.v_columns:
        raise ValueError(f"d_head_v is {keys.v_columns}: k has {problem.args.d_head} columns")
    return problem


def workspace_bytes(problem: Problem, device: int) -> int:
    """Returns the bytes of memory that the call works in on a device. Raises what the call would
    raise there, such as that the library has no kernel for it."""
    problem.args.device = device
    return workspace_size(problem.args, None)


def numbers_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments that describe a problem and are no arrays, but for those of their
    default value."""
    return {
        argument.name: options[argument.name]
        for argument in ATTENTION
        if not argument.kind.is_array
        and argument.name not in ABSENT
        and options[argument.name] is not argument.default
    }


def canonical(numbers: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Returns numbers as Python's own. A Problem must have accepted them."""
    return tuple((name, _READERS[_KINDS[name]](value)) for name, value in numbers.items())


def _optional(read: Any) -> Any:
    return lambda value: None if value is None else read(value)


_KINDS = {argument.name: argument.kind for argument in ATTENTION}
_READERS = {
    _argument_list.BOUND: _optional(operator.index),
    _argument_list.CAP: float,
    _argument_list.COUNT: operator.index,
    _argument_list.FLAG: bool,
    _argument_list.INTEGER: operator.index,
    _argument_list.POSITIVE: _optional(float),
    _argument_list.WINDOW: lambda value: tuple(map(operator.index, value)),
}


def _stand_in(name: str, array: Any, given: Mapping[str, Any]) -> Any:
    """Returns a numpy array of the same shape and type, or a number for a scale of no axes.

    Of an array of several axes there is only the first element. Those of one axis are zeros, so
    that no row is out of range; cu_seqlens end at the last token.
    """
    shape, dtype = array.shape, np.dtype(array.dtype)
    if not all(isinstance(size, int) for size in shape):
        raise ValueError(f"{name} has shape {shape}: sizes are numbers, not symbols")
    if name in ("k_descale", "v_descale", "q_descale") and not shape:
        return 1.0
    if len(shape) == 1:
        values = np.zeros(shape, dtype)
        if name in ("cu_seqlens_q", "cu_seqlens_k"):
            values[-1:] = given["q" if name.endswith("q") else "k"].shape[0]
        return values
    if dtype == np.bool_ and name == "attn_mask":
        dtype = np.dtype(np.float32)  # bits would be packed
    strides = [dtype.itemsize] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * max(shape[axis], 1)
    # numpy cannot stride some types of ml_dtypes, such as float8_e5m2, but bytes.
    elements = np.zeros(1, f"V{dtype.itemsize}")
    return np.lib.stride_tricks.as_strided(elements, shape, strides).view(dtype)
