"""This module adapts arrays: it says where the elements of an array lie, whatever library made it.

It serves numpy arrays (float32, float16, and ml_dtypes' bfloat16 and float8_e4m3fn), torch tensors,
and everything with `__dlpack__`, `__array_interface__` or `__cuda_array_interface__`, in CPU or
CUDA memory. Nothing is ever copied. torch is used only where the caller's tensor brought it.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Union

import numpy as np

from . import _abi, _dlpack, _stream, latent, quant_blocks
from ._dlpack import compact_strides
from ._stream import is_torch
from .device import device_info, device_text

# DTYPES maps an element type's name (as numpy, torch and ml_dtypes spell it) to FLASH_DTYPE_*.
DTYPES = {
    "float16": _abi.FLASH_DTYPE_FP16,
    "bfloat16": _abi.FLASH_DTYPE_BF16,
    "float32": _abi.FLASH_DTYPE_FP32,
}
# K and V may have the types of KEY_DTYPES; they alone may be of 8 bits.
KEY_DTYPES = {**DTYPES, "float8_e4m3fn": _abi.FLASH_DTYPE_E4M3}
# Types of K and V that no array names: the caller does, as kv_dtype.
KV_DTYPES = {
    latent.KV_DTYPE: _abi.FLASH_DTYPE_LATENT_E4M3,
    "q8_0": _abi.FLASH_DTYPE_Q8_0,
    "q4_0": _abi.FLASH_DTYPE_Q4_0,
}
_ITEM_SIZE = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float8_e4m3fn": 1,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint32": 4,
    "bool": 1,
}
# _HIDDEN maps an array interface's typestr of ml_dtypes' types to their names.
_HIDDEN = {"V2": "bfloat16", "V1": "float8_e4m3fn"}


class View(NamedTuple):
    """Holds an array as the C API sees it."""

    data: int  # address of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements; 0 along axes of at most one element
    dtype: str
    device: int  # FLASH_DEVICE_...
    writable: bool
    owner: object  # keeps the memory alive

    @property
    def repeats(self) -> bool:
        """Says whether several elements lie in one place, along an axis with a stride of 0."""
        if 0 in self.strides:
            for stride, length in zip(self.strides, self.shape):
                if stride == 0 and length > 1:
                    return True
        return False


def view(array: Any, name: str, stream: int = _stream.DEFAULT) -> View:
    """Returns the elements of `array`; `name` is the argument's name in messages, `stream` the CUDA
    stream that will use them.

    Raises TypeError for what is no array, ValueError for an array that cannot be used as it is.
    """
    if isinstance(array, np.ndarray):
        return _view_numpy(array, name)
    if is_torch(array):
        return _view_torch(array, name)
    if hasattr(array, "__dlpack__"):
        return _view_dlpack(array, name, stream)
    if hasattr(array, "__array_interface__"):
        return _view_interface(array, name, "__array_interface__", _abi.FLASH_DEVICE_CPU)
    if hasattr(array, "__cuda_array_interface__"):
        device = device_info(_abi.FLASH_DEVICE_CUDA_CURRENT).device
        return _view_interface(array, name, "__cuda_array_interface__", device)
    raise TypeError(
        f"{name} is of type {type(array).__name__}: neither a numpy array nor a torch tensor, and "
        "without __dlpack__ and __array_interface__"
    )


def tensor_view(
    array: Any, name: str, n_axes: int | tuple[int, int], stream: int = _stream.DEFAULT
) -> View:
    """Returns a view of floating-point elements with `n_axes` axes, or one of two numbers of axes,
    the innermost one contiguous."""
    result = view(array, name, stream)
    if result.dtype not in DTYPES:
        raise ValueError(f"{name} is {result.dtype}: not float16, bfloat16 or float32")
    return _check_axes(result, name, n_axes)


def key_view(array: Any, name: str, n_axes: int, stream: int = _stream.DEFAULT) -> View:
    """Returns such a view of k or v, which may also be of 8 bits."""
    result = view(array, name, stream)
    if result.dtype not in KEY_DTYPES:
        raise ValueError(
            f"{name} is {result.dtype}: not float16, bfloat16, float32 or float8_e4m3fn, and there "
            "is no kv_dtype"
        )
    return _check_axes(result, name, n_axes)


def query_view(q: Any, n_axes: int, stream: int = _stream.DEFAULT) -> View:
    """Returns such a view of q, which may be of 8 bits, where k is."""
    result = view(q, "q", stream)
    if result.dtype not in KEY_DTYPES:
        raise ValueError(
            f"q is {result.dtype}: not float16, bfloat16 or float32, nor, beside k and v of it, "
            "float8_e4m3fn"
        )
    return _check_axes(result, "q", n_axes)


def named_view(
    array: Any,
    name: str,
    n_axes: int,
    kv_dtype: str | None,
    latent_columns: int,
    stream: int = _stream.DEFAULT,
) -> View:
    """Returns a view of k or v of a named type, one of parts_of_kv_dtype(), or if that is None of
    the array's. An array of a named type is of uint8 and has bytes as its last axis: latent tokens,
    of which the view has so many columns, or rows of quantised blocks. Its strides are in bytes."""
    if kv_dtype is None:
        return key_view(array, name, n_axes, stream)
    result = view(array, name, stream)
    if result.dtype != "uint8":
        raise ValueError(f"{name} is {result.dtype}: with kv_dtype {kv_dtype!r} it is uint8")
    result = _check_axes(result, name, n_axes)
    n_bytes = result.shape[-1]
    if kv_dtype != latent.KV_DTYPE:
        n_columns = _columns_of_blocks(result, name, kv_dtype)
    elif n_bytes == latent.TOKEN_BYTES:
        n_columns = latent_columns
    else:
        raise ValueError(
            f"{name} has shape {result.shape}: a token of kv_dtype {kv_dtype!r}, the last axis, "
            f"has {latent.TOKEN_BYTES} bytes"
        )
    return result._replace(shape=(*result.shape[:-1], n_columns), dtype=kv_dtype)


def _columns_of_blocks(array: View, name: str, kv_dtype: str) -> int:
    block = quant_blocks.BYTES[kv_dtype]
    if array.shape[-1] % block:
        raise ValueError(
            f"{name} has shape {array.shape}: a row of kv_dtype {kv_dtype!r}, the last axis, has a "
            f"multiple of {block} bytes"
        )
    return quant_blocks.columns(array.shape[-1], kv_dtype)


def _check_axes(result: View, name: str, n_axes: int | tuple[int, int]) -> View:
    either = (n_axes,) if isinstance(n_axes, int) else n_axes
    if len(result.shape) not in either:
        wanted = " or ".join(map(str, either))
        raise ValueError(f"{name} has {len(result.shape)} axes, not {wanted}: {result.shape}")
    if 0 not in result.shape and result.shape[-1] > 1 and result.strides[-1] != 1:
        raise ValueError(
            f"{name} is not contiguous along its innermost axis (stride {result.strides[-1]} "
            "elements, not 1): copy it first"
        )
    return result


def lse_view(array: Any, name: str, shape: tuple[int, ...], stream: int = _stream.DEFAULT) -> View:
    """Returns a view of float32 values of a shape, with any strides."""
    found = view(array, name, stream)
    if found.dtype != "float32":
        raise ValueError(f"{name} is {found.dtype}, not float32")
    if found.shape != shape:
        raise ValueError(f"{name} has shape {found.shape}, not {shape}")
    return found


def contiguous_lse_view(
    array: Any, name: str, shape: tuple[int, ...], stream: int = _stream.DEFAULT
) -> View:
    """Returns a view of float32 values of a shape, which must be contiguous."""
    found = lse_view(array, name, shape, stream)
    compact = _drop_unused(shape, compact_strides(shape))
    if found.strides != compact and 0 not in shape:
        raise ValueError(f"{name} is not contiguous: strides {found.strides} in elements")
    return found


def lengths_view(
    array: Any, name: str, count: int | None = None, stream: int = _stream.DEFAULT
) -> View:
    """Returns a view of `count` contiguous int32 values; converts sequences of Python integers."""
    return _integers_view(array, name, count, stream, "int32")


def rows_view(
    array: Any, name: str, count: int | None = None, stream: int = _stream.DEFAULT
) -> View:
    """Does the same for values of int32 or int64."""
    return _integers_view(array, name, count, stream, "int32", "int64")


def int64_view(array: Any, name: str, count: int, stream: int = _stream.DEFAULT) -> View:
    """Does the same for values of int64."""
    return _integers_view(array, name, count, stream, "int64")


def _integers_view(array: Any, name: str, count: int | None, stream: int, *dtypes: str) -> View:
    if isinstance(array, (list, tuple)):
        array = _array_of(array, name, np.dtype(dtypes[0]))
    result = view(array, name, stream)
    if result.dtype not in dtypes:
        raise ValueError(f"{name} is {result.dtype}, not {' or '.join(dtypes)}")
    return _check_flat(result, name, count)


def _check_flat(result: View, name: str, count: int | None) -> View:
    if len(result.shape) != 1:
        raise ValueError(f"{name} has {len(result.shape)} axes, not 1: {result.shape}")
    if result.shape[0] > 1 and result.strides[0] != 1:
        raise ValueError(f"{name} is not contiguous (stride {result.strides[0]} elements, not 1)")
    if count is not None and result.shape[0] != count:
        raise ValueError(f"{name} has {result.shape[0]} values, not {count}")
    return result


def table_view(array: Any, name: str, n_axes: int, stream: int = _stream.DEFAULT) -> View:
    """Returns a view of int32 values with `n_axes` axes, the innermost one contiguous."""
    result = view(array, name, stream)
    if result.dtype != "int32":
        raise ValueError(f"{name} is {result.dtype}, not int32")
    if len(result.shape) != n_axes:
        raise ValueError(f"{name} has {len(result.shape)} axes, not {n_axes}: {result.shape}")
    if 0 not in result.shape and result.shape[-1] > 1 and result.strides[-1] != 1:
        raise ValueError(
            f"{name} is not contiguous along its innermost axis (stride {result.strides[-1]} "
            "elements, not 1)"
        )
    return result


def bytes_view(array: Any, name: str, stream: int = _stream.DEFAULT) -> View:
    """Returns a view of contiguous bytes."""
    result = view(array, name, stream)
    if result.dtype != "uint8" or len(result.shape) != 1:
        raise ValueError(f"{name} is {result.dtype} with {len(result.shape)} axes: not flat uint8")
    if result.shape[0] > 1 and result.strides[0] != 1:
        raise ValueError(f"{name} is not contiguous (stride {result.strides[0]} elements, not 1)")
    return result


def check_gradient(tensor: Any, name: str) -> None:
    """Raises NotImplementedError for a torch tensor whose gradient this call would have to
    compute."""
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise NotImplementedError(
            f"{name} requires a gradient, and flashattn.torch_ops records those of attention's q, "
            f"k, v and sinks alone: use {name}.detach() or torch.no_grad()"
        )


def check_form(tensor: Any, name: str) -> None:
    """Raises ValueError for a torch tensor whose elements do not lie in memory at strides."""
    if tensor.is_nested:
        raise ValueError(
            f"{name} is a nested tensor, whose sequences no strides tell: pass the tokens of all "
            "sequences in one tensor, and cu_seqlens"
        )
    if tensor.layout is not sys.modules["torch"].strided:
        raise ValueError(
            f"{name} has the layout {tensor.layout}: not torch.strided, as {name}.to_dense() is"
        )


def check_same_device(first_name: str, first: View, **others: View | None) -> None:
    """Raises ValueError for a view on another device than the first."""
    for name, other in others.items():
        if other is not None and other.device != first.device:
            raise ValueError(
                f"{name} is on {device_text(other.device)}, {first_name} on "
                f"{device_text(first.device)}"
            )


def check_outputs(**outputs: View | None) -> None:
    """Raises ValueError for a view that cannot be written to: read-only, or one that holds several
    elements in one place."""
    for name, output in outputs.items():
        if output is None:
            continue
        if not output.writable:
            raise ValueError(f"{name} is read-only")
        if output.repeats and 0 not in output.shape:
            raise ValueError(
                f"{name} overlaps itself: shape {output.shape}, strides {output.strides} in "
                "elements"
            )


def read_integer(array: View, index: int) -> int:
    """Returns one value of a view of int32 or int64 in CPU memory."""
    kind = ctypes.c_int32 if array.dtype == "int32" else ctypes.c_int64
    return kind.from_address(array.data + ctypes.sizeof(kind) * index).value


_NOWHERE = ctypes.c_int64()


def address(array: View | None) -> int | None:
    """Returns where the elements of a view begin. An empty tensor of torch begins nowhere, which
    the C API would take for an array that is not given."""
    return None if array is None else array.data or ctypes.addressof(_NOWHERE)


def c_tensor(array: View, *, ragged: bool = False) -> _abi.flash_tensor_t:
    """Returns the C struct of a view [batch, seq, head, d_head], ragged: [token, head, d_head]."""
    strides = _three_strides(array.strides[:-1], ragged)
    dtype = KEY_DTYPES.get(array.dtype) or KV_DTYPES[array.dtype]
    return _abi.flash_tensor_t(array.data, *strides, dtype=dtype)


def lse_strides(array: View, *, ragged: bool) -> dict[str, int]:
    """Returns the members of flash_forward_args_t for a view [batch, head, seq], ragged: [head,
    token]. All are 0, which means contiguous to the C API, only for a view of a single element."""
    batch, head, seq = _three_strides(array.strides, ragged)
    return {"lse_stride_batch": batch, "lse_stride_head": head, "lse_stride_seq": seq}


def _three_strides(strides: tuple[int, ...], ragged: bool) -> tuple[int, ...]:
    return (0, *strides) if ragged else strides[-3:]


def empty(like: Any, device: int, shape: Sequence[int], dtype: str, keyword: str) -> Any:
    """Returns a new array of the kind of `like`, which is on `device`: a torch tensor there, or a
    numpy array. Raises ValueError, with the `keyword` that takes the caller's own array, for CUDA
    memory that only `like`'s own library could allocate."""
    if is_torch(like):
        return like.new_empty(tuple(shape), dtype=getattr(sys.modules["torch"], dtype))
    if device != _abi.FLASH_DEVICE_CPU:
        raise ValueError(
            f"a {type(like).__name__} in CUDA memory needs an array for the result: {keyword}="
        )
    return np.empty(tuple(shape), numpy_dtype(dtype))


