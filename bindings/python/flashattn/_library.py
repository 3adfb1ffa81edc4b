"""This module finds libflashattn, loads it once, and turns its failures into exceptions.

It looks for the library in this order: the exact path in the environment variable
FLASHATTN_LIBRARY (no fallback: a wrong path is an error), the copy bundled in this package, the
system's loader path. The library is loaded at the first call that needs it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
from pathlib import Path

from . import _abi, errors


def _find() -> str:
    exact = os.environ.get("FLASHATTN_LIBRARY")
    if exact:
        return exact
    here = Path(__file__).resolve().parent
    for name in (f"libflashattn.so.{_abi.FLASH_ABI_VERSION}", "libflashattn.so"):
        if (here / name).exists():
            return str(here / name)
    found = ctypes.util.find_library("flashattn")
    if found:
        return found
    raise ImportError(
        f"libflashattn.so was not found: not in {here}, nor on the system's loader path; install "
        "the package with pip, or set FLASHATTN_LIBRARY to the path of the library"
    )


def _open(path: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)  # its calls release the interpreter lock
    except OSError as error:
        raise ImportError(f"cannot load libflashattn: {error}") from error


@functools.cache
def library() -> ctypes.CDLL:
    """Returns the loaded library, every prototype set. Raises ImportError."""
    path = _find()
    loaded = _open(path)
    for name, (restype, argtypes) in _abi.PROTOTYPES.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise ImportError(f"{path} has no {name}: it is not this package's library") from None
        function.restype = restype
        function.argtypes = argtypes
    _check_versions(path, loaded)
    return loaded


def _check_versions(path: str, loaded: ctypes.CDLL) -> None:
    """Raises ImportError for a library of another ABI; ABI 0 is another one in each minor
    version."""
    abi = loaded.flash_abi_version()
    if abi != _abi.FLASH_ABI_VERSION:
        raise ImportError(
            f"{path} has ABI version {abi}, this package needs {_abi.FLASH_ABI_VERSION}"
        )
    version, own = loaded.flash_version_number() // 100, _abi.FLASH_VERSION_NUMBER // 100
    if abi == 0 and version != own:
        raise ImportError(
            f"{path} has version {version // 100}.{version % 100}, whose ABI may be another; this "
            f"package needs {own // 100}.{own % 100}"
        )


def last_error() -> str:
    """Returns the message of this thread's last failed call."""
    return library().flash_last_error().decode()


def lookup_error() -> errors.FlashAttnLookupError:
    """Returns the exception of this thread's last call, which looked for a kernel and found
    none."""
    return errors.from_lookup(library().flash_last_status(), last_error())


def check(status: int) -> None:
    """Raises the exception of a status that is not success."""
    if status != _abi.FLASH_SUCCESS:
        raise errors.from_status(status, last_error())
