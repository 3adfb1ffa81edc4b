"""The oracle is compared with numbers found by hand, and the comparators with wrong results."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flashattn import oracle
from flashattn.compare import compare
from memory import dtype_of

LN2, LN3 = math.log(2), math.log(3)


def _column(*values: float) -> np.ndarray:
    """[1, seqlen, 1, 1]"""
    return np.array(values, np.float64).reshape(1, -1, 1, 1)


def test_by_hand() -> None:
    """Scores ln 1, ln 2, ln 3 have the weights 1/6, 2/6, 3/6."""
    o, lse = oracle.attention(_column(1), _column(0, LN2, LN3), _column(6, 12, 30))
    assert o.item() == pytest.approx((6 + 24 + 90) / 6)
    assert lse.item() == pytest.approx(math.log(6))


def test_scale_and_softcap_by_hand() -> None:
    k = _column(0, 2)
    _, lse = oracle.attention(_column(1), k, k, softmax_scale=LN2 / 2)
    assert lse.item() == pytest.approx(LN3)
    _, lse = oracle.attention(_column(1), k, k, softcap=0.5)
    assert lse.item() == pytest.approx(math.log(1 + math.exp(0.5 * math.tanh(4))))
    wide = np.ones((1, 1, 1, 16))
    assert oracle.attention(wide, wide, wide)[1].item() == pytest.approx(4)


def _seen(len_q: int, len_k: int, **options: object) -> list[set[int]]:
    """Finds the keys that each query sees: equal scores and one-hot V give them weights."""
    q, k = np.zeros((1, len_q, 1, len_k)), np.zeros((1, len_k, 1, len_k))
    v = np.eye(len_k).reshape(1, len_k, 1, len_k)
    o, _ = oracle.attention(q, k, v, **options)
    return [set(np.flatnonzero(row).tolist()) for row in o[0, :, 0]]


def test_masks_by_hand() -> None:
    assert _seen(2, 4) == [{0, 1, 2, 3}] * 2
    assert _seen(2, 4, causal=True) == [{0, 1, 2}, {0, 1, 2, 3}]
    assert _seen(4, 2, causal=True) == [set(), set(), {0}, {0, 1}]
    assert _seen(2, 4, window_size=(1, 0)) == [{1, 2}, {2, 3}]
    assert _seen(2, 4, window_size=(0, 1)) == [{2, 3}, {3}]
    assert _seen(2, 4, window_size=(1, 1), causal=True) == [{1, 2}, {2, 3}]
    assert _seen(2, 4, window_size=(-1, 0)) == [{0, 1, 2}, {0, 1, 2, 3}]
    assert _seen(2, 4, seqused_k=[3], causal=True) == [{0, 1}, {0, 1, 2}]


def test_empty_rows() -> None:
    o, lse = oracle.attention(_column(1, 1), _column(5), _column(5), causal=True)
    assert o[0, :, 0, 0].tolist() == [0, 5] and lse[0, 0].tolist() == [-np.inf, 5]


def test_groups_use_consecutive_heads() -> None:
    q = np.zeros((1, 1, 6, 1))
    kv = np.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
    o, _ = oracle.attention(q, kv, kv)
    assert o[0, 0, :, 0].tolist() == [1, 1, 2, 2, 3, 3]


def test_ragged_is_each_sequence_alone() -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 9, 2, 4))
    options = {"causal": True, "softcap": 2.0}
    o, lse = oracle.attention(
        q,
        k,
        v,
        cu_seqlens_q=[0, 3, 3, 9],
        cu_seqlens_k=[0, 5, 7, 9],
        seqused_k=[4, 2, 1],
        **options,
    )
    for rows, keys in ((slice(0, 3), slice(0, 4)), (slice(3, 9), slice(7, 8))):
        alone, alone_lse = oracle.attention(q[None, rows], k[None, keys], v[None, keys], **options)
        np.testing.assert_array_equal(o[rows], alone[0])
        np.testing.assert_array_equal(lse[:, rows], alone_lse[0])


def test_hidden_poison_does_not_show_and_visible_poison_does() -> None:
    q, k, v = _column(1, 1, 1), _column(0, 0, 0), _column(1, np.nan, 2)
    o, _ = oracle.attention(q, k, v, causal=True)
    assert o[0, 0, 0, 0] == 1 and np.isnan(o[0, 1:]).all()
    o, lse = oracle.attention(q, _column(0, np.inf, 0), _column(1, 1, 1), causal=True)
    assert o[0, 0, 0, 0] == 1 and np.isnan(o[0, 1:]).all() and np.isnan(lse[0, 0, 1:]).all()


def test_combine_by_hand() -> None:
    o = np.array([1.0, 4.0, np.nan]).reshape(3, 1, 1, 1, 1)
    lse = np.array([LN2, 0, -np.inf]).reshape(3, 1, 1, 1)
    merged, merged_lse = oracle.combine(o, lse)
    assert merged.item() == pytest.approx(2) and merged_lse.item() == pytest.approx(LN3)
    merged, merged_lse = oracle.combine(o[2:], lse[2:])
    assert merged.item() == 0 and merged_lse.item() == -np.inf


def test_naive_rounds_and_the_oracle_does_not() -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, 50, 2, 16)).astype(dtype_of("bfloat16"))
    exact, _ = oracle.attention(q, k, v)
    plain = oracle.naive(q, k, v)
    error = np.abs(plain - exact).max()
    assert 1e-4 < error < 1e-2
    assert (plain == plain.astype(q.dtype).astype(np.float32)).all()


# ---- compare() ----


def _results(dtype: str = "float16"):
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, 60, 2, 16)).astype(dtype_of(dtype))
    exact, lse = oracle.attention(q, k, v)
    return exact, oracle.naive(q, k, v), lse


def _failures(change, dtype: str = "float16", **options: object) -> str:
    exact, plain, lse = _results(dtype)
    o = exact.astype(dtype_of(dtype))
    lse_out = lse.astype(np.float32)
    change(o, lse_out)
    result = compare(o, exact, plain, lse=lse_out, oracle_lse=lse, **options)
    assert result.ok == (not result.failures)
    return "; ".join(result.failures)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_right_result_passes(dtype: str) -> None:
    assert _failures(lambda o, lse: None, dtype) == ""


@pytest.mark.parametrize(
    "change, failure",
    [
        (lambda o, lse: o.__setitem__((0, 3, 1, 2), np.nan), "NaN misplaced at 1 of 1920"),
        (lambda o, lse: o.__setitem__((0, 3, 1, 2), np.inf), "O: +infinity misplaced"),
        (lambda o, lse: o.__setitem__((0, 3, 1, 2), o[0, 3, 1, 2] + 0.01), "O: max error"),
        (lambda o, lse: o.__imul__(np.float16(1.001)), "O: relative error"),
        (lambda o, lse: o.__setitem__(Ellipsis, 0), "O: relative error 1.0"),
        (lambda o, lse: o.__setitem__(Ellipsis, o[:, ::-1]), "O: max error"),
        (lambda o, lse: lse.__setitem__((0, 1, 5), -np.inf), "LSE: -infinity misplaced"),
        (lambda o, lse: lse.__iadd__(np.float32(1e-4)), "LSE: error"),
        (lambda o, lse: lse.__imul__(np.float32(1 / LN2)), "LSE: error"),
    ],
    ids=["nan", "inf", "value", "scaled", "zero", "rows", "lse_inf", "lse", "lse_base_2"],
)  # fmt: skip
def test_a_wrong_result_fails(change, failure: str) -> None:
    assert failure in _failures(change)


def test_beyond_32_only_the_first_rule_holds() -> None:
    def scaled(o, lse) -> None:
        o *= np.float16(1.001)

    assert "relative" in _failures(scaled, largest_score=31.0)
    assert "relative" not in _failures(scaled, largest_score=33.0)


def test_an_error_of_scores_is_one_of_lse() -> None:
    def shifted(o, lse) -> None:
        lse += np.float32(7e-5)

    assert "LSE" in _failures(shifted)
    assert _failures(shifted, score_error=5e-5) == ""
    assert "LSE" in _failures(shifted, score_error=1e-5)


@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30], ids=str)
def test_the_first_rule_is_in_units_of_v(unit: float) -> None:
    def error_of(size: float) -> str:
        exact, plain, _ = _results("float32")
        o = exact.astype(np.float32)
        o[0, 3, 1, 2] += size
        return "".join(
            compare(o * np.float32(unit), exact * unit, plain * unit, unit=unit).failures
        )

    assert error_of(5e-6) == ""
    assert "O: max error" in error_of(5e-5)


def test_expected_nan_must_be_there() -> None:
    exact, plain, _ = _results()
    expected = exact.copy()
    expected[0, 0] = np.nan
    o = exact.astype(np.float16)
    assert "NaN misplaced at 32" in "".join(compare(o, expected, plain).failures)
    o[0, 0] = np.nan
    assert compare(o, expected, plain).ok
