"""This module loads the extension (bindings/python/extension), which makes calls of the C library
for plain torch tensors in a fraction of the time that Python takes, and says whether it is there.

    forward   computes attention, or returns None for a call that it does not serve
    append    writes new tokens to a cache, or returns False and writes nothing

Both are None without the extension; what they do not serve, and whatever is wrong with a call, is
left to the rest of this package. forward takes a call (call.py), of which the last arguments may be
left out that have their defaults; append takes all arguments by their places, as append.c has them.
A compiler must not see them: callers ask `direct` first.

The extension lies beside the library. It needs CPython 3.10 with its lock and a torch whose tensors
have DLPack's C exchange API (2.10 or newer). With FLASHATTN_EXTENSION=0 it is not used.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Callable

import torch
from torch.autograd import forward_ad

from .._library import library
from . import direct
from .call import MEMBERS_OF_CALL, NAMES

_NAME = "_extension"
_EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)


def _is_wanted() -> bool:
    value = os.environ.get("FLASHATTN_EXTENSION", "")
    if value not in ("", "0", "1"):
        raise ValueError(f"FLASHATTN_EXTENSION is {value!r}: not 0 or 1")
    return value != "0"


def _is_possible() -> bool:
    return (
        _is_wanted()
        and _EXCHANGE is not None
        and direct.IS_KNOWN
        and sys.implementation.name == "cpython"
        and sys.version_info >= (3, 10)
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
    )


def _load() -> Any:
    """Returns the module, set up, or None."""
    if not _is_possible():
        return None
    path = Path(library()._name).resolve().parent / f"{_NAME}.abi3.so"
    if not path.exists():
        return None
    loader = ExtensionFileLoader(f"flashattn.{_NAME}", str(path))
    try:
        module = module_from_spec(spec_from_file_location(loader.name, path, loader=loader))
        loader.exec_module(module)
        module.setup(
            *map(_address, ("flash_forward", "flash_workspace_size", "flash_kv_append")),
            _EXCHANGE,
            torch.Tensor,
            torch.empty_like,
            torch.is_grad_enabled,
            torch.float32,
            direct.QUESTIONS,
            forward_ad,
            MEMBERS_OF_CALL,
            len(NAMES),
        )
    except ImportError:
        return None
    return module


def _address(name: str) -> int:
    return ctypes.cast(library()[name], ctypes.c_void_p).value or 0


_module = _load()
forward: Callable[..., Any] | None = getattr(_module, "forward", None)
append: Callable[..., bool] | None = getattr(_module, "append", None)
