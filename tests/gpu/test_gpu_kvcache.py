"""Caches of K and V on each row that serves them: see ../python/kvcache_cases.py. Errors are at
most twice those of a plain implementation, on average 1.5 times, as in FlashAttention's own test.
"""

from __future__ import annotations

import flashattn
import numpy as np
import pytest
import torch
from device_memory import upload
from expectation import assert_mean_error
from gpu_problems import (
    check_outputs,
    device_options,
    device_pages,
    expected_of,
    paged_options,
    run,
    runnable_rows,
)
from kvcache_cases import CUDA, CacheProblem, cases, dense
from memory import dtype_of
from paging import PagedProblem
from problems import make_inputs

CASES = cases(CUDA)


def _on_device(
    problem: CacheProblem, inputs: list[np.ndarray]
) -> tuple[list[torch.Tensor], dict[str, object]]:
    """Returns q, k and v in device memory, and the keywords of a call."""
    if isinstance(problem, PagedProblem):
        tensors, where = device_pages(problem, inputs)
        return tensors, paged_options(problem, where)
    return [upload(x) for x in inputs], device_options(problem)


def _closest_rows(
    tensors: list[torch.Tensor], options: dict[str, object]
) -> list[flashattn.Config]:
    """Returns the rows that serve a call, of each family those of the least head dimension."""
    served = [
        row.config
        for row in runnable_rows()
        if flashattn.query_support(*tensors, config=row.config, **options)
    ]
    least: dict[int, int] = {}
    for config in served:
        least[config.arch] = min(config.d_head, least.get(config.arch, config.d_head))
    return [config for config in served if config.d_head == least[config.arch]]


@pytest.mark.parametrize("problem", CASES.values(), ids=CASES)
def test_cache_agrees_with_the_oracle(problem: CacheProblem) -> None:
    p = dense(problem)
    inputs = make_inputs(p)
    tensors, options = _on_device(problem, inputs)
    expected = expected_of(*inputs, o_dtype=dtype_of(p.types[2]), **p.options())
    rows = _closest_rows(tensors, options)
    assert rows, f"no row serves {problem}"
    for config in (None, *rows):
        outputs = run(p, tensors, config, **options)
        replay = f"replay: {problem}"
        o, _ = check_outputs(p, outputs, expected, config, replay)
        assert_mean_error(o, expected, f"{replay}, config={str(config) if config else None!r}")