def check_dtype_name(keyword: str, name: str | None) -> None:
    """Raises ValueError unless `name` is None or one of DTYPES."""
    if name is not None and not (isinstance(name, str) and name in DTYPES):
        raise ValueError(f"{keyword} is {name!r}: not one of {', '.join(DTYPES)}")


KvDtype = Union[str, "tuple[str | None, str | None]", None]  # what a caller gives as kv_dtype


def parts_of_kv_dtype(kv_dtype: KvDtype) -> tuple[str | None, str | None]:
    """Returns the named types of K and of V, each one of KV_DTYPES or None. Raises ValueError for
    other values of kv_dtype, which is such a name, for both, or a pair of them."""
    parts = kv_dtype if isinstance(kv_dtype, tuple) else (kv_dtype, kv_dtype)
    if len(parts) != 2 or not all(_names_kv_type(part) for part in parts):
        names = ", ".join(map(repr, KV_DTYPES))
        raise ValueError(f"kv_dtype is {kv_dtype!r}: not {names}, or a pair for k and v")
    return parts


def _names_kv_type(name: object) -> bool:
    return name is None or (isinstance(name, str) and name in KV_DTYPES)


def numpy_dtype(name: str) -> np.dtype:
    """Returns numpy's dtype of a name in KEY_DTYPES. Some need the package ml_dtypes."""
    if name not in _HIDDEN.values():
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError(f"{name} in numpy needs the package ml_dtypes") from None
    return np.dtype(getattr(ml_dtypes, name))


