"""The workspace: how large it must be, and what the process keeps between CPU calls."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import flashattn
import numpy as np
import pytest
from direct import ForwardCall
from flashattn import _abi, _attention, _workspace
from flashattn._library import library
from flashattn._problem import Problem as CallArguments
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import AttentionProblem, configs_for, make_inputs, run, workspace_size
from strategies import random_problems

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
    """Returns what threads were lent at the same time. They end after all have given it back."""
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
    arguments = CallArguments(q, k, v, {"causal": True})
    size = _attention.workspace_size(arguments.args, None)
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


# ---- What suffices for a problem suffices for every smaller one --------------------------------

CHUNK = AttentionProblem(1, 32, 4096, 32, 8, 64, dtype="float16", causal=True)
# This problem is not split, unlike the larger one, and its tasks share packed keys.
SMALLER_CHUNK = replace(CHUNK, seqlen_q=25, seqlen_k=2262)
THREADS = (1, 2, 3, 16, 64)


def least_size(p: AttentionProblem, config: str) -> int:
    """Returns the size below which the library refuses to run."""
    with pytest.raises(flashattn.FlashAttnError, match="with one thread") as refusal:
        run(p, config=config, workspace_bytes=1)
    return int(re.search(r"\((\d+) with one thread", str(refusal.value)).group(1))


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_workspace_serves_smaller_chunks(n_threads: int) -> None:
    flashattn.set_num_threads(n_threads)
    for config in configs_for(CHUNK):
        expected, _ = run(SMALLER_CHUNK, config=config)
        for size in (workspace_size(CHUNK, config), least_size(CHUNK, config)):
            o, _ = run(SMALLER_CHUNK, config=config, workspace_bytes=size)
            assert o.tobytes() == expected.tobytes()


@settings(random_problems, max_examples=60)
@given(st.data())
def test_a_workspace_serves_smaller_problems(data: st.DataObject) -> None:
    """With the bits that they have in a workspace of their own."""
    n_heads_kv, group = data.draw(st.sampled_from([(1, 1), (1, 16), (8, 4), (3, 7)]))
    d_head = data.draw(st.sampled_from([8, 64, 128]))
    dtype = data.draw(st.sampled_from(["float32", "float16", "bfloat16"]))
    batch, seqlen_q = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 300))
    seqlen_k = data.draw(st.one_of(st.integers(1, 300), st.integers(1, 5000)))
    larger = AttentionProblem(
        batch, seqlen_q, seqlen_k, n_heads_kv * group, n_heads_kv, d_head, dtype
    )
    smaller = replace(
        larger,
        batch=data.draw(st.integers(1, batch)),
        seqlen_q=data.draw(st.integers(1, min(seqlen_q, 40))),
        seqlen_k=data.draw(st.integers(1, seqlen_k)),
    )
    flashattn.set_num_threads(data.draw(st.sampled_from(THREADS)))
    for config in configs_for(larger):
        size = workspace_size(larger, config)
        expected, _ = run(smaller, config=config)
        o, _ = run(smaller, config=config, workspace_bytes=size)
        assert o.tobytes() == expected.tobytes(), config


# ---- What no workspace could hold --------------------------------------------------------------

MOST = 2**31 - 1


@pytest.mark.parametrize(
    "sizes",
    [
        {"batch": MOST, "n_heads": MOST, "n_heads_kv": MOST, "seqlen_q": 1000},
        {"n_heads": MOST, "n_heads_kv": 1, "seqlen_q": MOST},
        {"batch": MOST, "n_heads": 64, "n_heads_kv": 64, "seqlen_k": 4096, "d_head": MOST},
    ],
    ids=str,
)
def test_every_call_refuses_what_cannot_be_counted(sizes: dict[str, int]) -> None:
    call = ForwardCall()
    for name, size in sizes.items():
        setattr(call.args, name, size)
    kernel, size = ctypes.c_void_p(), ctypes.c_uint64()
    assert [
        library().flash_query_support(call.args, None, None, 0),
        library().flash_select_kernel(call.args, kernel, None, 0),
        library().flash_workspace_size(call.args, None, size),
        library().flash_prepare(call.args, None),
        call.run(),
    ] == [_abi.FLASH_ERROR_UNSUPPORTED] * 5
    call.assert_untouched()
