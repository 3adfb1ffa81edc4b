"""The read floor of `bench-decode`: kernels that only read as many cold bytes as a call must, which
a build of the library's tests or benchmarks puts beside it (benchmarks/gpu/read_floor.cu)."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Callable

from .._library import library
from . import extras

_FILE = "libflashattn_read_floor.so"
_UNIT = 16  # bytes of a load


def calls(memory: Any, n_bytes: int, sink: Any = None) -> list[Callable[[], None]]:
    """A call for each way of reading the first n_bytes of a torch tensor in CUDA memory that the
    device has, on torch's stream; none where the kernels are not there.

    sink    a tensor of 4 bytes or more that tells tests what was read; see read_floor.cu
    """
    floor = _load()
    if floor is None or n_bytes < _UNIT:
        return []
    if sink is None:
        sink = memory.new_zeros(_UNIT).view(extras.load("torch").uint8)
    found = [
        _call(floor, shape, memory, n_bytes // _UNIT * _UNIT, sink)
        for shape in range(floor.flashattn_read_floor_shapes())
    ]
    return [call for call in found if _runs(call)]


def _load() -> ctypes.CDLL | None:
    path = Path(library()._name).with_name(_FILE)
    if not path.is_file():
        return None
    floor = ctypes.CDLL(str(path))
    floor.flashattn_read_floor.argtypes = (
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_void_p,
    )
    return floor


def _call(
    floor: ctypes.CDLL, shape: int, memory: Any, n_bytes: int, sink: Any
) -> Callable[[], None]:
    cuda = extras.load("torch").cuda

    def call() -> None:
        stream = cuda.current_stream().cuda_stream
        status = floor.flashattn_read_floor(
            shape, memory.data_ptr(), n_bytes, sink.data_ptr(), stream
        )
        if status != 0:
            raise RuntimeError(f"reading in way {shape}: CUDA error {status}")

    return call


def _runs(call: Callable[[], None]) -> bool:
    try:
        call()
    except RuntimeError:
        return False
    return True
