"""Values that gradients must stand: NaN and infinity in hidden and in visible places, rows that see
no key, sinks of any size, huge scores, results beyond fp16, and sums over many keys."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gradient_problems import GradientProblem, check, compare_run, configs_for, make, random_d_o
from memory import DTYPES
from problems import AttentionProblem, make_inputs

every_type = pytest.mark.parametrize("dtype", DTYPES)


def _every_kernel(g: GradientProblem, inputs=None, d_o=None) -> None:
    for configs in configs_for(g):
        run = make(g, inputs, configs, d_o)
        compare_run(g, run, run.launch(), inputs, configs)


# ---- NaN and infinity ----


@every_type
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_in_use_matters_nowhere(value: float, dtype: str) -> None:
    """Rows beyond lengths, and padding at the left, are in none of the tensors looked at."""
    p = AttentionProblem(2, 20, 30, 4, 2, 16, dtype, seqused_q=(13, 20), seqused_k=(30, 21),
                         leftpad_k=(5, 0), causal=True)  # fmt: skip
    g = GradientProblem(p, has_d_lse=True)
    q, k, v = make_inputs(p)
    d_o = random_d_o(g)
    expected = make(g, [q, k, v]).launch()
    q, k, v = q.copy(), k.copy(), v.copy()
    for x in (q, d_o):
        x[0, 13:] = value
    for x in (k, v):
        x[0, :5] = x[1, 21:] = value
    for configs in configs_for(g):
        found = make(g, [q, k, v], configs, d_o).launch()
        plain = make(g, configs=configs).launch()
        assert all(x.tobytes() == y.tobytes() for x, y in zip(found[:3], plain[:3]))
    assert all(np.isfinite(x.astype(np.float32)).all() for x in expected[:3])


@every_type
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("masks", [{"causal": True}, {"window_size": (3, 2)},
                                   {"causal": True, "attention_chunk": 8}], ids=str)  # fmt: skip
def test_keys_that_nobody_sees(masks: dict, value: float, dtype: str) -> None:
    """The first queries see none, and the last keys are seen by none: their K, V, Q and dO are in
    the same tiles as others."""
    more_queries = AttentionProblem(1, 40, 24, 2, 1, 16, dtype, **masks)
    q, k, v = make_inputs(more_queries)
    d_o = random_d_o(GradientProblem(more_queries))
    unseen = 10  # queries, that stand before the first key by six and more
    q, d_o = q.copy(), d_o.copy()
    q[:, :unseen] = d_o[:, :unseen] = value
    _every_kernel(GradientProblem(more_queries), [q, k, v], d_o)
    wide = AttentionProblem(1, 10, 60, 2, 1, 16, dtype, window_size=(3, 2))
    q, k, v = make_inputs(wide)
    k, v = k.copy(), v.copy()
    k[:, :40] = v[:, :40] = value
    _every_kernel(GradientProblem(wide), [q, k, v])


@every_type
@pytest.mark.parametrize("name", ["q", "k", "v", "d_o"])
def test_a_visible_nan_reaches_what_depends_on_it(name: str, dtype: str) -> None:
    """Rows that do not see it stay finite."""
    p = AttentionProblem(1, 40, 40, 2, 1, 16, dtype, causal=True)
    g = GradientProblem(p)
    tensors = dict(zip("qkv", make_inputs(p))) | {"d_o": random_d_o(g)}
    tensors[name] = tensors[name].copy()
    tensors[name][0, 21, 0, 3] = np.nan
    d_o = tensors.pop("d_o")
    _every_kernel(g, list(tensors.values()), d_o)
    dq = make(g, list(tensors.values()), d_o=d_o).launch().dq[0, :, 0].astype(np.float32)
    assert np.isfinite(dq[:21]).all() and np.isnan(dq[21]).all()


def test_a_nan_in_the_gradient_of_lse() -> None:
    p = AttentionProblem(1, 8, 6, 1, 1, 4, causal=True)
    run = make(GradientProblem(p, has_d_lse=True))
    run.d_lse[...] = np.nan  # rows 0 and 1 see no key
    found = run.launch()
    assert np.isfinite(found.dq[0, :2]).all() and np.isnan(found.dq[0, 2:]).all()
    run.d_lse[0, 0, 2:] = 0
    assert all(np.isfinite(x).all() for x in run.launch()[:3])


@every_type
def test_rows_that_see_no_key(dtype: str) -> None:
    """Their O is 0 and their LSE -infinity, whatever dO and dLSE are."""
    p = AttentionProblem(1, 40, 17, 4, 2, 16, dtype, causal=True, sinks=(0.0, 1.0, np.inf, -np.inf))
    g = GradientProblem(p, has_d_lse=True)
    d_o = random_d_o(g)
    d_o[0, :23] = np.inf
    run = make(g, d_o=d_o)
    run.d_lse[0, :, :23] = -np.inf
    found = run.launch()
    assert (found.dq[0, :23] == 0).all()
    assert all(np.isfinite(x.astype(np.float32)).all() for x in found)


# ---- Sinks ----


@every_type
def test_sinks_of_any_size(dtype: str) -> None:
    sinks = (np.inf, -np.inf, 300.0, -300.0, 88.0, 3e38, -3e38, 0.0)
    p = AttentionProblem(1, 20, 30, 8, 2, 16, dtype, sinks=sinks)
    for has_d_lse in (False, True):
        _every_kernel(GradientProblem(p, has_d_lse))


def test_a_heavy_sink_leaves_dlse_finite() -> None:
    """Up to a weight of e^64 times the keys' the gradient of LSE counts in full."""
    p = AttentionProblem(1, 1, 1, 4, 4, 1, sinks=(60.0, 80.0, 1000.0, np.inf))
    run = make(GradientProblem(p, has_d_lse=True), [np.full((1, 1, 4, 1), 1, np.float32)] * 3)
    run.d_lse[...] = 3
    found = run.launch()
    assert found.dk[0, 0, 0, 0] == pytest.approx(3, rel=1e-5)
    assert np.isfinite(found.dk).all() and (found.dk[0, 0, 2:] == 0).all()
    assert np.isfinite(found.d_sinks).all()


