"""Attention of Q, K and V of e4m3 is as exact as quantising them allows: docs/numerics.md says what
kernels must keep, and these inputs show what does not."""

from __future__ import annotations

from typing import NamedTuple

import flashattn
import numpy as np
import pytest
from flashattn import oracle
from memory import E4M3, dtype_of
from pairwise import combined

D_HEAD, QUERIES = 64, 32
ALLOWED = 1.1


class Inputs(NamedTuple):
    """Holds q, k and v in float32."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


def _inputs(n_keys: int, std: float, mean: float, lead: float) -> Inputs:
    """Scaled scores have this standard deviation, V this mean, and the first four keys scores that
    lead by so much."""
    rng = np.random.default_rng(int(n_keys + 10 * std + 100 * mean + 1000 * lead))
    q, k, v = (rng.standard_normal((1, n, 1, D_HEAD)) for n in (QUERIES, n_keys, n_keys))
    q *= std
    direction = np.ones(D_HEAD) / np.sqrt(D_HEAD)
    q += direction * 4
    k -= (k @ direction)[..., None] * direction  # scores along it are of the lead alone
    k[:, :4] += direction * lead * np.sqrt(D_HEAD) / 4
    return Inputs(*(x.astype(np.float32) for x in (q, k, v + mean)))


def _relative(o: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(o.astype(np.float64) - exact) / np.linalg.norm(exact))


def _quantised(x: Inputs) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    found = [flashattn.quantise(array) for array in x]
    names = ("q_descale", "k_descale", "v_descale")
    return [y.codes for y in found], {n: y.descale for n, y in zip(names, found)}


@combined(
    n_keys=(1024, 8192, 32768),
    std=(0.25, 1.0, 4.0),
    mean=(0.0, 1.0),
    lead=(0.0, 8.0),
)
def test_an_error_is_that_of_quantising(n_keys: int, std: float, mean: float, lead: float) -> None:
    x = _inputs(n_keys, std, mean, lead)
    codes, scales = _quantised(x)
    exact, _ = oracle.attention(*x)
    best = _relative(oracle.attention(*codes, **scales)[0], exact)
    rounded = _relative(oracle.of_rounded_p(*codes, p_dtype=dtype_of(E4M3), **scales), exact)
    configs = [k.config for k in flashattn.kernels() if _serves(k)]
    assert len(configs) >= 2
    for config in configs:
        o = flashattn.flash_attn_func(*codes, **scales, out_dtype="float32", config=config)
        assert _relative(o, exact) <= ALLOWED * best, config
    assert best <= ALLOWED * rounded


def _serves(kernel: flashattn.Kernel) -> bool:
    is_e4m3 = kernel.config.dtype == flashattn.DType.E4M3
    is_forward = kernel.config.op == flashattn.Op.FORWARD
    return is_e4m3 and is_forward and kernel.is_runnable


@pytest.mark.parametrize("place", [0, 1, 70_000, 131_071])
def test_a_needle_among_many_keys(place: int) -> None:
    """A key has half of the weight, or as good as all, of 128k keys, each of which has the same."""
    n_keys = 1 << 17
    for lead, share in ((0.0, 0.5), (8.0, 1.0)):
        q = np.ones((1, 1, 1, D_HEAD), np.float32)
        k = np.zeros((1, n_keys, 1, D_HEAD), np.float32)
        k[0, place] = (np.log(n_keys - 1) + lead) / np.sqrt(D_HEAD)
        v = np.ones_like(k)
        v[0, place] = 3
        codes, scales = _quantised(Inputs(q, k, v))
        o = flashattn.flash_attn_func(*codes, **scales, out_dtype="float32")
        exact, _ = oracle.attention(*codes, **scales)
        assert np.abs(o - exact).max() <= 1e-2 * exact.max()
        assert abs(exact.max() - (1 + 2 * share)) < 0.1


def test_sums_of_few_bits_do_not_pass() -> None:
    """The mean of V, which random V lacks, shows a sum of 14 bits, as tensor cores of Hopper have
    them, over all keys, and none over 128."""
    v = _inputs(32768, 1.0, 1.0, 0.0).v[0, :, 0]
    exact = v.astype(np.float64).mean(0)

    def error(keys_of_a_sum: int) -> float:
        total = np.zeros(D_HEAD)
        for first in range(0, len(v), keys_of_a_sum):
            part = np.zeros(D_HEAD)
            for key in range(first, first + keys_of_a_sum, 32):
                part = _cut(part + v[key : key + 32].astype(np.float64).sum(0), 13)
            total += part
        return float(np.linalg.norm(total / len(v) - exact) / np.linalg.norm(exact))

    assert error(len(v)) > 1e-2 and error(128) < 2e-3


def test_p_is_rounded_relative_to_the_largest_weight() -> None:
    """Rounding is as fine for many keys as for few: a weight of 2^-17 alone would lose all."""
    n_keys = 1 << 17
    v = _inputs(n_keys, 1.0, 1.0, 0.0).v
    q, k = np.zeros((1, 1, 1, D_HEAD), np.float32), np.zeros_like(v)
    exact, _ = oracle.attention(q, k, v)
    rounded = oracle.of_rounded_p(q, k, v, p_dtype=dtype_of(E4M3))
    assert _relative(rounded, exact) < 1e-12
    q[...], k[:, 1::2] = 1, np.log(1.1) / np.sqrt(D_HEAD)  # P is 256 and 232.7, which becomes 240
    rounded = oracle.of_rounded_p(q, k, v, p_dtype=dtype_of(E4M3))
    of_p = 240 / (256 / 1.1)
    even, odd = (v[0, first::2, 0].astype(np.float64).sum(0) for first in (0, 1))
    expected = (even / 1.1 * of_p + odd) / (n_keys / 2 * (1 + 1 / 1.1))
    np.testing.assert_allclose(rounded[0, 0, 0], expected, rtol=1e-6)


# ---- A model of kernels that multiply e4m3 ----

BLOCK = 128  # keys of a sum in the tensor core
OFFSET = 8  # P is 2^OFFSET where a score is the reference
LARGEST = np.log2(448) - OFFSET  # octaves above the reference at which P is cut off


def _model(x: Inputs, lag: float, sums: str = "multiplied") -> np.ndarray:
    """Returns O of a kernel whose reference follows the maximum when a score is more than `lag`
    octaves above it. Each block's P V begins at zero. P that is above the largest code is cut off,
    as the conversion of GPUs does it; the sum is of P that was multiplied, or of the unrounded
    one."""
    codes, scales = _quantised(x)
    values = zip(codes, scales.values())
    q, k, v = (y[0, :, 0].astype(np.float32) * scale[0, 0] for y, scale in values)
    reference = np.full((len(q), 1), -np.inf, np.float32)
    o, total = np.zeros((len(q), D_HEAD), np.float32), np.zeros((len(q), 1), np.float32)
    for first in range(0, len(k), BLOCK):
        keys = slice(first, first + BLOCK)
        scores = q @ k[keys].T * np.float32(np.log2(np.e) / np.sqrt(D_HEAD))
        most = scores.max(axis=1, keepdims=True)
        following = np.where(most > reference + lag, most, reference)
        correction = np.exp2(reference - following)
        reference = following
        p = np.exp2(scores - reference + OFFSET)
        multiplied = np.minimum(p, 448).astype(dtype_of(E4M3)).astype(np.float32)
        summed = multiplied if sums == "multiplied" else p
        o = o * correction + multiplied @ v[keys]
        total = total * correction + summed.sum(axis=1, keepdims=True)
    return (o / total)[None, :, None]


def _growing(n_keys: int, mean: float) -> Inputs:
    """Scores rise by 3.5 octaves at the middle of the keys, where a lagging reference stays."""
    x = _inputs(n_keys, 0.25, mean, 0.0)
    direction = np.ones(D_HEAD, np.float32) / np.sqrt(np.float32(D_HEAD))
    x.k[:, n_keys // 2 :] += direction * (3.5 * np.log(2) * np.sqrt(D_HEAD) / 4)
    return x


def _errors(x: Inputs, **options: object) -> tuple[float, float]:
    """Returns the model's error, and that of exact attention whose P is rounded."""
    codes, scales = _quantised(x)
    exact, _ = oracle.attention(*x)
    rounded = oracle.of_rounded_p(*codes, p_dtype=dtype_of(E4M3), **scales)
    return _relative(_model(x, **options), exact), _relative(rounded, exact)


