"""Merging partial results, some with rows that saw nothing, is compared with whole attention."""

import flashattn
import numpy as np
import pytest
from direct import CombineCall
from flashattn import flash_attn_func, flash_attn_varlen_func, flash_combine, oracle
from hypothesis import given
from hypothesis import strategies as st
from memory import DTYPES, arrange, dtype_of
from strategies import random_problems

# The error of rounding to the result's type, and of a few float32 operations.
TOLERANCE = {"float32": 1e-5, "float16": 6e-4, "bfloat16": 5e-3}


def _partials(shape: tuple, dtype: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    n, batch, seqlen, heads, _ = shape
    rng = np.random.default_rng(seed)
    o = rng.standard_normal(shape).astype(dtype_of(dtype))
    return o, (5 * rng.standard_normal((n, batch, heads, seqlen))).astype(np.float32)


def _check(o_partial: np.ndarray, lse_partial: np.ndarray, dtype: str) -> None:
    o, lse = flash_combine(o_partial, lse_partial, dtype=dtype, return_lse=True)
    expected, expected_lse = oracle.combine(o_partial, lse_partial)
    error = np.abs(o.astype(np.float64) - expected)
    assert (error <= TOLERANCE[dtype] * np.maximum(1, np.abs(expected))).all()
    np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(expected_lse))
    finite = np.isfinite(expected_lse)
    np.testing.assert_allclose(lse[finite], expected_lse[finite], rtol=1e-5, atol=1e-5)


@random_problems
@given(
    shape=st.tuples(
        st.integers(0, 9), st.integers(0, 3), st.integers(0, 20), st.integers(1, 5),
        st.integers(1, 70),
    ),
    dtype_partial=st.sampled_from(DTYPES),
    dtype=st.sampled_from(DTYPES),
    empty=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_random_partials(shape, dtype_partial, dtype, empty, seed) -> None:
    o, lse = _partials(shape, dtype_partial, seed)
    lse[np.random.default_rng(seed).random(lse.shape) < empty] = -np.inf
    _check(o, lse, dtype)


@pytest.mark.parametrize("n_partials", [1, 2, 33, 1000])
def test_number_of_partials(n_partials: int) -> None:
    o, lse = _partials((n_partials, 2, 3, 2, 40), "float32")
    _check(o, lse, "float32")


def test_large_enough_for_threads() -> None:
    o, lse = _partials((4, 2, 700, 4, 64), "float32")
    _check(o, lse, "float32")


def test_one_partial_is_the_result() -> None:
    o, lse = _partials((1, 2, 5, 4, 8), "float16")
    merged, merged_lse = flash_combine(o, lse, return_lse=True)
    assert (merged == o[0]).all()
    np.testing.assert_allclose(merged_lse, lse[0], rtol=1e-6)


def test_no_partials() -> None:
    o, lse = _partials((0, 2, 5, 4, 8), "float32")
    merged, merged_lse = flash_combine(o, lse, return_lse=True)
    assert (merged == 0).all() and (merged_lse == -np.inf).all()


def test_rows_without_weight_are_not_looked_at() -> None:
    o, lse = _partials((3, 1, 4, 2, 8), "float32")
    lse[1] = -np.inf
    o[1] = np.nan
    lse[:, :, 0, 2] = -np.inf  # a row that no partial saw: query 2 of head 0
    o[:, :, 2, 0] = np.nan
    merged, merged_lse = flash_combine(o, lse, return_lse=True)
    assert np.isfinite(merged).all()
    assert (merged[0, 2, 0] == 0).all() and merged_lse[0, 0, 2] == -np.inf
    _check(o, lse, "float32")


def test_poison_with_weight_is_the_result() -> None:
    o, lse = _partials((3, 1, 4, 2, 8), "float32")
    o[1, 0, 3, 1, 5] = np.nan
    merged = flash_combine(o, lse)
    assert np.isnan(merged[0, 3, 1, 5]) and np.isnan(merged).sum() == 1


def test_lse_far_apart() -> None:
    o, lse = _partials((2, 1, 4, 2, 8), "float32")
    lse[0], lse[1] = 3e38, -3e38
    assert (flash_combine(o, lse) == o[0]).all()
    lse[...] = -1e30
    _check(o, lse, "float32")


@pytest.mark.parametrize("layout", ["padded", "heads_first", "unaligned"])
def test_layouts(layout: str) -> None:
    o, lse = _partials((3, 2, 5, 4, 8), "bfloat16")
    expected = flash_combine(o, lse)
    out = arrange(np.zeros_like(o[0]), layout)
    assert flash_combine(arrange(o, layout), lse, out=out) is out
    assert (out == expected).all()
    repeated = np.broadcast_to(o[:1], o.shape)
    assert (flash_combine(repeated, lse) == flash_combine(repeated.copy(), lse)).all()


def test_writes_nothing_but_its_outputs() -> None:
    call = CombineCall()
    assert call.run() == 0
    expected, expected_lse = oracle.combine(call.o_partial, call.lse_partial)
    np.testing.assert_allclose(call.o.take(), expected, atol=1e-5)
    np.testing.assert_allclose(call.lse.take(), expected_lse, rtol=1e-5, atol=1e-5)


def test_lse_is_optional() -> None:
    call = CombineCall()
    call.args.lse = None
    assert call.run() == 0
    call.lse.assert_untouched()


@pytest.mark.parametrize("options", [{}, {"softcap": 4.0}, {"softmax_scale": 0.3}], ids=str)
def test_attention_over_parts_of_the_keys_merges_to_the_whole(options: dict) -> None:
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 9, 4, 32)).astype(np.float32)
    k, v = rng.standard_normal((2, 2, 300, 2, 32)).astype(np.float32)
    parts = [slice(0, 1), slice(1, 200), slice(200, 200), slice(200, 300)]
    results = [
        flash_attn_func(q, k[:, part], v[:, part], return_lse=True, **options) for part in parts
    ]
    o, lse = flash_combine(*(np.stack(x) for x in zip(*results)), return_lse=True)
    whole, whole_lse = flash_attn_func(q, k, v, return_lse=True, **options)
    np.testing.assert_allclose(o, whole, atol=2e-6)
    np.testing.assert_allclose(lse, whole_lse, rtol=1e-5, atol=1e-5)