def _view_numpy(array: np.ndarray, name: str) -> View:
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        raise ValueError(
            f"{name} is a masked array, whose mask would be ignored: pass {name}.filled(value) or "
            f"{name}.data"
        )
    if not array.dtype.isnative:
        raise ValueError(f"{name} has the other byte order: {array.dtype.str}")
    return View(
        array.ctypes.data,
        array.shape,
        _element_strides(array.shape, array.strides, array.itemsize, name),
        _dtype_name(array.dtype),
        _abi.FLASH_DEVICE_CPU,
        array.flags.writeable,
        array,
    )


@functools.lru_cache(maxsize=64)
def _dtype_name(dtype: np.dtype) -> str:
    """Returns the name of a dtype. numpy makes it anew each time, which takes microseconds."""
    return dtype.name


def _view_torch(tensor: Any, name: str) -> View:
    check_form(tensor, name)
    check_gradient(tensor, name)
    return View(
        tensor.data_ptr(),
        tuple(tensor.shape),
        _drop_unused(tensor.shape, tensor.stride()),
        str(tensor.dtype).rpartition(".")[2],
        _torch_device(tensor.device, name),
        True,
        tensor,
    )


def _torch_device(device: Any, name: str) -> int:
    if device.type == "cpu":
        return _abi.FLASH_DEVICE_CPU
    if device.type != "cuda":
        raise ValueError(f"{name} is on the device {device}: neither the CPU nor a CUDA device")
    if device.index is None:
        return _abi.FLASH_DEVICE_CUDA_CURRENT
    return _abi.FLASH_DEVICE_CUDA + device.index


