"""Parallel-for hooks for the tests: Python callbacks that run the library's tasks."""

from __future__ import annotations

import threading

from flashattn import _abi
from flashattn._library import check, library


class Hook:
    """Runs CPU work through run_tasks() while it is entered. `calls` lists each call's n_tasks."""

    def __init__(self, n_workers: int) -> None:
        self.calls: list[int] = []
        self._n_workers = n_workers
        self._callback = _abi.flash_parallel_for_t(self._run)  # must outlive its use in C

    def __enter__(self):
        check(library().flash_set_parallel_for(self._callback, None, self._n_workers))
        return self

    def __exit__(self, *_: object) -> None:
        check(library().flash_set_parallel_for(_abi.flash_parallel_for_t(), None, 0))

    def _run(self, context, n_tasks: int, task, argument) -> None:
        self.calls.append(n_tasks)
        self.run_tasks(n_tasks, lambda i: task(argument, i))

    def run_tasks(self, n_tasks: int, task) -> None:
        raise NotImplementedError


class SerialHook(Hook):
    def run_tasks(self, n_tasks: int, task) -> None:
        for i in range(n_tasks):
            task(i)


class ReversedHook(Hook):
    def run_tasks(self, n_tasks: int, task) -> None:
        for i in reversed(range(n_tasks)):
            task(i)


class ThreadsHook(Hook):
    """Runs every task on its own thread, all side by side."""

    def run_tasks(self, n_tasks: int, task) -> None:
        threads = [threading.Thread(target=task, args=(i,)) for i in range(n_tasks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