RAGGED = {"cu_seqlens_q": (0, 5, 5, 12), "max_seqlen_q": 7, "max_seqlen_k": 100}


def test_ragged_results_merge_to_the_whole() -> None:
    rng = np.random.default_rng(1)
    q = rng.standard_normal((12, 4, 32)).astype(np.float32)
    k, v = rng.standard_normal((2, 150, 2, 32)).astype(np.float32)
    parts = [(0, 30, 30, 60), (60, 100, 120, 150)]  # of each sequence's keys, as cu_seqlens_k
    results = [
        flash_attn_varlen_func(
            q, k[begin[0] :], v[begin[0] :], cu_seqlens_k=[x - begin[0] for x in begin],
            return_lse=True, **RAGGED,
        )
        for begin in parts
    ]  # fmt: skip
    o_partial, lse_partial = (np.stack(x) for x in zip(*results))
    expected = flash_combine(o_partial[:, None], lse_partial[:, None], return_lse=True)
    out, lse = np.zeros_like(q), np.zeros((4, 12), np.float32)
    merged = flash_combine(o_partial, lse_partial, out=out, lse=lse)
    assert merged[0] is out and merged[1] is lse
    for found in ((out, lse), flash_combine(o_partial, lse_partial, return_lse=True)):
        assert all(np.array_equal(x, y[0]) for x, y in zip(found, expected))
    whole, _ = oracle.combine(o_partial[:, None], lse_partial[:, None])
    np.testing.assert_allclose(out, whole[0], atol=1e-5)


@pytest.mark.parametrize("n_threads", [2, 3, 7])
def test_threads_do_not_change_bits(n_threads: int) -> None:
    o, lse = _partials((5, 2, 700, 4, 64), "float16")
    flashattn.set_num_threads(1)
    expected = flash_combine(o, lse, return_lse=True)
    flashattn.set_num_threads(n_threads)
    result = flash_combine(o, lse, return_lse=True)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(result, expected))
