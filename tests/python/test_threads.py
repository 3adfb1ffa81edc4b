"""The number of threads, and the hook through which an engine lends its own."""

import flashattn
import numpy as np
import pytest
from flashattn import _abi
from flashattn._library import library
from parallel_for import Hook, ReversedHook, SerialHook, ThreadsHook
from problems import AttentionProblem, run

HOOKS = [SerialHook, ReversedHook, ThreadsHook]
PROBLEMS = [
    AttentionProblem(2, 200, 200, 4, 2, 64, causal=True),
    AttentionProblem(1, 1, 6000, 4, 2, 64),
]


@pytest.mark.parametrize("hook_class", HOOKS)
@pytest.mark.parametrize("n_workers", [2, 3, 16])
@pytest.mark.parametrize("p", PROBLEMS, ids=["prefill", "split"])
def test_hook_gives_the_same_bits(p: AttentionProblem, n_workers: int, hook_class: type) -> None:
    expected = run(p)
    with hook_class(n_workers) as hook:
        assert flashattn.num_threads() == n_workers
        result = run(p)
    assert hook.calls and all(1 <= n <= n_workers for n in hook.calls)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(result, expected))


def test_hook_of_one_worker_and_small_work_stay_on_the_callers_thread() -> None:
    with SerialHook(n_workers=1) as hook:
        run(PROBLEMS[0])
    assert all(n == 1 for n in hook.calls)
    with SerialHook(n_workers=8) as hook:
        run(AttentionProblem(1, 2, 2, 1, 1, 8))
    assert not hook.calls


def test_hook_serves_combine() -> None:
    rng = np.random.default_rng(0)
    o_partial = rng.standard_normal((3, 2, 300, 4, 64)).astype(np.float32)
    lse_partial = rng.standard_normal((3, 2, 4, 300)).astype(np.float32)
    expected = flashattn.flash_combine(o_partial, lse_partial)
    with ThreadsHook(n_workers=5) as hook:
        assert (flashattn.flash_combine(o_partial, lse_partial) == expected).all()
    assert hook.calls


def test_hook_is_replaced_and_removed() -> None:
    before = flashattn.num_threads()
    with SerialHook(n_workers=3) as first:
        with SerialHook(n_workers=5) as second:
            run(PROBLEMS[0])
            assert flashattn.num_threads() == 5
        assert flashattn.num_threads() == before
    run(PROBLEMS[0])
    assert second.calls and not first.calls


@pytest.mark.parametrize("n_workers", [-1, 0, 4097])
def test_hook_refuses_a_number_of_workers(n_workers: int) -> None:
    hook = SerialHook(n_workers)
    with pytest.raises(ValueError, match=f"n_workers is {n_workers}"):
        hook.__enter__()
    assert isinstance(hook, Hook) and flashattn.num_threads() != n_workers


def test_context_is_passed_through() -> None:
    seen = []

    @_abi.flash_parallel_for_t
    def run_tasks(context, n_tasks, task, argument):
        seen.append(context)
        for i in range(n_tasks):
            task(argument, i)

    assert library().flash_set_parallel_for(run_tasks, 0x1234, 2) == 0
    try:
        run(PROBLEMS[0])
    finally:
        library().flash_set_parallel_for(_abi.flash_parallel_for_t(), None, 0)
    assert set(seen) == {0x1234}


@pytest.mark.parametrize("n_threads", [1, 2, 4096])
def test_set_num_threads(n_threads: int) -> None:
    flashattn.set_num_threads(n_threads)
    assert flashattn.num_threads() == n_threads == flashattn.device_info().n_threads
    flashattn.set_num_threads(0)
    assert 1 <= flashattn.num_threads() <= 4096


@pytest.mark.parametrize("n_threads", [-1, 4097, 2**31 - 1])
def test_set_num_threads_refuses(n_threads: int) -> None:
    before = flashattn.num_threads()
    with pytest.raises(ValueError, match=str(n_threads)):
        flashattn.set_num_threads(n_threads)
    assert flashattn.num_threads() == before
