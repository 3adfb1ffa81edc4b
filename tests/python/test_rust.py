"""The crates in bindings/rust are of this version, and their bindings of this header. What they do
is tested by cargo, in the step rust of ./dev test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import flashattn
import pytest

CRATES = Path(__file__).resolve().parents[2] / "bindings/rust"


def test_the_bindings_are_those_of_the_header() -> None:
    pytest.importorskip("pycparser")
    command = [sys.executable, CRATES / "generate.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["Cargo.toml", "flashattn/Cargo.toml", "Cargo.lock"])
def test_versions_are_the_headers(name: str) -> None:
    versions = re.findall(r'(?<!-)\bversion = "(.*?)"', (CRATES / name).read_text())
    assert versions and set(versions) == {flashattn.version()}
