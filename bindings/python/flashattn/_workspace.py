"""This module holds the workspace of CPU calls: memory that the process keeps from call to call.

Fresh memory comes from the system in pages that are cleared on first use, which costs each call a
few percent. What is kept belongs to no thread: it serves whichever call comes next.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

# The process keeps no more than this between calls; it gives the largest memory back first.
KEPT_BYTES_MAX = 128 << 20


class _Pool:
    """Holds memory that no call uses, sorted by size.

    No call waits for it: a call does without where another thread is in here, or where it comes
    from a finalizer that interrupted code in here. So no thread of a child process hangs on a lock
    that was held at the fork.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._serial = itertools.count()  # tells memory of the same size apart
        self._free: list[tuple[int, int, np.ndarray]] = []
        self.kept_bytes = 0

    def take(self, size: int) -> np.ndarray | None:
        """Returns the smallest memory of at least `size` bytes, or None. In that case it drops the
        largest, since new memory takes its place."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            place = bisect_left(self._free, (size,))
            is_there = place < len(self._free)
            found = self._remove(place if is_there else -1) if self._free else None
            return found if is_there else None
        finally:
            self._lock.release()

    def give(self, memory: np.ndarray) -> None:
        """Keeps memory for a later call, within the limit."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            insort(self._free, (memory.nbytes, next(self._serial), memory))
            self.kept_bytes += memory.nbytes
            while self.kept_bytes > KEPT_BYTES_MAX:
                self._remove(-1)
        finally:
            self._lock.release()

    def _remove(self, place: int) -> np.ndarray:
        n_bytes, _, memory = self._free.pop(place)
        self.kept_bytes -= n_bytes
        return memory


_pool = _Pool()


@contextmanager
def lent(size: int) -> Iterator[np.ndarray]:
    """Yields at least `size` bytes of CPU memory, uninitialised, for one call.

    A call within a call (from a parallel-for hook, or a finalizer that runs in one) gets memory of
    its own.
    """
    memory = _pool.take(size)
    if memory is None:
        # New memory has room for lengths that grow from call to call; pages beyond `size` stay
        # untouched.
        memory = np.empty(size + size // 4, np.uint8)
    try:
        yield memory
    finally:
        _pool.give(memory)
