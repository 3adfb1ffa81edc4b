"""Runs Python in a process of its own, for what a library reads once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import flashattn
from flashattn._library import library

_PREFIX = ("FLASH_", "FLASHATTN_")
HANG = 3600  # seconds: only a process that hangs takes that long


def run_python(
    *arguments: str, stdout: int = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess:
    """Runs `python ARGUMENTS` with this process's package and library, and these FLASH_
    variables."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIX)}
    clean["FLASHATTN_LIBRARY"] = library()._name
    clean["PYTHONPATH"] = str(Path(flashattn.__file__).parents[1])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**clean, **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=HANG,
    )
