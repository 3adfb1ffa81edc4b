"""This module compares O and LSE with the oracle by the rules of docs/numerics.md.

It compares the places of NaN and infinity first. Then max|O - oracle| must be at most
2 max|naive - oracle| + 1e-5, in units of V. The relative error and the cosine count where scaled
scores stay within +-32, and the LSE where it is given.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

RELATIVE_ERROR = {"bfloat16": 3e-3, "float16": 5e-4, "float32": 1e-5, "float8_e4m3fn": 4e-2}
# Rounding the oracle itself to the output type is an error that no bound can exclude: near the
# smallest numbers, and where all elements are about the same number, it exceeds the bounds above.
_ROUNDING = 1.05
_LSE_ERROR = 1e-5
_SCORES_WITHIN = 32.0
# float32 scores beyond that range lose this part of themselves, and O with them.
_SCORE_ERROR = 1.6e-7
# Gradients may have these relative errors, and lose this part of the magnitudes of a sum's terms,
# which rounding them to float32 costs, however small the sum is.
GRADIENT_ERROR = {"bfloat16": 5e-3, "float16": 7e-4, "float32": 2e-5}
_CANCELLATION = 2.0**-20


@dataclass
class Deviation:
    """Holds what compare() found: errors of the finite elements, and every rule that was broken."""

    max_error: float = 0.0
    max_error_allowed: float = 0.0
    relative_error: float = 0.0
    cosine_distance: float = 0.0
    lse_error: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        return (
            f"max error {self.max_error:.2e} (allowed {self.max_error_allowed:.2e}), "
            f"relative {self.relative_error:.2e}, 1 - cosine {self.cosine_distance:.2e}, "
            f"LSE {self.lse_error:.2e}"
        )


class GradientDeviation(Deviation):
    """Holds what compare_gradient() found."""

    def __str__(self) -> str:
        return (
            f"max error {self.max_error:.2e} (allowed {self.max_error_allowed:.2e}), "
            f"relative {self.relative_error:.2e}"
        )


def compare(
    o: np.ndarray,
    oracle_o: np.ndarray,
    naive_o: np.ndarray,
    *,
    lse: np.ndarray | None = None,
    oracle_lse: np.ndarray | None = None,
    largest_score: float = 0.0,
    score_error: float = 0.0,
    unit: float = 1.0,
    p_dtype: np.dtype | None = None,
) -> Deviation:
    """Measures O (in its own type) and, where given, LSE (float32) against the oracle. naive_o is
    [n, *O.shape], as oracle.naive() returns it; score_error is an absolute error that each score
    may have beside those of fp32; unit is the scale of V, about its standard deviation; p_dtype is
    the type that P is rounded to, None: O's.
    """
    result = Deviation()
    dtype = o.dtype
    relative_error = max(RELATIVE_ERROR[x.name] for x in (dtype, p_dtype or dtype))
    o = o.astype(np.float64)
    _check_places(result, "O", o, oracle_o)
    finite = np.isfinite(oracle_o) & np.isfinite(o)
    _check_max_error(result, o[finite], oracle_o[finite], naive_o[:, finite], largest_score, unit)
    if largest_score <= _SCORES_WITHIN:
        _check_direction(result, o[finite], oracle_o[finite], dtype, relative_error)
    if lse is not None:
        _check_lse(result, lse.astype(np.float64), oracle_lse, largest_score, score_error)
    return result


def compare_gradient(
    name: str,
    found: np.ndarray,
    exact: np.ndarray,
    naive: np.ndarray,
    magnitude: np.ndarray,
    *,
    largest_score: float = 0.0,
    p_dtype: np.dtype | None = None,
) -> GradientDeviation:
    """Measures a gradient (in its own type) against those of gradient_oracle.py. naive is that of
    naive_of() there (float32, [n, *found.shape]), of which the largest error counts, and magnitude
    that of magnitudes(); p_dtype is the type that P and dS are rounded to, None: found's."""
    result = GradientDeviation()
    dtype = found.dtype
    with np.errstate(over="ignore"):  # infinite where they are beyond the type
        rounded, naive_rounded = (x.astype(dtype).astype(np.float64) for x in (exact, naive))
    found = found.astype(np.float64)
    _check_places(result, name, found, rounded)
    finite = np.isfinite(rounded) & np.isfinite(found)
    exact, found, magnitude = exact[finite], found[finite], np.abs(magnitude[finite])
    naive_error = _finite(np.abs(naive_rounded[:, finite] - exact))
    unrounded_error = _finite(np.abs(naive[:, finite].astype(np.float64) - exact))
    largest = np.abs(rounded[finite]).max(initial=0).astype(dtype)
    half_step = (float(largest) - float(np.nextafter(largest, dtype.type(0)))) / 2
    of_scores = _SCORE_ERROR * largest_score if _SCORES_WITHIN < largest_score < np.inf else 0.0
    error = np.abs(found - exact)
    result.max_error = float(error.max(initial=0))
    result.max_error_allowed = float(
        max(2 * naive_error.max(initial=0), 2 * unrounded_error.max(initial=0) + half_step)
        + 1e-5 * np.abs(exact).max(initial=0)
        + (_CANCELLATION + of_scores) * magnitude.max(initial=0)
    )
    if not result.max_error <= result.max_error_allowed:
        result.failures.append(
            f"{name}: max error {result.max_error:.3e}, allowed {result.max_error_allowed:.3e}"
        )
    part = max(GRADIENT_ERROR[x.name] for x in (dtype, p_dtype or dtype))
    length, rounding = np.linalg.norm(exact), np.linalg.norm(rounded[finite] - exact)
    of_naive = np.linalg.norm(naive_error, axis=1).max()
    allowed = max(part * length, _ROUNDING * rounding, 2 * of_naive)
    allowed += _CANCELLATION * np.linalg.norm(magnitude)
    result.relative_error = float(np.linalg.norm(error) / (length or 1))
    if largest_score <= _SCORES_WITHIN and np.linalg.norm(error) > allowed:
        result.failures.append(
            f"{name}: error {np.linalg.norm(error):.3e} (Frobenius), allowed {allowed:.3e} of "
            f"{length:.3e}"
        )
    return result


