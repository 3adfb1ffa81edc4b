"""The workspace of CPU calls: memory that each thread keeps from call to call.

Fresh memory comes from the system in pages that are cleared on first use, which costs each call a
few percent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

# A thread keeps no more than this between calls: what a single huge call took goes back.
KEPT_BYTES_MAX = 256 << 20


class _Kept(threading.local):
    """This thread's memory; None while a call has it, and before the first."""

    memory: np.ndarray | None = None


_kept = _Kept()


@contextmanager
def lent(size: int) -> Iterator[np.ndarray]:
    """At least `size` bytes of CPU memory, uninitialised, for one call of this thread.

    A call within a call (from a parallel-for hook, or a finalizer that runs in one) gets memory of
    its own.
    """
    memory, _kept.memory = _kept.memory, None
    if memory is None or memory.nbytes < size:
        del memory
        # With room for lengths that grow from call to call; pages beyond `size` stay untouched.
        memory = np.empty(size + size // 4, np.uint8)
    try:
        yield memory
    finally:
        if memory.nbytes <= KEPT_BYTES_MAX:
            _kept.memory = memory
