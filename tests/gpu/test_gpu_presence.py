"""Whether the GPU tests can run here at all."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from presence import missing


def _gpus() -> str:
    """Returns the GPUs that the driver's own tool lists, a line each."""
    if shutil.which("nvidia-smi") is None:
        return ""
    done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def test_the_gpu_tests_run_where_there_is_a_gpu() -> None:
    reason, gpus = missing(), _gpus()
    assert not (reason and gpus), f"{reason}, but there are\n{gpus}"
    if reason:
        pytest.skip(reason)
