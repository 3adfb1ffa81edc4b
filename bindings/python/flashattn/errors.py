"""This module holds the exceptions: what a status of the C API becomes in Python.

Each class is also the built-in exception that a caller would expect, so that `except ValueError`
and `except FlashAttnError` both work; `status` holds the C API's number.
"""

from __future__ import annotations

from . import _abi


class FlashAttnError(Exception):
    """A call of the library failed. `status` is its flash_status_t, e.g. 301 (no such device)
    or 302 (a CUDA call failed)."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class FlashAttnValueError(FlashAttnError, ValueError):
    """An argument or a configuration is wrong: the call can never succeed as it is."""


class FlashAttnNotImplementedError(FlashAttnError, NotImplementedError):
    """The call is sound, but this library, build or machine cannot serve it."""


class FlashAttnMemoryError(FlashAttnError, MemoryError):
    """The machine has too little memory."""


class FlashAttnLookupError(FlashAttnError, LookupError):
    """There is no kernel for a configuration: FlashAttnInvalidConfigError and
    FlashAttnKernelUnavailableError say why."""


class FlashAttnInvalidConfigError(FlashAttnLookupError, FlashAttnValueError):
    """The configuration breaks a rule of its family."""


class FlashAttnKernelUnavailableError(FlashAttnLookupError, FlashAttnNotImplementedError):
    """The configuration is legal, but its kernel is not in this library, or cannot run on this
    machine."""


_CLASSES = {
    _abi.FLASH_ERROR_INVALID_ARGUMENT: FlashAttnValueError,
    _abi.FLASH_ERROR_INVALID_CONFIG: FlashAttnValueError,
    _abi.FLASH_ERROR_UNSUPPORTED: FlashAttnNotImplementedError,
    _abi.FLASH_ERROR_NOT_BUILT: FlashAttnNotImplementedError,
    _abi.FLASH_ERROR_OUT_OF_MEMORY: FlashAttnMemoryError,
}


_LOOKUP_CLASSES = {
    FlashAttnValueError: FlashAttnInvalidConfigError,
    FlashAttnNotImplementedError: FlashAttnKernelUnavailableError,
}


def from_status(status: int, message: str) -> FlashAttnError:
    """Returns the exception of a failed call, with the library's own message."""
    return _CLASSES.get(status, FlashAttnError)(message, status)


def from_lookup(status: int, message: str) -> FlashAttnLookupError:
    """Returns the exception of a look-up that found no kernel."""
    kind = _CLASSES.get(status, FlashAttnError)
    return _LOOKUP_CLASSES.get(kind, FlashAttnLookupError)(message, status)
