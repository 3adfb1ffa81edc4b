"""Scales, softcaps, scores and values near the ends of fp32's range, on every kernel that runs,
with few rows, more rows than are read in place, and split keys.
"""

from dataclasses import replace

import numpy as np
import pytest
from memory import DTYPES
from problems import AttentionProblem, check, configs_for, make_inputs, rounds_p, run

LARGEST = 3e38  # in bf16 and fp32; times log2(e) it is beyond both
SHAPES = {
    "one_row": AttentionProblem(1, 1, 150, 1, 1, 1),
    "few_rows": AttentionProblem(1, 4, 150, 4, 2, 32),
    "many_rows": AttentionProblem(1, 70, 150, 2, 1, 64),
    "many_rows_of_one_column": AttentionProblem(1, 70, 150, 2, 1, 1),
    "split_keys": AttentionProblem(1, 1, 2500, 4, 2, 64),
}

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def check_kernels(p: AttentionProblem, inputs: list[np.ndarray]) -> None:
    for config in configs_for(p):
        o, lse = check(p, inputs, config, roundings=4 if rounds_p(p, config) else 1)
        assert np.isfinite(o.astype(np.float32)).all() and np.isfinite(lse).all(), config


@every_dtype
@every_shape
@pytest.mark.parametrize("scale", [LARGEST, 1e-30, 1e-39], ids=str)
def test_any_scale_of_scores_of_zero_weighs_all_keys_alike(
    scale: float, shape: AttentionProblem, dtype: str
) -> None:
    p = replace(shape, dtype=dtype, softmax_scale=scale)
    q, k, v = make_inputs(p)
    q[...] = 0
    check_kernels(p, [q, k, v])


@every_shape
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("factor", [1e-16, 3e-15, 1e16, 1e18], ids=str)
def test_a_scale_that_undoes_what_q_and_k_were_multiplied_by(
    factor: float, dtype: str, shape: AttentionProblem
) -> None:
    p = replace(shape, dtype=dtype, softmax_scale=shape.d_head**-0.5 / factor**2)
    q, k, v = make_inputs(p)
    q *= np.array(factor, q.dtype)
    k *= np.array(factor, k.dtype)
    check_kernels(p, [q, k, v])


@every_dtype
@every_shape
@pytest.mark.parametrize("softcap", [1e-45, 1e-39, 1e-37, 1e-20, 1e20, LARGEST], ids=str)
def test_any_softcap(softcap: float, shape: AttentionProblem, dtype: str) -> None:
    p = replace(shape, dtype=dtype, softcap=softcap)
    q, k, v = make_inputs(p)
    k[:, ::2] = 0
    check_kernels(p, [q, k, v])


@every_shape
@pytest.mark.parametrize("softcap", [1e-39, 1e-3, 5.0, 1e30], ids=str)
@pytest.mark.parametrize("scale", [LARGEST, 1e-39], ids=str)
def test_any_scale_under_any_softcap(scale: float, softcap: float, shape: AttentionProblem) -> None:
    p = replace(shape, softcap=softcap, softmax_scale=scale)
    q, k, v = make_inputs(p)
    q[...] = 0
    check_kernels(p, [q, k, v])


