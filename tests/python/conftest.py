"""Settings of the Python tests. The library is FLASHATTN_LIBRARY, or the one that the package
finds.
"""

import os

# This comes before numpy is loaded, because threads of its BLAS would only compete with the
# library's.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import flashattn
import pytest
from flashattn._library import library


def pytest_report_header():
    families = sorted({k.config.arch for k in flashattn.kernels() if k.is_runnable})
    names = " ".join(flashattn.Arch(arch).name for arch in families)
    return f"libflashattn {flashattn.version()} at {library()._name}, runnable families: {names}"


@pytest.fixture(autouse=True)
def default_threads():
    """Each test starts and ends with the default number of threads."""
    yield
    flashattn.set_num_threads(0)