def _finite(errors: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(errors), errors, 0)


def _check_places(result: Deviation, name: str, actual: np.ndarray, expected: np.ndarray) -> None:
    for what, holds in (
        ("NaN", np.isnan),
        ("+infinity", np.isposinf),
        ("-infinity", np.isneginf),
    ):
        wrong = np.argwhere(holds(actual) != holds(expected))
        if len(wrong):
            place = tuple(int(i) for i in wrong[0])
            result.failures.append(
                f"{name}: {what} misplaced at {len(wrong)} of {actual.size} elements, first "
                f"{place}: {actual[place]}, oracle {expected[place]}"
            )


def _check_max_error(
    result: Deviation,
    o: np.ndarray,
    oracle_o: np.ndarray,
    naive_o: np.ndarray,
    largest_score: float,
    unit: float,
) -> None:
    naive_error = np.abs(naive_o.astype(np.float64) - oracle_o)
    naive_error = naive_error[np.isfinite(naive_error)]
    result.max_error = float(np.abs(o - oracle_o).max(initial=0))
    result.max_error_allowed = float(2 * naive_error.max(initial=0) + 1e-5 * unit)
    if _SCORES_WITHIN < largest_score < np.inf:
        result.max_error_allowed += float(
            _SCORE_ERROR * largest_score * np.abs(oracle_o).max(initial=0)
        )
    if not result.max_error <= result.max_error_allowed:
        result.failures.append(
            f"O: max error {result.max_error:.3e}, allowed {result.max_error_allowed:.3e}"
        )


def _check_direction(
    result: Deviation,
    o: np.ndarray,
    oracle_o: np.ndarray,
    dtype: np.dtype,
    relative_error: float,
) -> None:
    length = np.linalg.norm(oracle_o)
    error = np.linalg.norm(o - oracle_o)
    if length == 0:
        if error > 0:
            result.failures.append(f"O: {error:.3e} where the oracle has zeros")
        return
    rounding = np.linalg.norm(oracle_o.astype(dtype).astype(np.float64) - oracle_o)
    allowed = max(relative_error, _ROUNDING * float(rounding / length))
    result.relative_error = float(error / length)
    result.cosine_distance = float(1 - (o @ oracle_o) / (length * np.linalg.norm(o) or 1))
    if result.relative_error > allowed:
        result.failures.append(
            f"O: relative error {result.relative_error:.3e}, allowed {allowed:.3e}"
        )
    elif result.cosine_distance > allowed**2 + 1e-15:
        result.failures.append(f"O: 1 - cosine is {result.cosine_distance:.3e}")


def _check_lse(
    result: Deviation,
    lse: np.ndarray,
    oracle_lse: np.ndarray | None,
    largest_score: float,
    score_error: float,
) -> None:
    if oracle_lse is None or lse.shape != oracle_lse.shape:
        result.failures.append(f"LSE: shape {lse.shape}, oracle {np.shape(oracle_lse)}")
        return
    _check_places(result, "LSE", lse, oracle_lse)
    finite = np.isfinite(oracle_lse) & np.isfinite(lse)
    error = np.abs(lse[finite] - oracle_lse[finite])
    result.lse_error = float(error.max(initial=0))
    # Scores beyond +-32 carry a float32 error in proportion to themselves, whatever their sum.
    allowed = _LSE_ERROR * (1 + np.maximum(np.abs(oracle_lse[finite]), max(largest_score, 32) - 32))
    allowed += score_error
    if (error > allowed).any():
        worst = int(np.argmax(error - allowed))
        result.failures.append(
            f"LSE: error {error[worst]:.3e} at {oracle_lse[finite][worst]:.6g}, allowed "
            f"{allowed[worst]:.3e}"
        )
