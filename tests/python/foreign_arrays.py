"""Arrays of libraries that are not installed: DLPack producers, array interfaces, a small torch."""

from __future__ import annotations

import ctypes
import types

import numpy as np
from flashattn import _dlpack

_CODES = {
    "float16": (2, 16),
    "float32": (2, 32),
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
    "int32": (0, 32),
    "uint8": (1, 8),
}


class DLPackArray:
    """Exports numpy memory like a DLPack 1.0 producer; `log` counts releases."""

    def __init__(self, array: np.ndarray, **overrides: object) -> None:
        self.array = array
        self.released = 0
        self._overrides = overrides

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **_: object):
        return self._capsule(versioned=max_version is not None)

    def _capsule(self, versioned: bool):
        managed = _dlpack._ManagedVersioned() if versioned else _dlpack._Managed()
        if versioned:
            managed.major = self._overrides.get("major", 1)
            managed.flags = self._overrides.get("flags", 0)
        self._fill(managed.tensor)
        name = self._overrides.get("capsule", b"dltensor_versioned" if versioned else b"dltensor")
        return _new_capsule(managed, name, self)

    def _fill(self, tensor: _dlpack._Tensor) -> None:
        array, n_axes = self.array, self.array.ndim
        offset = self._overrides.get("byte_offset", 0)
        code, bits = self._overrides.get("code", _CODES[array.dtype.name])
        self._shape = (ctypes.c_int64 * n_axes)(*array.shape)
        elements = [stride // array.itemsize for stride in array.strides]
        self._strides = (ctypes.c_int64 * n_axes)(*elements)
        tensor.data = array.ctypes.data - offset
        tensor.byte_offset = offset
        tensor.device.type, tensor.device.id = self._overrides.get("device", (1, 0))
        tensor.n_axes = n_axes
        tensor.dtype.code, tensor.dtype.bits = code, bits
        tensor.dtype.lanes = self._overrides.get("lanes", 1)
        tensor.shape = ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64))
        if not self._overrides.get("compact", False):
            tensor.strides = ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64))


class OldDLPackArray(DLPackArray):
    """Exports like a producer from before DLPack 1.0: no max_version, "dltensor" capsules."""

    def __dlpack__(self, stream: object = None):
        return self._capsule(versioned=False)


_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_alive: dict[int, tuple] = {}


@_DESTRUCTOR
def _destroy(capsule: int) -> None:
    """Frees a capsule's tensor, as a producer does when the capsule dies unconsumed."""
    producer, *_ = _alive.pop(capsule)
    producer.released += 1


def _new_capsule(managed: ctypes.Structure, name: bytes, producer: DLPackArray):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR]
    capsule = new(ctypes.addressof(managed), name, _destroy)
    _alive[id(capsule)] = (producer, managed, name)
    return capsule


class InterfaceArray:
    """Exports memory by __array_interface__ alone."""

    def __init__(self, array: np.ndarray, **overrides: object) -> None:
        interface = {**array.__array_interface__, **overrides}
        self.__array_interface__ = interface
        self.owner = array


class CudaArray:
    """Exports memory by __cuda_array_interface__ alone."""

    def __init__(self, shape: tuple[int, ...], stream: int | None = None) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f2",
            "data": (0x7F0000000000, False),
            "version": 3,
            "stream": stream,
        }


class TorchDtype:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


STRIDED = "torch.strided"


class TorchTensor:
    """Has as much of torch.Tensor as the package uses, over numpy memory."""

    is_nested = False
    layout = STRIDED

    def __init__(
        self, array: np.ndarray, device: str = "cpu", index=None, requires_grad: bool = False
    ) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = TorchDtype(array.dtype.name)
        self.device = types.SimpleNamespace(type=device, index=index)
        self.requires_grad = requires_grad

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def stride(self) -> tuple[int, ...]:
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def new_full(self, shape: tuple[int, ...], value: float, dtype: TorchDtype) -> TorchTensor:
        tensor = self.new_empty(shape, dtype)
        tensor.array[...] = value
        return tensor

    def new_empty(self, shape: tuple[int, ...], dtype: TorchDtype) -> TorchTensor:
        from memory import dtype_of

        device = self.device
        return TorchTensor(np.empty(shape, dtype_of(dtype.name)), device.type, device.index)


def torch_module(grad_enabled: bool = True, stream: int = 0) -> types.ModuleType:
    module = types.ModuleType("torch")
    module.strided = STRIDED
    for name in ("float16", "bfloat16", "float32", "uint8"):
        setattr(module, name, TorchDtype(name))
    module.is_grad_enabled = lambda: grad_enabled
    current = types.SimpleNamespace(cuda_stream=stream)
    module.cuda = types.SimpleNamespace(current_stream=lambda device: current)
    return module