@pytest.mark.parametrize("n_keys", [1024, 8192, 32768, 131072])
@pytest.mark.parametrize("lag", [0.0, 0.75])
def test_a_kernel_with_two_levels_of_sums_passes(n_keys: int, lag: float) -> None:
    leading, wide = _inputs(n_keys, 1.0, 0.0, 8.0), _inputs(n_keys, 4.0, 1.0, 0.0)
    for x in (leading, wide, _growing(n_keys, 1.0)):
        error, rounded = _errors(x, lag=lag)
        assert error <= ALLOWED * rounded, (error, rounded)


@pytest.mark.parametrize("n_keys", [1024, 32768])
@pytest.mark.parametrize("sums", ["multiplied", "unrounded"])
def test_a_kernel_that_cuts_p_off_does_not_pass(n_keys: int, sums: str) -> None:
    """P has 0.8 octaves above a reference of 2^8: one that lags by four is cut off, without a
    trace in LSE where the sum is of the unrounded P."""
    assert 0.75 < LARGEST < 1
    x = _growing(n_keys, 0.0)
    x.v[:, n_keys // 2 :] += 1
    error, rounded = _errors(x, lag=4.0, sums=sums)
    assert error > 3 * ALLOWED * rounded, (error, rounded)
    error, rounded = _errors(x, lag=0.75, sums=sums)
    assert error <= ALLOWED * rounded, (error, rounded)


def _cut(x: np.ndarray, bits: int) -> np.ndarray:
    """Returns numbers whose mantissa has so many bits behind the first, the others cut off."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.trunc(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)
