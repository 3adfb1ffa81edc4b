"""Whether the GPU tests can run here at all."""

import pytest
from presence import missing


def test_this_machine_runs_the_gpu_tests() -> None:
    reason = missing()
    if reason:
        pytest.skip(reason)