def _view_dlpack(array: Any, name: str, stream: int) -> View:
    tensor = _dlpack.read(array, name, stream)
    return View(
        tensor.data,
        tensor.shape,
        _drop_unused(tensor.shape, tensor.strides),
        tensor.dtype,
        tensor.device,
        tensor.writable,
        tensor.owner,
    )


def _view_interface(array: Any, name: str, attribute: str, device: int) -> View:
    interface = getattr(array, attribute)
    dtype = _interface_dtype(array, name, interface["typestr"])
    shape = tuple(interface["shape"])
    if interface.get("mask") is not None:
        raise ValueError(f"{name} has a mask in {attribute}, which would be ignored")
    if not isinstance(interface.get("data"), tuple):
        raise ValueError(f"{name} does not give the address of its data in {attribute}")
    address, read_only = interface["data"]
    strides = _interface_strides(interface.get("strides"), shape, dtype, f"{name}.{attribute}")
    return View(address, shape, strides, dtype, device, not read_only, (array, interface))


def _interface_strides(
    byte_strides: Sequence[int] | None, shape: tuple[int, ...], dtype: str, name: str
) -> tuple[int, ...]:
    if byte_strides is None:
        return _drop_unused(shape, compact_strides(shape))
    if len(byte_strides) != len(shape):
        raise ValueError(f"{name} has {len(byte_strides)} strides for {len(shape)} axes")
    return _element_strides(shape, byte_strides, _ITEM_SIZE.get(dtype, 1), name)


