"""Puts the generator on the path, wherever pytest is started; sets no deadline for examples, whose
time is that of a busy machine."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

settings.register_profile("codegen", deadline=None)
settings.load_profile("codegen")


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the source tree."""
    return ROOT
