"""Loads the plug-in into the ggml of llama-cpp-python."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import NamedTuple

from .. import device
from . import _llama_cpp, _places


class Counts(NamedTuple):
    """Flash attention operations of this process."""

    served: int  # computed by the library
    left: int  # left to ggml


@functools.cache
def enable() -> Path:
    """Makes llama-cpp-python compute attention on the CPU by this library, in all models that are
    loaded with flash_attn=True from now on, until the process ends. Returns the path of the
    plug-in, which install() has built.

    Raises ImportError (llama-cpp-python is not installed; ggml refuses the plug-in, with the
    reason), FileNotFoundError (there is no plug-in for these versions of ggml and the library).
    """
    path = _places.plugin(_llama_cpp.ggml_version())
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no plug-in for ggml {_llama_cpp.ggml_version()} and flashattn "
            f"{device.version()} at {path}: `python -m flashattn ggml install` builds it"
        )
    import llama_cpp

    llama_cpp.llama_backend_init()  # which loads the CPU backend, if it is not linked
    ggml = ctypes.CDLL(str(_llama_cpp.libraries() / "libggml.so"))
    ggml.ggml_backend_load.restype = ctypes.c_void_p
    ggml.ggml_backend_load.argtypes = [ctypes.c_char_p]
    if not ggml.ggml_backend_load(str(path).encode()):
        raise ImportError(f"ggml did not load {path}: {_refusal(path)}")
    return path


def counts() -> Counts:
    """Returns how many operations were computed by whom, since enable(). The environment variable
    FLASHATTN_TRACE=1 also names those that are left to ggml, with the reason. Raises what enable()
    raises."""
    function = ctypes.CDLL(str(enable())).flashattn_ggml_counts
    served, left = ctypes.c_int64(), ctypes.c_int64()
    function(ctypes.byref(served), ctypes.byref(left))
    return Counts(served.value, left.value)


def _refusal(path: Path) -> str:
    try:
        function = ctypes.CDLL(str(path)).flashattn_ggml_refusal
    except (OSError, AttributeError) as error:
        return str(error)
    function.restype = ctypes.c_char_p
    return function().decode() or "it does not say why"
