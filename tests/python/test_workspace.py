"""The workspace that the process keeps between CPU calls."""

from __future__ import annotations

import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import flashattn
import numpy as np
import pytest
from flashattn import _attention, _workspace
from flashattn._problem import Problem as CallArguments
from problems import AttentionProblem, make_inputs, run

PROBLEMS = [
    AttentionProblem(2, 200, 200, 4, 2, 64, causal=True),
    AttentionProblem(1, 1, 6000, 4, 2, 64),
    AttentionProblem(1, 40, 300, 2, 1, 128, dtype="bfloat16"),
]


@pytest.fixture(autouse=True)
def nothing_kept():
    _workspace._pool = _workspace._Pool()


def address(size: int) -> int:
    with _workspace.lent(size) as memory:
        assert memory.nbytes >= size
        return memory.ctypes.data


def call(p: AttentionProblem) -> np.ndarray:
    return flashattn.flash_attn_func(*make_inputs(p), causal=p.causal)


def test_memory_serves_the_next_call() -> None:
    first = address(1 << 20)
    assert address(1 << 20) == first
    assert address(100) == first
    with _workspace.lent(4 << 20) as larger:
        assert larger.nbytes >= 4 << 20
    assert address(1 << 20) == larger.ctypes.data


def test_growing_sizes_find_room() -> None:
    with _workspace.lent(1000) as first:
        pass
    assert address(1200) == first.ctypes.data


def test_memory_serves_the_next_call_after_an_error() -> None:
    with pytest.raises(RuntimeError, match="refused"), _workspace.lent(1000) as memory:
        raise RuntimeError("refused")
    assert address(1000) == memory.ctypes.data


def test_a_call_within_a_call_has_its_own() -> None:
    with _workspace.lent(1000) as outer, _workspace.lent(1000) as inner:
        assert not np.shares_memory(outer, inner)


def test_what_a_huge_call_took_goes_back() -> None:
    with _workspace.lent(_workspace.KEPT_BYTES_MAX + 1) as memory:
        huge = weakref.ref(memory)
    del memory
    assert huge() is None


def test_a_call_takes_the_smallest_that_does() -> None:
    with _workspace.lent(1 << 20) as large, _workspace.lent(1 << 10) as small:
        pass
    assert address(500) == small.ctypes.data
    assert address(1 << 19) == large.ctypes.data


def test_memory_that_is_too_small_makes_room() -> None:
    with _workspace.lent(1000) as first:
        small = weakref.ref(first)
    del first
    address(1 << 20)
    assert small() is None


def _in_threads(n_threads: int, size: int) -> list[weakref.ref]:
    """What each of some threads was lent, all at the same time; they end after all have given it
    back."""
    lent = [None] * n_threads
    phase = threading.Barrier(n_threads + 1)

    def work(i: int) -> None:
        with _workspace.lent(size) as memory:
            lent[i] = weakref.ref(memory)
            phase.wait()
            phase.wait()
        del memory
        phase.wait()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n_threads)]
    for thread in threads:
        thread.start()
    phase.wait()
    assert len({memory().ctypes.data for memory in lent}) == n_threads
    phase.wait()
    phase.wait()
    for thread in threads:
        thread.join()
    return lent


def test_threads_share_nothing_at_a_time_and_what_they_took_serves_others() -> None:
    kept = {memory().ctypes.data for memory in _in_threads(4, 1000) if memory() is not None}
    assert address(1000) in kept


def test_many_threads_keep_no_more_than_the_process_may() -> None:
    lent = _in_threads(8, _workspace.KEPT_BYTES_MAX // 3)
    kept = [memory().nbytes for memory in lent if memory() is not None]
    assert 0 < sum(kept) == _workspace._pool.kept_bytes <= _workspace.KEPT_BYTES_MAX


def test_a_finalizer_in_the_middle_of_the_pool_does_without() -> None:
    with _workspace.lent(1000) as kept:
        pass
    with _workspace._pool._lock:
        assert address(1000) != kept.ctypes.data
    assert address(1000) == kept.ctypes.data


def test_a_child_of_a_fork_that_came_amid_another_threads_call_computes() -> None:
    with _workspace._pool._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if address(1000) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_calls_use_it_whatever_it_holds() -> None:
    q, k, v = make_inputs(PROBLEMS[0])
    expected = call(PROBLEMS[0])
    with _workspace.lent(1) as memory:
        pass
    size = _attention.workspace_size(CallArguments(q, k, v, causal=True).args, None)
    assert memory.nbytes >= size > 0
    memory[:] = 0xFF  # NaN in every type
    assert call(PROBLEMS[0]).tobytes() == expected.tobytes()
    assert address(1) == memory.ctypes.data and (memory[:size] != 0xFF).any()


def test_calls_of_different_sizes_take_turns() -> None:
    expected = [run(p)[0] for p in PROBLEMS]
    for p, o in [*zip(PROBLEMS, expected), *zip(PROBLEMS, expected)]:
        assert call(p).tobytes() == o.tobytes()


def test_threads_side_by_side_compute_the_same_bits() -> None:
    expected = [call(p).tobytes() for p in PROBLEMS]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(call, PROBLEMS * 8))
    assert [o.tobytes() for o in results] == expected * 8
