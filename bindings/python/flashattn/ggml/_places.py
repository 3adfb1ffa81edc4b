"""Where the plug-in's sources are, and where what is built of them is put."""

from __future__ import annotations

import os
from pathlib import Path

from .. import device

_HERE = Path(__file__).resolve().parent
_NAME = "libggml-flashattn.so"


def sources() -> tuple[Path, Path]:
    """Returns the folder of the plug-in's sources, and that of flashattn.h: in an installed package
    they are the same."""
    packaged = _HERE / "plugin"
    if packaged.is_dir():
        return packaged, packaged
    root = _HERE.parents[3]
    return root / "bindings/ggml", root / "include"


def plugin(ggml_version: str) -> Path:
    """Returns where the plug-in for a version of ggml and the loaded library is, or is to be."""
    return _data_home() / "flashattn/ggml" / f"{ggml_version}-{device.version()}" / _NAME


def _data_home() -> Path:
    """Returns the folder of a user's data. The convention of XDG_DATA_HOME ignores relative paths.
    Raises FileNotFoundError."""
    named = Path(os.environ.get("XDG_DATA_HOME") or "")
    if named.is_absolute():
        return named
    try:
        return Path.home() / ".local/share"
    except RuntimeError as error:
        raise FileNotFoundError(f"there is no folder for it: set XDG_DATA_HOME ({error})") from None
