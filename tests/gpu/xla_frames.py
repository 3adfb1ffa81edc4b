"""Calls the library's handlers of XLA's custom calls as XLA does, on torch's tensors and current
stream: a machine needs no XLA for it. Structs are those of src/xla/vendor/xla/ffi/api/c_api.h."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from flashattn._library import library

INITIALIZE, EXECUTE = 2, 3  # stages
_TYPES = {
    torch.int32: 4, torch.uint8: 6, torch.float16: 10, torch.float32: 11, torch.bfloat16: 16
}  # fmt: skip
_INT64, _FLOAT32, _SCALAR, _BUFFER = 5, 11, 3, 1

Pointer, Size = ctypes.c_void_p, ctypes.c_size_t


def _struct(*fields: tuple[str, object]) -> type[ctypes.Structure]:
    """Returns a struct of XLA's, which begins with its size and a list of extensions."""
    every = ("struct_size", Size), ("extension_start", Pointer)
    return type("struct", (ctypes.Structure,), {"_fields_": [*every, *fields]})


_List = _struct(("size", ctypes.c_int64), ("types", Pointer), ("items", Pointer))
_Attributes = _struct(
    ("size", ctypes.c_int64), ("types", Pointer), ("names", Pointer), ("items", Pointer)
)
_Buffer = _struct(
    ("dtype", ctypes.c_int), ("data", Pointer), ("rank", ctypes.c_int64), ("dims", Pointer)
)
_Frame = _struct(
    ("api", Pointer), ("ctx", Pointer), ("stage", ctypes.c_int), ("args", _List), ("rets", _List),
    ("attrs", _Attributes), ("future", Pointer),
)  # fmt: skip
_OfError = _struct(("message", ctypes.c_char_p), ("code", ctypes.c_int))
_OfStream = _struct(("ctx", Pointer), ("stream", Pointer))
_OfDevice = _struct(("ctx", Pointer), ("ordinal", ctypes.c_int32))
# XLA_FFI_Api: its version (a struct of the common members and two int), and 18 functions.
_N_FUNCTIONS, _ERROR_CREATE, _STREAM_GET, _DEVICE_GET = 18, 0, 4, 17
_Api = _struct(
    ("version", _struct(("major", ctypes.c_int), ("minor", ctypes.c_int))),
    ("internal", Pointer),
    ("functions", Pointer * _N_FUNCTIONS),
)


class _Span(ctypes.Structure):
    _fields_ = [("ptr", ctypes.c_char_p), ("len", Size)]


class _Scalar(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("value", Pointer)]


class HandlerError(Exception):
    """What a handler returned as its error."""


class _Functions:
    """Holds the functions that handlers call, and the message of the error that they made."""

    def __init__(self) -> None:
        self.message = ""
        signature = ctypes.CFUNCTYPE(Pointer, Pointer)
        self.kept = [signature(x) for x in (self._create_error, self._stream, self._device)]
        self.api = _Api()
        for at, function in zip((_ERROR_CREATE, _STREAM_GET, _DEVICE_GET), self.kept):
            self.api.functions[at] = ctypes.cast(function, Pointer).value

    def _create_error(self, args: int) -> int:
        self.message = _OfError.from_address(args).message.decode()
        return 1

    def _stream(self, args: int) -> None:
        _OfStream.from_address(args).stream = torch.cuda.current_stream().cuda_stream

    def _device(self, args: int) -> None:
        _OfDevice.from_address(args).ordinal = torch.cuda.current_device()


def _buffers(tensors: Sequence[torch.Tensor], kept: list) -> _List:
    pointers = (Pointer * len(tensors))()
    for i, x in enumerate(tensors):
        assert x.is_contiguous()
        dims = (ctypes.c_int64 * x.dim())(*x.shape)
        buffer = _Buffer(0, None, _TYPES[x.dtype], x.data_ptr(), x.dim(), ctypes.addressof(dims))
        pointers[i] = ctypes.addressof(buffer)
        kept += [dims, buffer]
    types = (ctypes.c_int * len(tensors))(*[_BUFFER] * len(tensors))
    kept += [pointers, types]
    return _List(0, None, len(tensors), ctypes.addressof(types), ctypes.addressof(pointers))


def _attributes(values: Mapping[str, np.generic], kept: list) -> _Attributes:
    names, scalars = (Pointer * len(values))(), (Pointer * len(values))()
    for i, (name, value) in enumerate(sorted(values.items())):
        is_real = isinstance(value, np.floating)
        number = (ctypes.c_float if is_real else ctypes.c_int64)(value)
        scalar = _Scalar(_FLOAT32 if is_real else _INT64, ctypes.addressof(number))
        span = _Span(name.encode(), len(name))
        names[i], scalars[i] = ctypes.addressof(span), ctypes.addressof(scalar)
        kept += [number, scalar, span]
    types = (ctypes.c_int * len(values))(*[_SCALAR] * len(values))
    kept += [names, scalars, types]
    return _Attributes(0, None, len(values), *map(ctypes.addressof, (types, names, scalars)))


def call(
    handler: str,
    operands: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    attributes: Mapping[str, np.generic],
    stages: Sequence[int] = (INITIALIZE, EXECUTE),
) -> None:
    """Calls an exported handler, stage by stage. Raises HandlerError with its message."""
    kept: list = []
    api = _Functions()
    frame = _Frame(
        api=ctypes.addressof(api.api),
        args=_buffers(operands, kept),
        rets=_buffers(results, kept),
        attrs=_attributes(attributes, kept),
    )
    function = getattr(library(), handler)
    function.restype, function.argtypes = Pointer, [Pointer]
    for stage in stages:
        frame.stage = stage
        if function(ctypes.addressof(frame)):
            raise HandlerError(api.message)
