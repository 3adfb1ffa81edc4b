"""The GPU that a command needs."""

from __future__ import annotations

from ..device import Device, DeviceInfo, device_info
from ..errors import FlashAttnError
from . import problem
from .problem import BadInput


def require(what: str) -> DeviceInfo:
    """Returns the current CUDA device. Raises BadInput where the library can use none, in words for
    those who named `what`, a command or an option, and no device."""
    try:
        return device_info(Device.CUDA_CURRENT)
    except FlashAttnError as error:
        reason = problem.without_cuda() or f"; {error}"
        raise BadInput(f"{what} needs an NVIDIA GPU that the library can use{reason}") from None
