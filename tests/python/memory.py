"""Arrays in awkward memory: any layout, any alignment, guarded by pages and canaries.

Memory lies between two pages that must not be accessed. The bytes around an array and in the gaps
between its rows are filled: with NaN around inputs, so that reads show, and with canaries around
outputs, so that writes show.

contiguous    ends where the second of the pages begins
at_begin      the same, but begins where the first one ends
padded        gaps after each axis
heads_first   head after head all tokens
unaligned     begins at an odd address
"""

from __future__ import annotations

import ctypes
import mmap

import ml_dtypes
import numpy as np

DTYPES = ("float32", "float16", "bfloat16")
E4M3 = "float8_e4m3fn"  # of k and v alone
LATENT = "latent_e4m3"  # of k and v alone: tokens of bytes
QUANT_BLOCKS = ("q8_0", "q4_0")  # of k and v alone: rows of bytes
LAYOUTS = ("contiguous", "at_begin", "padded", "heads_first", "unaligned")

_GUARD = 64  # bytes on each side
_PADDING = 3  # elements between rows of a padded array
_NAN = 0xFF  # every element, latent token and quantised block of these bytes is NaN
_CANARY = 0xA5


def dtype_of(name: str) -> np.dtype:
    if name in (LATENT, *QUANT_BLOCKS):
        return np.dtype(np.uint8)
    return np.dtype(getattr(ml_dtypes, name) if name in ("bfloat16", E4M3) else name)


def nan_of(dtype: np.dtype) -> object:
    """Returns the element of a type of which all are NaN; bytes of it are latent tokens and
    quantised blocks of NaN."""
    return _NAN if dtype == np.uint8 else np.array(np.nan).astype(dtype)


def arrange(values: np.ndarray, layout: str) -> np.ndarray:
    """Returns the same values in memory of a layout, with NaN in all gaps."""
    _, array = _allocate(values.shape, values.dtype, layout, _NAN)
    array[...] = values
    return array


class Guarded:
    """An output with NaN in every element, and canaries around and between them."""

    def __init__(self, shape, dtype, layout: str = "contiguous") -> None:
        self._buffer, self.array = _allocate(shape, np.dtype(dtype), layout, _CANARY)
        self.array[...] = nan_of(self.array.dtype)
        self._poisoned = self._buffer.copy()

    def take(self) -> np.ndarray:
        """Returns the values, after asserting that nothing but the elements was written."""
        values = self.array.copy()
        self.array[...] = nan_of(self.array.dtype)
        outside = np.flatnonzero(self._buffer != self._poisoned)
        assert not len(outside), f"{len(outside)} bytes outside the output were written"
        return values

    def assert_untouched(self) -> None:
        assert (self._buffer == self._poisoned).all(), "a refused call wrote to its output"


class GuardedBytes:
    """A workspace of exactly `size` bytes at an odd address, with canaries on both sides."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._buffer = np.full(size + 2 * _GUARD, _CANARY, np.uint8)
        self._begin = _GUARD + 1
        self._buffer[self._begin : self._begin + size] = _NAN
        self.address = self._buffer.ctypes.data + self._begin

    def assert_guards(self) -> None:
        before, after = self._buffer[: self._begin], self._buffer[self._begin + self.size :]
        assert (before == _CANARY).all(), "written before the workspace"
        assert (after == _CANARY).all(), "written past the workspace"


def _allocate(shape, dtype: np.dtype, layout: str, fill: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (bytes, array within them); the innermost axis is contiguous in every layout."""
    axes = list(range(len(shape)))
    if layout == "heads_first":
        axes[-3], axes[-2] = axes[-2], axes[-3]
    strides, step = [0] * len(shape), 1
    for axis in reversed(axes):
        strides[axis] = step
        step *= shape[axis]
        step += _PADDING if layout == "padded" else 0
    n_bytes = step * dtype.itemsize
    buffer = between_forbidden_pages(n_bytes + 2 * _GUARD + 1)
    buffer[:] = fill
    offset = {
        "contiguous": buffer.size - n_bytes,
        "at_begin": 0,
        "unaligned": _GUARD + 1,
    }.get(layout, _GUARD)
    byte_strides = [stride * dtype.itemsize for stride in strides]
    return buffer, np.ndarray(shape, dtype, buffer, offset, byte_strides)


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_NO_ACCESS = 0  # PROT_NONE


def between_forbidden_pages(n_bytes: int) -> np.ndarray:
    """Maps at least n_bytes in whole pages. An access before or after them ends the process."""
    size = -(-max(n_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    mapping = mmap.mmap(-1, size + 2 * mmap.PAGESIZE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    for page in (begin, begin + mmap.PAGESIZE + size):
        if _LIBC.mprotect(page, mmap.PAGESIZE, _NO_ACCESS) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    return np.frombuffer(mapping, np.uint8, size, mmap.PAGESIZE)