@every_dtype
@every_shape
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("order", ["rising", "falling", "shuffled"])
def test_scores_up_to_the_largest_number_choose_the_key_of_the_largest(
    order: str, sign: int, shape: AttentionProblem, dtype: str
) -> None:
    """Scores from 1.5e38 to 3e38 differ by so much that one key has all the weight. In fp16, whose
    largest number is 65504, the scale makes them as large."""
    p = replace(shape, dtype=dtype, softmax_scale=1.0 if dtype != "float16" else LARGEST / 2**15)
    q, k, v = make_inputs(p)
    largest = LARGEST if dtype != "float16" else 2**15
    scores = np.linspace(0.55 * largest, 0.95 * largest, p.seqlen_k)
    scores[[0, -1]] = largest / 2, largest
    if order == "falling":
        scores = scores[::-1]
    if order == "shuffled":
        np.random.default_rng(1).shuffle(scores)
    k[...], q[...] = 0, 0
    q[..., 0], k[..., 0] = sign, scores[None, :, None]
    chosen = int(np.argmax(sign * scores))
    expected = v[0, chosen].repeat(p.n_heads // p.n_heads_kv, 0)
    for config in configs_for(p):
        o, lse = run(p, [q, k, v], config)
        np.testing.assert_array_equal(o, np.broadcast_to(expected, o.shape), config)
        np.testing.assert_allclose(lse, sign * scores[chosen] * p.softmax_scale, rtol=4e-3)


@every_shape
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_of_both_signs_up_to_the_largest_number(dtype: str, shape: AttentionProblem) -> None:
    """Queries of -1 and 1 alternate, and the difference of two scores is beyond fp32."""
    p = replace(shape, dtype=dtype, softmax_scale=1.0)
    q, k, v = make_inputs(p)
    q[...], k[...] = 0, 0
    q[..., 0] = np.where(np.arange(q[..., 0].size) % 2, 1, -1).reshape(q.shape[:-1])
    k[..., 0] = -LARGEST
    k[:, 77, :, 0] = LARGEST
    others = np.arange(p.seqlen_k) != 77
    means = v[:, others].astype(np.float64).mean(axis=1).repeat(p.n_heads // p.n_heads_kv, 1)
    alone = v[:, 77].astype(np.float64).repeat(p.n_heads // p.n_heads_kv, 1)
    expected = np.where(q[..., :1] > 0, alone[:, None], means[:, None])
    for config in configs_for(p):
        o, lse = run(p, [q, k, v], config)
        np.testing.assert_allclose(o.astype(np.float64), expected, atol=2e-2, err_msg=config)
        np.testing.assert_allclose(lse, LARGEST, rtol=2e-3)


@every_dtype
@every_shape
@pytest.mark.parametrize("first_sign", [1, -1])
def test_a_scaled_score_beyond_fp32_is_infinite(
    first_sign: int, shape: AttentionProblem, dtype: str
) -> None:
    """Q K^T is finite. One key, then all keys, have scaled scores of 2^129 in rows of one sign, and
    of -2^129 in the others; the other keys have scores of 0."""
    p = replace(shape, dtype=dtype, softmax_scale=2.0**99)
    q, k, v = make_inputs(p)
    signs = np.where(np.arange(q[..., 0].size) % 2, -first_sign, first_sign)
    q[...], k[...] = 0, 0
    q[..., 0] = signs.reshape(q.shape[:-1]) * 2**15
    above = q[..., 0] > 0
    others = np.arange(p.seqlen_k) != 77
    means = v[:, others].astype(np.float64).mean(axis=1).repeat(p.n_heads // p.n_heads_kv, 1)
    expected = np.broadcast_to(means[:, None], q.shape[:-1] + v.shape[-1:])
    for config in configs_for(p):
        k[..., 0] = 0
        k[:, 77, :, 0] = 2**15
        o, lse = run(p, [q, k, v], config)
        by_row = lse.swapaxes(1, 2)
        assert np.isnan(o[above].astype(np.float32)).all() and np.isnan(by_row[above]).all(), config
        np.testing.assert_allclose(o[~above].astype(np.float64), expected[~above], atol=2e-2)
        np.testing.assert_allclose(by_row[~above], np.log(p.seqlen_k - 1), rtol=1e-5)
        k[..., 0] = 2**15
        o, lse = run(p, [q, k, v], config)
        by_row = lse.swapaxes(1, 2)
        assert np.isnan(o[above].astype(np.float32)).all() and np.isnan(by_row[above]).all(), config
        assert (o[~above] == 0).all() and (by_row[~above] == -np.inf).all(), config


@every_dtype
@every_shape
@pytest.mark.parametrize("score", [0.0, -60.0, -86.0, -100.0, -500.0])
@pytest.mark.parametrize("comes_last", [False, True])
def test_an_infinite_value_shows_whatever_its_weight(
    comes_last: bool, score: float, shape: AttentionProblem, dtype: str
) -> None:
    """Infinity shows from a weight of 2^-125 on, and as NaN or infinity below. Other columns are as
    if it were zero, as far as its weight is nothing."""
    p = replace(shape, dtype=dtype, softmax_scale=1.0)
    q, k, v = make_inputs(p)
    key = p.seqlen_k - 1 if comes_last else 0
    q[...], k[...] = 0, 0
    q[..., 0], k[:, key, :, 0] = 1, score
    v[:, key] = 0
    for config in configs_for(p):
        clean, _ = run(p, [q, k, v], config)
        spoilt = v.copy()
        spoilt[:, key, :, 0] = np.inf
        o, lse = run(p, [q, k, spoilt], config)
        column = o[..., 0].astype(np.float32)
        np.testing.assert_array_equal(o[..., 1:], clean[..., 1:])
        assert np.isfinite(lse).all()
        if score >= -86:
            assert (column == np.inf).all(), config
        else:
            assert (np.isnan(column) | (column == np.inf)).all(), config


# ---- Subnormal numbers ----

LEAST_NORMAL = 2.0**-126


def flushes_subnormals(p: AttentionProblem, config: str) -> bool:
    """Says whether products of bf16 count subnormal numbers as 0 (docs/numerics.md)."""
    return rounds_p(p, config)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seqlen_k", [1, 2, 3, 64, 150])
@pytest.mark.parametrize("seqlen_q", [1, 12, 13, 25, 40])
def test_subnormal_values_are_kept_or_count_as_zero(
    seqlen_q: int, seqlen_k: int, dtype: str
) -> None:
    """Keys weigh alike. Where subnormal numbers count as 0, no more than the least normal is
    lost."""
    p = AttentionProblem(1, seqlen_q, seqlen_k, 1, 1, 32, dtype)
    q, k, v = make_inputs(p)
    q[...] = 0
    v *= np.array(1e-39, v.dtype)
    expected = v.astype(np.float64).mean(axis=1, keepdims=True)
    for config in configs_for(p):
        o, _ = run(p, [q, k, v], config)
        error = np.abs(o.astype(np.float64) - expected).max()
        if flushes_subnormals(p, config):
            assert error <= LEAST_NORMAL, config
        else:  # half a unit of the result's last place, and one of fp32 for each key
            unit = 2.0**-133 if dtype == "bfloat16" else 2.0**-149
            assert error <= 0.51 * unit + seqlen_k * 2.0**-149, config
            assert seqlen_k > 1 or error == 0, config
