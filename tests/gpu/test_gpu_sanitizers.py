"""Every row of the installed set passes compute-sanitizer: no access out of bounds, no race."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flashattn import Arch, DType
from gpu_problems import runnable_rows

WALK = Path(__file__).resolve().parent / "sanitized_walk.py"
# Each runs in its own process, so that they can run side by side.
GROUPS = sorted(
    {
        (Arch(row.config.arch).name, DType(row.config.dtype).name, row.config.d_head)
        for row in runnable_rows()
    }
)
TIME_LIMIT = 7200  # seconds: only a walk that hangs takes that long


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="no compute-sanitizer here")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("arch, dtype, d_head", GROUPS)
def test_rows_are_clean(arch: str, dtype: str, d_head: int, tool: str) -> None:
    sanitizer = ["compute-sanitizer", "--tool", tool, "--kernel-regex", "kns=flash_"]
    filters = [f"arch={arch}", f"dtype={dtype}", f"d_head={d_head}"]
    walk = [sys.executable, str(WALK), *(["--racecheck"] if tool == "racecheck" else []), *filters]
    done = subprocess.run(
        [*sanitizer, "--error-exitcode", "1", *walk],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIME_LIMIT,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " 0 errors" in done.stdout or " 0 hazards" in done.stdout, done.stdout[-4000:]
