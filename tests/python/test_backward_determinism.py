"""The same call for gradients gives the same bits: again, with other threads, in other batches, and
on threads of the caller's."""

from __future__ import annotations

import threading
from dataclasses import replace

import flashattn
import numpy as np
import pytest
from gradient_problems import NAMES, GradientProblem, configs_for, make, random_d_lse, random_d_o
from parallel_for import ReversedHook, SerialHook, ThreadsHook
from problems import AttentionProblem, make_inputs

PROBLEMS = {
    "causal": AttentionProblem(2, 90, 110, 6, 2, 32, "bfloat16", causal=True),
    "many keys": AttentionProblem(1, 2, 3000, 4, 2, 16, sinks=(1.0, 2.0, 3.0, 4.0)),
    "ragged": AttentionProblem(
        3,
        60,
        200,
        4,
        2,
        16,
        "float16",
        cu_seqlens_q=(0, 60, 61, 70),
        cu_seqlens_k=(0, 70, 270, 300),
    ),
}
every_problem = pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)


def _bits(gradients) -> list[bytes | None]:
    return [None if x is None else x.tobytes() for x in gradients]


def _run(p: AttentionProblem, configs) -> list[bytes | None]:
    return _bits(make(GradientProblem(p, has_d_lse=True), configs=configs).launch())


@every_problem
def test_thread_counts(p: AttentionProblem) -> None:
    for configs in configs_for(GradientProblem(p)):
        results = []
        for n_threads in (1, 2, 3, 7, 1):
            flashattn.set_num_threads(n_threads)
            results.append(_run(p, configs))
        assert results == results[:1] * 5


@every_problem
def test_hooks(p: AttentionProblem) -> None:
    expected = _run(p, (None, None))
    for kind in (SerialHook, ReversedHook, ThreadsHook):
        with kind(3) as hook:
            assert _run(p, (None, None)) == expected
        assert hook.calls and max(hook.calls) == 3


@pytest.mark.parametrize("ragged", [False, True])
def test_neighbours(ragged: bool) -> None:
    """A sequence is alone, and beside longer and shorter ones."""
    lengths = (40, 90, 7, 60)
    ends = tuple(int(n) for n in np.cumsum((0, *lengths)))
    p = AttentionProblem(4, 90, 90, 4, 2, 16, causal=True, seqused_q=lengths, seqused_k=lengths)
    if ragged:
        p = replace(p, cu_seqlens_q=ends, cu_seqlens_k=ends, seqused_q=None, seqused_k=None)
    g = GradientProblem(p)
    inputs, d_o = make_inputs(p), random_d_o(g)
    for configs in configs_for(g):
        whole = make(g, inputs, configs).launch()
        for b, n in enumerate(lengths):
            at = (slice(ends[b], ends[b + 1]),) if ragged else (b, slice(n))
            one = AttentionProblem(1, n, n, 4, 2, 16, causal=True)
            parts = [np.ascontiguousarray(x[at])[None] for x in (*inputs, d_o)]
            alone = make(GradientProblem(one), parts[:3], configs, parts[3]).launch()
            for name in NAMES[:3]:
                np.testing.assert_array_equal(
                    getattr(alone, name)[0], getattr(whole, name)[at], name
                )


def test_calls_from_several_threads_at_once() -> None:
    problems = [replace(p, seed=seed) for p in PROBLEMS.values() for seed in (1, 2)]
    expected = [_run(p, (None, None)) for p in problems]
    failures = []

    def work(p: AttentionProblem, wanted: list) -> None:
        for _ in range(2):
            if _run(p, (None, None)) != wanted:
                failures.append(p)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(problems, expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@every_problem
def test_the_function_for_arrays_gives_these_bits(p: AttentionProblem) -> None:
    g = GradientProblem(p, has_d_lse=True)
    run = make(g)
    lse = run.keep[2].array
    options = {x: y for x, y in p.call_options().items() if x not in ("out_dtype",)}
    found = flashattn.flash_attn_backward(
        random_d_o(g), *make_inputs(p), run.o, lse, d_lse=random_d_lse(g), **options
    )
    assert _bits(found) == _bits(run.launch())