def _interface_dtype(array: Any, name: str, typestr: str) -> str:
    """Returns the name of an element type. In a typestr bfloat16 and float8_e4m3fn are raw bytes,
    "V2" and "V1", and only the array's dtype says what they are."""
    own_name = getattr(getattr(array, "dtype", None), "name", None)
    if own_name is not None and _HIDDEN.get(typestr[1:]) == own_name:
        return own_name
    dtype = np.dtype(typestr)
    if not dtype.isnative:
        raise ValueError(f"{name} has the other byte order: {typestr}")
    return dtype.name


def _element_strides(
    shape: Sequence[int], byte_strides: Sequence[int], item_size: int, name: str
) -> tuple[int, ...]:
    strides = []
    for length, stride in zip(shape, byte_strides):
        if length > 1 and stride % item_size:
            raise ValueError(
                f"{name} has a stride of {stride} bytes, no multiple of its elements' {item_size}"
            )
        strides.append(stride // item_size if length > 1 else 0)  # as in _drop_unused()
    return tuple(strides)


def _drop_unused(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Returns strides with 0 along axes of at most one element. They mean nothing there, but array
    libraries leave odd values, negative ones included, that the C API would refuse."""
    return tuple([stride if length > 1 else 0 for length, stride in zip(shape, strides)])


def _array_of(values: Sequence[Any], name: str, dtype: type[np.signedinteger]) -> np.ndarray:
    """Returns a list of integers as an array. Raises ValueError for other lists."""
    try:
        wide = np.asarray(values)
    except ValueError:  # its members are no numbers, or not of one shape
        wide = np.empty((0, 0))
    if wide.ndim != 1 or (wide.size and wide.dtype.kind != "i"):
        raise ValueError(f"{name} is not a flat sequence of integers")
    narrow = wide.astype(dtype)
    if (narrow != wide).any():
        bits = np.iinfo(dtype).bits
        raise ValueError(f"{name} holds {wide[narrow != wide][0]}, which does not fit {bits} bits")
    return narrow