def test_a_sink_of_nan_spoils_its_head_alone() -> None:
    p = AttentionProblem(1, 5, 6, 2, 2, 4, sinks=(np.nan, 1.0))
    found = make(GradientProblem(p)).launch()
    assert np.isnan(found.dq[0, :, 0]).all() and np.isfinite(found.dq[0, :, 1]).all()
    assert np.isnan(found.d_sinks).tolist() == [True, False]


# ---- Large numbers ----


@every_type
def test_huge_scores(dtype: str) -> None:
    """Scores in the thousands: P is 0 or 1, and fp32 scores have lost digits."""
    p = AttentionProblem(1, 40, 50, 2, 1, 16, dtype, causal=True, softmax_scale=300.0)
    for g in (GradientProblem(p), GradientProblem(replace(p, softcap=20.0))):
        for configs in configs_for(g):
            found = make(g, configs=configs).launch()
            assert all(np.isfinite(x.astype(np.float32)).all() for x in found[:3])
    _every_kernel(GradientProblem(replace(p, softmax_scale=8.0)))


def test_gradients_beyond_fp16_are_infinite() -> None:
    """dV of a key is the sum of dO of all queries; of fp32 it is finite."""
    p = AttentionProblem(1, 8, 1, 1, 1, 4, "float16")
    d_o = np.zeros(p.o_shape, np.float16)
    d_o[..., 0], d_o[..., 1], d_o[..., 2] = 20000, -20000, 8000
    for configs in configs_for(GradientProblem(p)):
        found = make(GradientProblem(p), None, configs, d_o).launch()
        assert found.dv.ravel()[:3].tolist() == [np.inf, -np.inf, 64000]
        wide = make(GradientProblem(p, wide=(True,) * 3), None, configs, d_o).launch()
        assert wide.dv.ravel()[:3] == pytest.approx([160000, -160000, 64000])


def test_subnormal_gradients_of_fp16() -> None:
    p = AttentionProblem(1, 12, 20, 2, 1, 16, "float16")
    _every_kernel(replace(GradientProblem(p), d_o_scale=1e-5))


# ---- Many keys ----


@pytest.mark.parametrize("values", ["normal", "mean"])
def test_sums_over_many_keys(values: str) -> None:
    p = AttentionProblem(1, 2, 20000, 1, 1, 8)
    inputs = make_inputs(p)
    if values == "mean":
        inputs[1], inputs[2] = inputs[1] + np.float32(1), inputs[2] + np.float32(1)
    _every_kernel(GradientProblem(p, has_d_lse=True), inputs)


def test_sums_over_many_queries() -> None:
    p = AttentionProblem(1, 20000, 3, 1, 1, 8)
    q, k, v = make_inputs(p)
    d_o = random_d_o(GradientProblem(p)) + np.float32(1)
    _every_kernel(GradientProblem(p, has_d_lse=True), [q, k, v], d_o)


def test_check_of_this_file_fails_where_a_gradient_is_wrong() -> None:
    g = GradientProblem(AttentionProblem(1, 8, 9, 2, 1, 4))
    found = check(g)
    run = make(g)
    with pytest.raises(AssertionError, match="dk: max error"):
        compare_run(g, run, found._replace(dk=-found.dk))
