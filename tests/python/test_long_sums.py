"""Sums over 2^20 keys in fp32 lose digits if they are one chain."""

from dataclasses import replace

import flashattn
import numpy as np
import pytest
from flashattn import oracle
from flashattn.compare import compare
from problems import AttentionProblem, check_every_kernel, configs_for, run

KEYS = 2**20
CHECKED = 3  # rows, heads: float64 attention over so many keys is slow

# Rows, K/V heads and values. With many rows or heads there are few splits, or none.
SUMS = {
    "one_row": (1, 1, "constant"),
    "some_rows": (17, 1, "normal"),
    "some_rows_of_values_with_a_mean": (17, 1, "mean"),
    "some_rows_of_constant_values": (17, 1, "constant"),
    "many_rows": (400, 1, "constant"),
    "many_heads": (1, 256, "constant"),
}


def make_long_inputs(seqlen_q: int, n_heads: int, values: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, seqlen_q, n_heads, 8)).astype(np.float32)
    k, v = rng.standard_normal((2, 1, KEYS, 1, 8)).astype(np.float32)
    if values == "mean":
        v += 1
    elif values == "constant":  # the first key has the largest score, and all others the same one
        q[...], v[...] = np.abs(q), np.float32(0.3)
        k[:, 1:], k[:, :1] = 0, 0.8
    return [q, *(np.broadcast_to(x, (1, KEYS, n_heads, 8)) for x in (k, v))]


@pytest.mark.parametrize("seqlen_q, n_heads, values", SUMS.values(), ids=SUMS)
def test_sums_over_many_keys(seqlen_q: int, n_heads: int, values: str) -> None:
    p = AttentionProblem(1, seqlen_q, KEYS, n_heads, n_heads, 8)
    q, k, v = make_long_inputs(seqlen_q, n_heads, values)
    few = [x[:, :, :CHECKED] for x in (q[:, :CHECKED], k, v)]
    oracle_o, oracle_lse = oracle.attention(*few)
    naive_o = oracle.naive(*few)
    for config in configs_for(p):
        if config.startswith("REFERENCE") and seqlen_q * n_heads > 17:
            continue  # minutes
        o, lse = run(p, [q, k, v], config)
        deviation = compare(
            o[:, :CHECKED, :CHECKED],
            oracle_o,
            naive_o,
            lse=lse[:, :CHECKED, :CHECKED],
            oracle_lse=oracle_lse,
            largest_score=oracle.largest_score(*few[:2]),
        )
        assert deviation.ok, f"{config}: {deviation.failures}; {deviation}"


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    """Windows begin and end in other blocks for each row, and tasks have fewer rows."""
    p = AttentionProblem(1, 300, 9000, 1, 1, 16, causal=True, window_size=(5000, -1))
    for config in configs_for(p):
        results = []
        for n_threads in (1, 2, 8):
            flashattn.set_num_threads(n_threads)
            results.append(run(p, config=config))
        for o, lse in results[1:]:
            np.testing.assert_array_equal(o, results[0][0])
            np.testing.assert_array_equal(lse, results[0][1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seqlen_q, n_heads", [(400, 1), (3, 64)])
def test_maxima_that_rise_after_a_part_of_a_sum_has_ended(
    seqlen_q: int, n_heads: int, dtype: str
) -> None:
    p = AttentionProblem(1, seqlen_q, 9001, n_heads, n_heads, 8, dtype, values="growing")
    check_every_kernel(replace(p, causal=True))
