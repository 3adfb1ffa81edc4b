"""Packages that commands need besides numpy. A command requires all of its own at once, after it
has checked its arguments, so that a user is asked once."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any

from ..config import DType
from .problem import BadInput

OF_CLI = ("matplotlib", "ml_dtypes", "rich")  # what pip installs for flashattn[cli]
_HIDDEN_TYPES = (DType.BF16, DType.E4M3)  # those that numpy alone does not have


def require(*packages: str) -> None:
    """Raises BadInput with the names of all that are not installed."""
    missing = [name for name in dict.fromkeys(packages) if not _is_installed(name)]
    if not missing:
        return
    hint = ", or pip install 'flashattn[cli]'" if set(missing) <= set(OF_CLI) else ""
    noun = "package" if len(missing) == 1 else "packages"
    names = " ".join(missing)
    raise BadInput(f"this needs the {noun} {', '.join(missing)}: pip install {names}{hint}")


def of_arrays(device: str, dtypes: list[DType]) -> list[str]:
    """The packages that hold arrays of these types on "cpu" or "cuda"."""
    if device == "cuda":
        return ["torch"]
    return ["ml_dtypes"] if any(dtype in _HIDDEN_TYPES for dtype in dtypes) else []


def load(module: str) -> ModuleType:
    """A module of one of the packages. Raises BadInput."""
    require(module.partition(".")[0])
    return importlib.import_module(module)


def console() -> Any:
    """Where tables are printed."""
    return load("rich.console").Console()


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
