"""Runs the demos as programs, and checks how they refuse to run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1]


def run_demo(demo: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / demo), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=3600,
    )


def assert_refusal(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    """One line on standard error, after those that show progress, says what is wrong."""
    assert result.returncode == 2
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("... ")]
    assert len(lines) == 1
    for part in parts:
        assert part in lines[0]


def environment_without(module: str, folder: Path) -> dict[str, str]:
    """Hides a module as a machine without it would: no finder knows the name."""
    (folder / "sitecustomize.py").write_text(
        "import importlib.machinery as m\n"
        "find = m.PathFinder.find_spec\n"
        f"m.PathFinder.find_spec = lambda n, *a: None if n == {module!r} else find(n, *a)\n"
    )
    search = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": search}
