"""Puts the generator on the path, wherever pytest is started."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the source tree."""
    return ROOT
