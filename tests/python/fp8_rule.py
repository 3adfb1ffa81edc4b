"""The rule of docs/numerics.md for kernels that multiply e4m3 as such, and round P to it."""

from __future__ import annotations

import numpy as np

ALLOWED = 1.1
# The tensor core cuts off bits of each product and sum: of O, and of scores per column of Q.
CUT_OF_O, CUT_OF_LARGEST_O = 2.0**-10, 2.0**-9
LSE_ERROR, LSE_OF_SCORE = 2e-3, 2.0**-16


def norm(x: np.ndarray) -> float:
    return float(np.linalg.norm(x))


def assert_keeps(
    o: np.ndarray,
    lse: np.ndarray,
    exact: tuple[np.ndarray, np.ndarray],
    rounded: np.ndarray,
    d_head: int,
    replay: str,
    score_error: float = 0.0,
) -> None:
    """Asserts the rule. exact: O and LSE of the oracle; rounded: oracle.of_rounded_p() in the type
    of O; score_error: of each score, beside that of sums along d_head."""
    exact_o, exact_lse = exact
    rounded, o = rounded.astype(np.float64), o.astype(np.float64)
    assert (np.isfinite(o) == np.isfinite(exact_o)).all(), replay
    finite = np.isfinite(exact_o)
    error, of_rounded = (norm((x - exact_o)[finite]) for x in (o, rounded))
    seen = np.isfinite(exact_lse)
    assert np.array_equal(lse[~seen], exact_lse[~seen]) or np.isnan(exact_lse[~seen]).any(), replay
    score_error += LSE_OF_SCORE * d_head * np.abs(exact_lse[seen]).max(initial=0)
    allowed = ALLOWED * of_rounded + (CUT_OF_O + score_error / 8) * norm(exact_o[finite])
    assert error <= allowed, (error, of_rounded, norm(exact_o[finite]), replay)
    most, most_of_rounded = (np.abs(x - exact_o)[finite].max(initial=0) for x in (o, rounded))
    largest = np.abs(exact_o[finite]).max(initial=0)
    allowed = 2 * most_of_rounded + (CUT_OF_LARGEST_O + score_error / 2) * largest + 1e-5
    assert most <= allowed, (most, most_of_rounded, largest, replay)
    lse_error = np.abs(lse[seen] - exact_lse[seen]).max(initial=0)
    assert lse_error <= LSE_ERROR + score_error, ("LSE", lse_error, score_error, replay)
