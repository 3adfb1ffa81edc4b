"""This module describes devices, threads and versions: what the library finds, and how many threads
it may use."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from . import _abi, _numbers
from ._library import check, library
from .errors import FlashAttnError


class Device(enum.IntEnum):
    """Names devices by their numbers: the kind is in the upper 16 bits, the number of the device
    below. Device.CUDA + n is CUDA device n."""

    CPU = _abi.FLASH_DEVICE_CPU
    CUDA = _abi.FLASH_DEVICE_CUDA
    CUDA_CURRENT = _abi.FLASH_DEVICE_CUDA_CURRENT


class Isa(enum.IntFlag):
    """Names the instruction sets of a CPU that kernel families use."""

    AVX2 = _abi.FLASH_ISA_AVX2
    AVX512 = _abi.FLASH_ISA_AVX512
    AMX = _abi.FLASH_ISA_AMX
    NEON = _abi.FLASH_ISA_NEON
    AVX512_BF16 = _abi.FLASH_ISA_AVX512_BF16
    NEON_BF16 = _abi.FLASH_ISA_NEON_BF16


@dataclass(frozen=True)
class DeviceInfo:
    """Holds what the library found out about a device: its number and the processor's own name. The
    CPU also has instruction sets and the number of threads that a call uses at most; a CUDA device
    has a compute capability (90 for 9.0), multiprocessors and the bytes of shared memory that a
    block can have."""

    device: int
    name: str
    isa: Isa
    n_threads: int
    compute_capability: int
    n_multiprocessors: int
    shared_memory_per_block: int


def device_info(device: int = _abi.FLASH_DEVICE_CPU) -> DeviceInfo:
    """Describes a device: Device.CPU, Device.CUDA + n or Device.CUDA_CURRENT.

    Raises ValueError (no number of a kind of device), NotImplementedError (a CUDA device and a
    library without CUDA), FlashAttnError (no such device).
    """
    info = _abi.flash_device_info_t()
    check(library().flash_device_info(_numbers.int32("device", device), info))
    return DeviceInfo(
        info.device,
        info.name.decode(),
        Isa(info.isa),
        info.n_threads,
        info.compute_capability,
        info.n_multiprocessors,
        info.shared_memory_per_block,
    )


def cuda_devices() -> list[DeviceInfo]:
    """Returns the CUDA devices of this machine; none if the library is without CUDA, or finds no
    driver.

    Raises FlashAttnError (a device that is there and cannot be asked).
    """
    found: list[DeviceInfo] = []
    absent = (_abi.FLASH_ERROR_UNSUPPORTED, _abi.FLASH_ERROR_NO_DEVICE)
    while True:
        try:
            found.append(device_info(_abi.FLASH_DEVICE_CUDA + len(found)))
        except FlashAttnError as error:
            if error.status in absent:
                return found
            raise


def device_text(number: int) -> str:
    """Returns a device's number in words."""
    if number == Device.CUDA_CURRENT:
        return "the current CUDA device"
    return "the CPU" if number == Device.CPU else f"CUDA device {number - Device.CUDA}"


def set_num_threads(n_threads: int) -> None:
    """Sets how many CPU threads later calls use, the caller's included: 1 ... 4096; 0: the default.

    Raises ValueError.
    """
    check(library().flash_set_num_threads(_numbers.int32("n_threads", n_threads)))


def num_threads() -> int:
    """Returns how many CPU threads a call started now would use at most.

    Raises ValueError (FLASHATTN_NUM_THREADS cannot be understood).
    """
    n_threads = library().flash_num_threads()
    if n_threads == 0:
        check(library().flash_last_status())
    return n_threads


def version() -> str:
    """Returns the version of the loaded library, as in "0.2.0"."""
    return library().flash_version().decode()
