"""The rule for kernels that multiply e4m3 lets what it allows pass, and nothing else."""

from __future__ import annotations

import fp8_rule
import numpy as np
import pytest

SHAPE, D_HEAD = (1, 8, 2, 16), 16


def _case() -> dict[str, object]:
    rng = np.random.default_rng(3)
    exact = rng.standard_normal(SHAPE)
    rounded = (exact + 0.02 * rng.standard_normal(SHAPE)).astype(np.float32)
    lse = rng.uniform(-4, 4, SHAPE[:-1])
    return {"o": rounded.copy(), "lse": lse.copy(), "exact": (exact, lse), "rounded": rounded}


def _assert_keeps(case: dict[str, object], score_error: float = 0.0) -> None:
    fp8_rule.assert_keeps(**case, d_head=D_HEAD, replay="", score_error=score_error)


def test_attention_with_rounded_p_keeps_it() -> None:
    _assert_keeps(_case())


def test_lse_is_bounded() -> None:
    case = _case()
    case["lse"][0, 0, 0] += 0.004
    with pytest.raises(AssertionError, match="LSE"):
        _assert_keeps(case)
    _assert_keeps(case, score_error=0.004)


@pytest.mark.parametrize("error", [1.0, np.nan, np.inf])
def test_one_wrong_element_is_seen(error: float) -> None:
    case = _case()
    case["o"][0, 3, 1, 5] += error
    with pytest.raises(AssertionError):
        _assert_keeps(case)


def test_a_little_more_everywhere_is_seen() -> None:
    case = _case()
    case["o"] += 0.3 * (case["rounded"] - case["exact"][0]).astype(np.float32)
    with pytest.raises(AssertionError):
        _assert_keeps(case)


def test_a_row_without_keys_stays_one() -> None:
    case = _case()
    case["exact"][1][0, 2, 0] = -np.inf
    with pytest.raises(AssertionError):
        _assert_keeps(case)
    case["lse"][0, 2, 0] = -np.inf
    _assert_keeps(case)
