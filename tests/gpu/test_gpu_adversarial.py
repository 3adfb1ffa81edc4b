"""Scores that would break a softmax which takes its reference from the first blocks of keys. Each
row of the table must agree with the oracle, however the scores of a query grow, fall or overflow.

Keys are set by their scores. K holds the scores in its first column, and Q weights from 0.75 to 1
in its own, so that rounding differs from query to query; the scale is 1. Blocks are walked from the
last keys to the first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import flashattn
import numpy as np
import pytest
from device_memory import upload
from flashattn import Arch, Feature
from gpu_problems import (
    Expected,
    assert_agrees,
    expected_of,
    heads_of,
    rows,
    run,
    types_of,
)
from memory import dtype_of
from problems import AttentionProblem

SEQLEN_Q, SEQLEN_K = 300, 1100  # several tiles and several blocks of every row
FEW_QUERIES = 4  # seqlen_q for decode kernels, with as many sequences as make up for it
KEYS = np.arange(SEQLEN_K)
SHORTEST_BLOCK = 32  # keys per block; of the SM80 rows
BLOCK = 192  # keys per block, of the widest row and more
ROWS = {row.name: row for row in rows() if not row.config.features & Feature.PAGED}


def _noise(spread: float) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(SEQLEN_K) * spread


def _raised(keys: slice, height: float) -> np.ndarray:
    """Returns noise, with scores that are higher by so much in some keys."""
    scores = _noise(1)
    scores[keys] += height
    return scores


FIRST_KEYS, LAST_KEYS = slice(0, SHORTEST_BLOCK), slice(SEQLEN_K - SHORTEST_BLOCK, None)
MIDDLE_KEY = slice(SEQLEN_K // 2, SEQLEN_K // 2 + 1)
TOWARDS_FIRST = (SEQLEN_K - 1 - KEYS) // SHORTEST_BLOCK  # blocks that are walked first
SCORES: dict[str, Callable[[], np.ndarray]] = {
    "all_equal": lambda: np.full(SEQLEN_K, 3.0),
    "all_zero": lambda: np.zeros(SEQLEN_K),
    "largest_in_the_block_walked_last": lambda: _raised(FIRST_KEYS, 20),
    "far_larger_in_the_block_walked_last": lambda: _raised(FIRST_KEYS, 300),
    "largest_in_the_block_walked_first": lambda: _raised(LAST_KEYS, 20),
    "far_larger_in_the_block_walked_first": lambda: _raised(LAST_KEYS, 300),
    "grows_by_powers_of_two": lambda: 2.0 ** np.minimum(TOWARDS_FIRST, 13),
    "falls_by_powers_of_two": lambda: 2.0 ** np.minimum(KEYS // SHORTEST_BLOCK, 13),
    "grows_steadily": lambda: 12.0 * TOWARDS_FIRST,
    "just_beyond_the_range_of_half_precision": lambda: _raised(FIRST_KEYS, 12),
    "just_beyond_the_range_of_single_precision": lambda: _raised(FIRST_KEYS, 90),
    "plus_and_minus_1e4": lambda: 1e4 * (1 - 2.0 * (KEYS % 2)),
    "minus_1e4_then_plus_1e4": lambda: np.where(KEYS < BLOCK, 1e4, -1e4),
    "one_huge_key": lambda: _raised(MIDDLE_KEY, 3e4),
    "one_key_far_below": lambda: _raised(MIDDLE_KEY, -3e4),
    "minus_infinity_first": lambda: np.where(KEYS >= SEQLEN_K - BLOCK, -np.inf, _noise(1)),
    "minus_infinity_but_one": lambda: np.where(KEYS == 5, 1.0, -np.inf),
    "minus_infinity": lambda: np.full(SEQLEN_K, -np.inf),
    "plus_infinity": lambda: np.where(KEYS == 5, np.inf, _noise(1)),
}


def _problem(config: flashattn.Config, causal: bool) -> AttentionProblem:
    batch = SEQLEN_Q // FEW_QUERIES if config.arch == Arch.SM80_DECODE else 1
    return AttentionProblem(
        batch,
        SEQLEN_Q // batch,
        SEQLEN_K,
        2,
        1,
        **heads_of(config),
        **types_of(config),
        causal=causal,
        softmax_scale=1.0,
    )


@functools.lru_cache(maxsize=8)
def _inputs(p: AttentionProblem, name: str) -> tuple[list[np.ndarray], Expected]:
    rng = np.random.default_rng(8)
    q, k = np.zeros(p.q_shape), np.zeros(p.k_shape)
    v = rng.standard_normal(p.v_shape)
    q[..., 0] = rng.uniform(0.75, 1, p.q_shape[:-1])
    k[..., 0] = SCORES[name]()[:, None]
    of_q, of_kv, _ = map(dtype_of, p.types)
    inputs = [q.astype(of_q), k.astype(of_kv), v.astype(of_kv)]
    return inputs, expected_of(*inputs, **p.options())


def _check(config: flashattn.Config, name: str, causal: bool) -> None:
    p = _problem(config, causal)
    inputs, expected = _inputs(p, name)
    o, lse = run(p, [upload(x) for x in inputs], config)
    assert_agrees(o, lse, expected, f"replay: {name}, causal={causal}, config={config}")


def _masks(config: flashattn.Config) -> tuple[bool, ...]:
    return (False, True) if config.features & Feature.CAUSAL else (False,)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("scores", SCORES)
def test_row_agrees_with_the_oracle(scores: str, name: str) -> None:
    config = ROWS[name].config
    for causal in _masks(config):
        _check(config, scores, causal)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("key", [5, SEQLEN_K - 5], ids=["walked_last", "walked_first"])
def test_row_takes_a_value_near_the_largest_of_its_type(key: int, name: str) -> None:
    """A key that outweighs all others has a value near the end of the type's range. A weight over a
    reference of other keys takes their product beyond single precision."""
    config = ROWS[name].config
    p = _problem(config, causal=False)
    inputs = [x.copy() for x in _inputs(p, "all_zero")[0]]
    inputs[1][:, key, :, 0] = 20
    inputs[2][:, key] = 6e4 if p.dtype == "float16" else 1e38
    inputs[2][:, key, :, ::2] *= -0.5
    o, lse = run(p, [upload(x) for x in inputs], config)
    expected = expected_of(*inputs, **p.options())
    to_ordinary_size = 2.0**-125 if p.dtype == "bfloat16" else 2.0**-15
    assert_agrees(
        (o.astype(np.float64) * to_ordinary_size).astype(o.dtype),
        lse,
        replace(
            expected,
            o=expected.o * to_ordinary_size,
            naive_o=expected.naive_o * to_ordinary_size,
        ),
        f"replay: key={key}, config={config}",
    )


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(
    "queries", [slice(None, None, 7), slice(-100, -90)], ids=["one_in_seven", "of_one_tile"]
)
def test_rows_of_a_tile_outgrow_their_reference_apart(queries: slice, name: str) -> None:
    """Some queries see scores that grow beyond every range, beside others that do not, in the same
    tile or in a tile that is loaded together with it. Each agrees with the oracle, and a second run
    gives the same bits."""
    config = ROWS[name].config
    for causal in _masks(config):
        p = _problem(config, causal)
        inputs = [x.copy() for x in _inputs(p, "largest_in_the_block_walked_last")[0]]
        inputs[0][:, queries, :, 0] *= 16
        tensors = [upload(x) for x in inputs]
        o, lse = run(p, tensors, config)
        assert_agrees(o, lse, expected_of(*inputs, **p.options()), f"replay: {config}")
        again = run(p, tensors, config)
        assert o.tobytes() == again[0].tobytes() and lse.tobytes() == again[1].tobytes()
