"""With few queries over many keys, tasks split the keys, and their parts are merged."""

from dataclasses import replace

import numpy as np
import pytest
from parallel_for import SerialHook
from problems import AttentionProblem, check_every_kernel, make_inputs, run

DECODE = AttentionProblem(1, 1, 5000, 4, 1, 64)


def test_one_query_is_shared_among_tasks() -> None:
    """One query of one K/V head would be a single task, which the hook never sees."""
    with SerialHook(n_workers=4) as hook:
        run(DECODE)
    assert hook.calls and max(hook.calls) > 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("seqlen_k", [1023, 1024, 1025, 2047, 5000, 40_000])
def test_one_query(seqlen_k: int, dtype: str) -> None:
    check_every_kernel(replace(DECODE, seqlen_k=seqlen_k, dtype=dtype))


@pytest.mark.parametrize("seqlen_q, n_heads", [(2, 4), (8, 4), (32, 1), (33, 1), (1, 33)])
def test_several_queries(seqlen_q: int, n_heads: int) -> None:
    p = replace(DECODE, seqlen_q=seqlen_q, n_heads=n_heads, seqlen_k=3000)
    check_every_kernel(p)
    check_every_kernel(replace(p, causal=True))


@pytest.mark.parametrize("seqlen_q, seqlen_k", [(12, 4000), (24, 3100), (25, 4000), (64, 8200)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_more_rows(seqlen_q: int, seqlen_k: int, dtype: str) -> None:
    p = replace(DECODE, seqlen_q=seqlen_q, seqlen_k=seqlen_k, dtype=dtype)
    check_every_kernel(p)
    check_every_kernel(replace(p, causal=True))


# There is more than one block of 96, or of 256, rows, and 24 tasks have 8 keys per row.
@pytest.mark.parametrize("seqlen_q, seqlen_k", [(60, 6000), (140, 14_000)])
def test_blocks_of_rows(seqlen_q: int, seqlen_k: int) -> None:
    check_every_kernel(AttentionProblem(1, seqlen_q, seqlen_k, 8, 4, 32, "bfloat16", causal=True))


@pytest.mark.parametrize("window", [(0, -1), (700, -1), (2500, -1), (-1, 100), (1500, 3)], ids=str)
def test_windows_leave_splits_with_nothing_to_do(window: tuple[int, int]) -> None:
    check_every_kernel(replace(DECODE, seqlen_q=8, window_size=window))
    check_every_kernel(replace(DECODE, seqlen_q=8, window_size=window, causal=True))


def test_lengths_of_a_batch_decide_one_by_one() -> None:
    p = AttentionProblem(4, 1, 5000, 4, 2, 64, seqused_k=(0, 1, 1500, 5000))
    check_every_kernel(p)
    check_every_kernel(
        replace(
            p,
            batch=5,
            seqlen_q=40,
            cu_seqlens_q=(0, 1, 1, 41, 43, 44),
            cu_seqlens_k=(0, 3000, 6000, 9000, 9100, 14100),
            seqused_k=None,
            causal=True,
        )
    )


def test_sequences_just_shorter_than_the_longest() -> None:
    """Splits grow with the number of keys, but never become fewer."""
    lengths = (8192, 8191, 5000, 4095)
    check_every_kernel(AttentionProblem(4, 1, 8192, 16, 8, 32, "bfloat16", seqused_k=lengths))


def test_splits_of_nothing_but_minus_infinity() -> None:
    """The first half of the keys has no weight: whole splits merge as if they were not there."""
    q, k, v = make_inputs(DECODE)
    q[...] = np.abs(q)
    k[:, :2500] = -np.inf
    check_every_kernel(DECODE, [q, k, v])


def test_poison_in_one_split_is_the_result() -> None:
    q, k, v = make_inputs(DECODE)
    k[:, 4000] = np.nan
    o, lse = run(DECODE, [q, k, v])
    assert np.isnan(o).all() and np.isnan(lse).all()


@pytest.mark.parametrize("values", ["wide", "one_large_key", "identical_keys", "growing"])
def test_values_that_exercise_the_merging(values: str) -> None:
    check_every_kernel(replace(DECODE, values=values))
