"""Problems that reach each way in which a task of the CPU reads its keys and ends its rows: few
rows in place, packed keys that are shared or private, decode, split keys that merge, and ragged
batches; and what holds of them whatever joins their scores.
"""

from __future__ import annotations

from dataclasses import replace

import flashattn
import pytest
from memory import E4M3
from paging import KINDS, PagedProblem, run_paged
from problems import AttentionProblem, configs_for_pages, run

PROBLEMS = {
    "one_row": AttentionProblem(2, 1, 300, 4, 2, 64),
    "single_rows": AttentionProblem(2, 1, 301, 3, 3, 128),
    "few_rows": AttentionProblem(1, 3, 200, 6, 2, 72, causal=True),
    "one_block": AttentionProblem(1, 40, 130, 4, 1, 128, causal=True),
    "many_rows": AttentionProblem(2, 150, 170, 4, 2, 64),
    "window": AttentionProblem(1, 150, 170, 2, 2, 96, window_size=(33, 0)),
    "softcap": AttentionProblem(1, 70, 90, 2, 1, 64, softcap=2.0, causal=True),
    "scale": AttentionProblem(1, 40, 90, 3, 1, 32, softmax_scale=0.3),
    "split": AttentionProblem(1, 1, 5000, 8, 2, 64),
    "split_rows": AttentionProblem(1, 30, 5000, 4, 2, 32, causal=True),
    "ragged": AttentionProblem(
        3, 90, 150, 4, 2, 64, causal=True, cu_seqlens_q=(0, 1, 1, 91), cu_seqlens_k=(0, 40, 60, 210)
    ),
    "in_use": AttentionProblem(
        3, 40, 100, 4, 2, 64, causal=True, seqused_q=(40, 3, 0), seqused_k=(0, 1, 77)
    ),
}
DTYPES = ("float32", "float16", "bfloat16", E4M3)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def typed(p: AttentionProblem, dtype: str) -> AttentionProblem:
    """Returns the problem with K and V of the type; those of e4m3 have scales."""
    p = replace(p, dtype=dtype)
    if dtype != E4M3:
        return p
    return replace(p, q_dtype="bfloat16", o_dtype="float32", k_descale=0.5, v_descale=-1.5)


def assert_pages_change_no_bit(p: AttentionProblem) -> None:
    for i, config in enumerate(configs_for_pages(p)):
        expected = run(p, config=config)
        found = run_paged(PagedProblem(p, 19, KINDS[i % len(KINDS)]), config=config)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found, expected)), config


def assert_threads_change_no_bit(p: AttentionProblem) -> None:
    results = set()
    for n_threads in (1, 2, 5):
        flashattn.set_num_threads(n_threads)
        results.add(tuple(x.tobytes() for x in run(p)))
    assert len(results) == 1
