"""What the oracle expects of a problem, and the rules by which O and LSE agree with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import fp8_rule
import numpy as np
from flashattn import oracle
from flashattn.compare import compare

# FlashAttention's test of caches allows as much of the mean error of a plain implementation.
_MEAN_ERROR = 1.5


@dataclass(frozen=True)
class Expected:
    """The results of the oracle and of the naive implementation for a problem."""

    o: np.ndarray
    lse: np.ndarray
    naive_o: np.ndarray  # [roundings, *o.shape]
    largest_score: float
    p_dtype: np.dtype
    unit: float = 1.0  # of V
    score_error: float = 0.0
    d_head_of_e4m3: int = 0  # where e4m3 is multiplied as such


def largest_scale(scales: object) -> float:
    """Returns the largest magnitude of finite scales: None, a number, or [batch][n_heads_kv]."""
    values = np.abs(np.array(1.0 if scales is None else scales, np.float64))
    return float(values[np.isfinite(values)].max(initial=0)) or 1.0


def expected_of(
    inputs: list[np.ndarray],
    p_dtype: np.dtype,
    o_dtype: np.dtype | None = None,
    roundings: int = 1,
    **options: object,
) -> Expected:
    """Computes what is expected of q, k, v and options of the oracle.

    p_dtype, o_dtype    of P and O in the naive attention; None: that of q
    roundings           of P in it: see oracle.naive()
    """
    q, k, v = inputs
    o, lse = oracle.attention(q, k, v, **options)
    naive_o = oracle.naive(
        q, k, v, roundings=roundings, p_dtype=p_dtype, o_dtype=o_dtype, **options
    )
    largest_score = oracle.largest_score(q, k, options.get("softmax_scale"))
    largest_score *= largest_scale(options.get("k_descale"))
    largest_score *= largest_scale(options.get("q_descale"))
    unit = largest_scale(options.get("v_descale"))
    return Expected(o, lse, naive_o, largest_score, p_dtype, unit)


def expected_of_fp8(
    inputs: list[np.ndarray], o_dtype: np.dtype | None = None, **options: object
) -> Expected:
    """Computes what is expected of rows that multiply e4m3 as such: naive_o is exact attention
    whose P is rounded to it."""
    p_dtype = inputs[2].dtype
    expected = expected_of(inputs, p_dtype, o_dtype, **options)
    rounded = oracle.of_rounded_p(*inputs, p_dtype=p_dtype, **options)
    o_dtype = o_dtype or np.dtype(np.float32)
    return replace(
        expected,
        naive_o=rounded.astype(o_dtype)[None],
        d_head_of_e4m3=inputs[0].shape[-1],
    )


def assert_agrees(o: np.ndarray, lse: np.ndarray, expected: Expected, replay: str) -> None:
    """Asserts the rules of docs/numerics.md. replay: what the message adds."""
    if expected.d_head_of_e4m3:
        fp8_rule.assert_keeps(
            o,
            lse,
            (expected.o, expected.lse),
            expected.naive_o[0],
            expected.d_head_of_e4m3,
            replay,
            expected.score_error,
        )
        return
    deviation = compare(
        o,
        expected.o,
        expected.naive_o,
        lse=lse,
        oracle_lse=expected.lse,
        largest_score=expected.largest_score,
        p_dtype=expected.p_dtype,
        unit=expected.unit,
        score_error=expected.score_error,
    )
    assert deviation.ok, f"{deviation.failures}; {deviation}; {replay}"


def assert_mean_error(o: np.ndarray, expected: Expected, replay: str) -> None:
    """Asserts that the mean error is at most 1.5 times that of the naive implementation."""
    found, naive = (
        float(np.abs(x.astype(np.float64) - expected.o).mean()) for x in (o, expected.naive_o[0])
    )
    assert found <= _MEAN_ERROR * naive, f"mean error {found:.3e}, naive {naive:.3e}; {replay}"
