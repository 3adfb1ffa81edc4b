"""Settings of the GPU tests. Without a CUDA device or torch one test is skipped with the reason."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "4")  # before numpy: the oracle's matrices are small
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))  # problems and element types are shared
sys.path.insert(0, str(HERE))

from presence import missing  # noqa: E402

MISSING = missing()


def pytest_ignore_collect(collection_path: Path):
    is_test = collection_path.parent == HERE and collection_path.name.startswith("test_")
    return True if MISSING and is_test and collection_path.name != "test_gpu_presence.py" else None


def pytest_report_header() -> str:
    import flashattn

    devices = [device.name for device in flashattn.cuda_devices()]
    return f"CUDA devices: {', '.join(devices) or 'none'}"
