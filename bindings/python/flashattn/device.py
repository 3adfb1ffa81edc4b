"""Devices, threads and versions: what the library finds and how many threads it may use."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from . import _abi
from ._library import check, library


class Isa(enum.IntFlag):
    """Instruction sets of a CPU that a kernel family stands on."""

    AVX2 = _abi.FLASH_ISA_AVX2
    AVX512 = _abi.FLASH_ISA_AVX512


@dataclass(frozen=True)
class DeviceInfo:
    """A device: its number, the processor's own name, instruction sets, threads of a call."""

    device: int
    name: str
    isa: Isa
    n_threads: int


def device_info(device: int = _abi.FLASH_DEVICE_CPU) -> DeviceInfo:
    """The device of a number: 0 is the CPU, 1 the current CUDA device, n + 2 CUDA device n.

    Raises ValueError (negative), NotImplementedError (a CUDA device and a library without CUDA),
    FlashAttnError (no such device).
    """
    info = _abi.flash_device_info_t()
    check(library().flash_device_info(device, info))
    return DeviceInfo(info.device, info.name.decode(), Isa(info.isa), info.n_threads)


def set_num_threads(n_threads: int) -> None:
    """CPU threads that later calls use, the caller's included: 1 ... 4096, or 0 for the default.

    Raises ValueError.
    """
    check(library().flash_set_num_threads(n_threads))


def num_threads() -> int:
    """CPU threads that a call started now would use at most."""
    return library().flash_num_threads()


def version() -> str:
    """Version of the loaded library, as in "0.1.0"."""
    return library().flash_version().decode()
