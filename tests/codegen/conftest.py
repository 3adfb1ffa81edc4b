"""Puts the generator on the path, and sets no deadline for examples, which a busy machine would
miss.
"""

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
    """Returns the root of the source tree."""
    return ROOT
