"""The llama-cpp-python that is installed, and its ggml."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import re
from pathlib import Path

DISTRIBUTION = "llama-cpp-python"


def libraries() -> Path:
    """Returns the folder of its libraries, without importing it. Raises ImportError."""
    moved = os.environ.get("LLAMA_CPP_LIB_PATH")  # which llama_cpp follows too
    if moved:
        return Path(moved)
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise ImportError(f"{DISTRIBUTION} is not installed: there is no package llama_cpp")
    return Path(spec.origin).parent / "lib"


def version() -> str:
    """Returns the version of the distribution. Raises ImportError."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"{DISTRIBUTION} is not installed") from None


def ggml_version() -> str:
    """Returns the version of its ggml. Raises ImportError."""
    path = libraries() / "libggml-base.so"
    try:
        function = ctypes.CDLL(str(path)).ggml_version
    except (OSError, AttributeError) as error:
        raise ImportError(f"{DISTRIBUTION}'s ggml does not say its version: {error}") from error
    function.restype = ctypes.c_char_p
    text = function() or b""
    if not re.fullmatch(rb"[\w.+-]+", text):  # it becomes the name of a folder
        raise ImportError(f"{DISTRIBUTION}'s ggml says that its version is {text!r}")
    return text.decode()
