"""Files that a command will write: what is wrong with a path is said before the work begins."""

from __future__ import annotations

import os
from pathlib import Path

from .problem import BadInput


def check(path: str, endings: tuple[str, ...] = ()) -> None:
    """Raises BadInput unless a file can be written there, with one of the endings if there are."""
    target = Path(path)
    if endings and target.suffix.lower() not in endings:
        raise BadInput(f"{path}: cannot be written: it ends with none of {', '.join(endings)}")
    folder = target.absolute().parent
    if target.is_dir():
        raise BadInput(f"{path}: cannot be written: it is a folder")
    if not folder.is_dir():
        raise BadInput(f"{path}: cannot be written: there is no folder {folder}")
    if not os.access(target if target.exists() else folder, os.W_OK):
        raise BadInput(f"{path}: cannot be written: permission denied")
