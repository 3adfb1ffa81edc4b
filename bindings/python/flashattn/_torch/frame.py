"""This module holds the memory that calls reuse, and launches calls.

A frame belongs to one call at a time: it is taken from a list and given back, which a thread, a
call within a call (from a parallel-for hook or a finalizer) and a child process can all do without
a lock. There are as many frames as calls ran at the same time.
"""

from __future__ import annotations

import ctypes
from typing import Callable

import torch

from .. import _workspace
from .._library import check, library
from . import structs

# A frame keeps a workspace of the CPU up to this size, which holds that of decode and of short
# prompts; longer calls take theirs from the process's pool.
_KEPT_BYTES_MAX = 1 << 22

_get_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class Frame:
    """Holds the packed arguments of one call, with what they point to, and the C function they are
    for.

    memory    bytes for structs.FORWARD, structs.COMBINE or structs.APPEND
    """

    __slots__ = ("memory", "args", "function")

    def __init__(self, size: int, name: str) -> None:
        self.memory = bytearray(size)
        self.args = ctypes.c_void_p(_address_of(self.memory))
        self.function = _function(name)


class CacheFrame(Frame):
    """Holds two more structs, paging and quant, as bytes with their addresses."""

    __slots__ = ("paging", "paging_address", "quant", "quant_address")

    def __init__(self, size: int, name: str) -> None:
        super().__init__(size, name)
        self.paging = bytearray(structs.PAGING.size)
        self.paging_address = _address_of(self.paging)
        self.quant = bytearray(structs.QUANT.size)
        self.quant_address = _address_of(self.quant)


class AppendFrame(CacheFrame):
    """Holds the struct rotary, too."""

    __slots__ = ("rotary", "rotary_address")

    def __init__(self) -> None:
        super().__init__(structs.APPEND.size, "flash_kv_append")
        self.rotary = bytearray(structs.ROTARY.size)
        self.rotary_address = _address_of(self.rotary)


class ForwardFrame(CacheFrame):
    """Holds the struct dropout, too, and `workspace`: the address and the size of memory on the
    CPU, for calls there."""

    __slots__ = (
        "dropout", "dropout_address", "workspace", "_memory", "_ask", "_size", "_size_p",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__(structs.FORWARD.size, "flash_forward")
        self.dropout = bytearray(structs.DROPOUT.size)
        self.dropout_address = _address_of(self.dropout)
        self.workspace = (0, 0)
        self._ask = _function("flash_workspace_size")
        self._size = ctypes.c_uint64()
        self._size_p = ctypes.byref(self._size)

    def run_on_cpu(self) -> None:
        """Computes attention on the CPU, in this frame's workspace or, for one too large to keep,
        in the process's. Each call asks the library for the size, since a workspace that is too
        small is not refused: fewer threads work then."""
        status = self._ask(self.args, None, self._size_p)
        if status:
            check(status)
        size = self._size.value
        if size > self.workspace[1]:
            if size > _KEPT_BYTES_MAX:
                return self._run_with_lent(size)
            self._grow(size)
        status = self.function(self.args, None, None)
        if status:
            check(status)

    def _run_with_lent(self, size: int) -> None:
        with _workspace.lent(size) as memory:
            self._set_workspace(memory.ctypes.data, memory.nbytes)
            check(self.function(self.args, None, None))

    def _grow(self, size: int) -> None:
        """Replaces the workspace by one with room for lengths that grow from call to call."""
        self._memory = torch.empty(size + size // 4, dtype=torch.uint8, device="cpu")
        self.workspace = self._memory.data_ptr(), self._memory.numel()
        self._set_workspace(*self.workspace)

    def run_on_cuda(self, index: int, device: torch.device) -> None:
        """Enqueues attention on torch's current stream of the device, with a workspace of torch's
        allocator: during the capture of a graph it comes from the graph's pool. torch gives memory
        that is freed here only to work that comes later on this stream."""
        check(self._ask(self.args, None, self._size_p))
        size = self._size.value
        if size:
            workspace = torch.empty(size, dtype=torch.uint8, device=device)
            self._set_workspace(workspace.data_ptr(), size)
        check(self.function(self.args, None, ctypes.c_void_p(raw_stream(index))))

    def _set_workspace(self, address: int, size: int) -> None:
        structs.WORKSPACE.pack_into(self.memory, structs.WORKSPACE_OFFSET, address, size)


def combine_frame() -> Frame:
    return Frame(structs.COMBINE.size, "flash_combine")


def raw_stream(index: int) -> int:
    """Returns torch's current stream of a CUDA device as an address. The private function is the
    one that torch's generated code calls; the public one makes an object, which takes
    microseconds."""
    if _get_raw_stream is not None:
        return _get_raw_stream(index)
    return torch.cuda.current_stream(index).cuda_stream


def _function(name: str) -> Callable[..., int]:
    """Returns a function of the library without argument types, since to convert arguments to them
    takes longer than the call. Pointers must come as c_void_p or None."""
    function = library()[name]
    function.restype = ctypes.c_int32
    return function


def _address_of(memory: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
