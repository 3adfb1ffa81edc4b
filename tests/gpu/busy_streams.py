"""Calls on a stream that is busy, which must not wait for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

Result = TypeVar("Result")

# Cycles of the device's clock that a spinning kernel takes. The first number, ten milliseconds, is
# longer than it takes to enqueue a few calls; the others are for a host that has more to do.
CYCLES = (20_000_000, 200_000_000, 2_000_000_000, 20_000_000_000)


def run_on_a_busy_stream(work: Callable[[], Result]) -> Result:
    """Returns the result of `work`, which came back while its stream was busy with something else.
    It is repeated on a slow host; work that waits for the stream or the device always fails."""
    for cycles in CYCLES:
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(cycles)
            result = work()
            came_back_early = not stream.query()
        stream.synchronize()
        if came_back_early:
            return result
    pytest.fail("the call waited for the device")
