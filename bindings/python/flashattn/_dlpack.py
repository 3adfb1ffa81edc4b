"""This module reads DLPack capsules, "dltensor" and "dltensor_versioned", with ctypes.

A capsule that is not consumed frees its tensor when it dies, so reading one means: look, keep the
capsule alive for as long as the memory is in use, and never rename it.
The layouts are those of https://dmlc.github.io/dlpack/latest/c_api.html
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import (
    Structure,
    c_char_p,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from typing import Any

from . import _abi

_CPU, _CUDA, _CUDA_HOST = 1, 2, 3
_LEGACY_DEFAULT_STREAM = 1  # DLPack's name for what CUDA calls 0
_READ_ONLY = 1  # this is bit 0 of a versioned tensor's flags
_MAX_VERSION = (1, 0)
_DTYPES = {
    (0, 32): "int32",
    (1, 8): "uint8",
    (2, 16): "float16",
    (2, 32): "float32",
    (4, 16): "bfloat16",
    (10, 8): "float8_e4m3fn",
}
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class _Device(Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class _DataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", _Device),
        ("n_axes", c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),  # in elements; NULL: compact, row-major
        ("byte_offset", c_uint64),
    ]


class _Managed(Structure):
    _fields_ = [("tensor", _Tensor), ("manager", c_void_p), ("deleter", c_void_p)]


class _ManagedVersioned(Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


@dataclass(frozen=True)
class DLTensor:
    """Holds what a capsule says; `owner` is the capsule."""

    data: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int
    writable: bool
    owner: object


def read(array: Any, name: str, stream: int) -> DLTensor:
    """Returns the tensor behind array.__dlpack__(), ready for work on a CUDA stream if it is a CUDA
    one. Raises ValueError with the argument's `name`."""
    capsule = _export(array, stream)
    tensor, flags = _unwrap(capsule, name)
    shape = tuple(tensor.shape[: tensor.n_axes])
    strides = tuple(tensor.strides[: tensor.n_axes]) if tensor.strides else compact_strides(shape)
    return DLTensor(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        strides,
        _dtype_name(tensor.dtype, name),
        _device_number(tensor.device, name),
        not flags & _READ_ONLY,
        (capsule, array),
    )


def compact_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides in elements of a contiguous row-major array."""
    strides: list[int] = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def _export(array: Any, stream: int) -> Any:
    """Returns a capsule. Producers from before DLPack 1.0 do not know the argument max_version; the
    versioned form is worth asking for, as only it can export read-only memory."""
    options = {"stream": stream or _LEGACY_DEFAULT_STREAM} if _is_cuda(array) else {}
    try:
        return array.__dlpack__(max_version=_MAX_VERSION, **options)
    except TypeError:
        return array.__dlpack__(**options)


def _is_cuda(array: Any) -> bool:
    device = getattr(array, "__dlpack_device__", None)
    return device is not None and device()[0] == _CUDA


def _unwrap(capsule: Any, name: str) -> tuple[_Tensor, int]:
    """Returns the capsule's tensor and its flags."""
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = c_char_p, [ctypes.py_object]

    kind = get_name(capsule)
    if kind == b"dltensor":
        return _Managed.from_address(get_pointer(capsule, kind)).tensor, 0
    if kind != b"dltensor_versioned":
        raise ValueError(f"{name}.__dlpack__() gave a capsule named {kind!r}: no DLPack tensor")
    managed = _ManagedVersioned.from_address(get_pointer(capsule, kind))
    if managed.major > _MAX_VERSION[0]:
        raise ValueError(f"{name}.__dlpack__() speaks DLPack {managed.major}.{managed.minor}")
    return managed.tensor, managed.flags


def _dtype_name(dtype: _DataType, name: str) -> str:
    if dtype.lanes != 1:
        raise ValueError(f"{name} has elements of {dtype.lanes} lanes")
    known = _DTYPES.get((dtype.code, dtype.bits))
    return known or f"{_KINDS.get(dtype.code, f'DLPack type {dtype.code} of bits ')}{dtype.bits}"


def _device_number(device: _Device, name: str) -> int:
    if device.type in (_CPU, _CUDA_HOST):
        return _abi.FLASH_DEVICE_CPU
    if device.type == _CUDA:
        return _abi.FLASH_DEVICE_CUDA + device.id
    raise ValueError(f"{name} is on DLPack device type {device.type}: neither CPU nor CUDA")
