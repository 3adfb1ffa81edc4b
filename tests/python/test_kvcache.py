"""Caches of K and V on every kernel of this machine: see kvcache_cases.py. Errors are at most twice
those of a plain implementation, on average 1.5 times, as in FlashAttention's own test.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from expectation import assert_agrees, assert_mean_error
from kvcache_cases import CPU, CacheProblem, cases, dense
from paging import PagedProblem, run_paged
from problems import (
    configs_for,
    configs_for_pages,
    expected,
    fill_unused,
    make_inputs,
    p_type,
    rounds_p,
    run,
)

CASES = cases(CPU)


def _run(problem: CacheProblem, inputs: list[np.ndarray], config: str) -> tuple:
    if isinstance(problem, PagedProblem):
        return run_paged(problem, inputs, config)
    return run(problem, inputs, config)


@pytest.mark.parametrize("problem", CASES.values(), ids=CASES)
def test_cache_agrees_with_the_oracle(problem: CacheProblem) -> None:
    p = dense(problem)
    inputs = make_inputs(p)
    expected_with = lru_cache(lambda *precision: expected(p, inputs, *precision))
    choose = configs_for_pages if isinstance(problem, PagedProblem) else configs_for
    configs = choose(p)
    assert configs, f"no kernel serves {p}"
    for config in configs:
        o, lse = _run(problem, inputs, config)
        fill_unused(p, o, lse)
        found = expected_with(p_type(p, config), 4 if rounds_p(p, config) else 1)
        replay = f"replay: {problem}, config={config!r}"
        assert_agrees(o, lse, found, replay)
        assert_mean_error(o, found, replay)
