"""A CUDA device that no machine has, and how each kind of library refuses it."""

from __future__ import annotations

import flashattn
from flashattn import _abi

ORDINAL = 63
NUMBER = _abi.FLASH_DEVICE_CUDA + ORDINAL
HAS_CUDA = any(kernel.config.arch >= flashattn.Arch.SM80 for kernel in flashattn.kernels())
STATUS = _abi.FLASH_ERROR_NO_DEVICE if HAS_CUDA else _abi.FLASH_ERROR_UNSUPPORTED
MESSAGE = f"device is CUDA device {ORDINAL}"
