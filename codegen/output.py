"""Updates the output directory without touching files that are current, for incremental builds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

KERNELS = "kernels"
KERNEL_PREFIX = "flash_"


class Changes(NamedTuple):
    added: list[str]  # names of files of kernels
    removed: list[str]


def _kernel_paths(directory: Path) -> set[Path]:
    return set((directory / KERNELS).glob(f"{KERNEL_PREFIX}*"))


def _write(path: Path, text: str) -> None:
    """Writes a file atomically, so that an interrupted run leaves no partial file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_file(path: Path, text: str) -> None:
    """Writes a file, unless it has this text already."""
    if path.is_file() and path.read_bytes() == text.encode():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, text)


def update(directory: Path, files: dict[str, str]) -> Changes:
    """Makes the directory hold these files, and removes those of other kernels."""
    before = _kernel_paths(directory)
    for path, text in files.items():
        write_file(directory / path, text)
    after = {directory / path for path in files if path.startswith(f"{KERNELS}/")}
    for path in before - after:
        path.unlink()
    return Changes(
        added=sorted(path.stem for path in after - before),
        removed=sorted(path.stem for path in before - after),
    )
