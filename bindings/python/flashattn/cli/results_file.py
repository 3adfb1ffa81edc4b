"""The file of measured results that `tune` writes: lines of new results take the place of those of
the same problems."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from ..tuning import TUNING_HEADER
from .problem import BadInput


def read(path: str | None) -> str:
    """The text of a file of results, "" where there is none yet. Raises BadInput where it cannot
    become one, OSError."""
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise BadInput(f"{path}: no such folder")
    if path is None or not Path(path).exists():
        return ""
    text = Path(path).read_text(encoding="utf-8")
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    if next(filter(None, lines), None) != TUNING_HEADER:
        raise BadInput(f"{path}: no file of results, which begin with {TUNING_HEADER!r}")
    return text


def write(path: str, old: str, lines: Iterable[str], device_name: str) -> None:
    """The old text, less results of problems that the new lines are about, and the new lines."""
    new = list(lines)
    replaced = {_problem(line) for line in new}
    kept = [line for line in old.splitlines() if _problem(line) not in replaced]
    if not kept:
        kept = [TUNING_HEADER, f"# {device_name}, {time.strftime('%Y-%m-%d')}"]
    Path(path).write_text("\n".join([*kept, *new]) + "\n", encoding="utf-8")


def _problem(line: str) -> str:
    """What a result is about: all before the time. A comment is about nothing but itself."""
    return " ".join(line.partition(" ns=")[0].split())
