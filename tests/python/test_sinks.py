"""Attention sinks on every kernel here: one more logit per query head, without a value.

The tests of random problems have sinks too. These cover each way that rows end: few rows in place,
packed keys, decode, split keys that merge, partial results that the caller merges.
"""

from __future__ import annotations

from dataclasses import replace

import flashattn
import ml_dtypes
import numpy as np
import pytest
from direct import CombineCall, ForwardCall
from flashattn import oracle
from flashattn._library import last_error
from foreign_arrays import DLPackArray
from hypothesis import given
from hypothesis import strategies as st
from problems import (
    AttentionProblem,
    check,
    check_every_kernel,
    configs_for,
    make_inputs,
    rounds_p,
    run,
)
from strategies import random_problems
from task_problems import (
    DTYPES,
    PROBLEMS,
    assert_pages_change_no_bit,
    assert_threads_change_no_bit,
    every_dtype,
    typed,
)

INF, NAN = float("inf"), float("nan")

every_problem = pytest.mark.parametrize("name", PROBLEMS)


def every_problem_in_a_type(first: int) -> pytest.MarkDecorator:
    """Takes the types in turn, from DTYPES[first] on. Tests that begin with different ones cover
    every problem in every type."""
    turns = [(name, DTYPES[(first + i) % len(DTYPES)]) for i, name in enumerate(PROBLEMS)]
    return pytest.mark.parametrize("name, dtype", turns)


def with_sinks(p: AttentionProblem, *sinks: float) -> AttentionProblem:
    """Returns the problem with these sinks, over and over; without any they are random."""
    if not sinks:
        sinks = tuple(np.random.default_rng(p.n_heads).uniform(-3, 7, p.n_heads))
    return replace(
        p, sinks=tuple(float(np.float32(sinks[h % len(sinks)])) for h in range(p.n_heads))
    )


def problem(name: str, dtype: str) -> AttentionProblem:
    return typed(PROBLEMS[name], dtype)


# ---- Values ----


@every_problem
@every_dtype
def test_agrees_with_the_oracle(name: str, dtype: str) -> None:
    p = with_sinks(problem(name, dtype))
    for config in [None, *configs_for(p)]:
        check(p, config=config, roundings=4 if rounds_p(p, config) else 1)


@pytest.mark.parametrize("name", ["one_row", "single_rows", "many_rows", "scale", "split"])
def test_is_one_more_key_whose_value_is_zero(name: str) -> None:
    """It takes no oracle: keys are extended by one that has the sink as its score. Queries and keys
    get a column for it, which is 0 in all other keys."""
    p = replace(PROBLEMS[name], n_heads_kv=PROBLEMS[name].n_heads)
    p = with_sinks(replace(p, softmax_scale=p.softmax_scale or p.d_head**-0.5))
    q, k, v = make_inputs(p)
    ones = np.ones((*q.shape[:-1], 1), np.float32)
    column = np.zeros((*k.shape[:-1], 1), np.float32)
    last = np.zeros((p.batch, 1, p.n_heads, p.d_head + 1), np.float32)
    last[..., -1] = np.array(p.sinks, np.float32) / p.softmax_scale
    more = replace(p, sinks=None, seqlen_k=p.seqlen_k + 1, d_head=p.d_head + 1)
    inputs = [np.concatenate((q, ones), -1)]
    inputs += [np.concatenate((np.concatenate((k, column), -1), last), 1)]
    inputs += [np.concatenate((np.concatenate((v, column), -1), np.zeros_like(last)), 1)]
    for config in configs_for(p):
        o, lse = run(p, [q, k, v], config)
        expected, with_sink = run(more, inputs, config)
        np.testing.assert_allclose(o, expected[..., :-1], rtol=1e-4, atol=3e-6, err_msg=config)
        sinks = np.array(p.sinks)[:, None]
        np.testing.assert_allclose(np.logaddexp(lse, sinks), with_sink, rtol=1e-5, atol=1e-5)


@every_problem_in_a_type(0)
def test_lse_is_without_them(name: str, dtype: str) -> None:
    p = problem(name, dtype)
    for config in configs_for(p):
        lse = run(with_sinks(p), config=config)[1]
        assert lse.tobytes() == run(p, config=config)[1].tobytes(), config


@every_problem_in_a_type(1)
def test_without_weight_they_change_no_bit(name: str, dtype: str) -> None:
    p = problem(name, dtype)
    for config in configs_for(p):
        o = run(with_sinks(p, -INF, -1e30, -400.0), config=config)[0]
        assert o.tobytes() == run(p, config=config)[0].tobytes(), config


@every_problem_in_a_type(2)
def test_above_all_scores_they_take_all_weight(name: str, dtype: str) -> None:
    p = replace(problem(name, dtype), seqused_q=None)
    for config in configs_for(p):
        o, lse = run(with_sinks(p, INF, 1e30, 400.0), config=config)
        assert (o.astype(np.float32) == 0).all(), config
        assert lse.tobytes() == run(p, config=config)[1].tobytes(), config


@every_problem_in_a_type(3)
def test_nan_reaches_the_rows_that_see_a_key(name: str, dtype: str) -> None:
    """Only those of its head. The other heads have the bits that they have without it."""
    p = replace(problem(name, dtype), seqused_q=None)
    for config in configs_for(p):
        o = run(with_sinks(p, NAN, 1.0), config=config)[0]
        other, lse = run(with_sinks(p, 1.0), config=config)
        sees = np.moveaxis(lse, -2, -1)[..., None] > -INF
        poisoned = sees & (np.arange(p.n_heads) % 2 == 0)[:, None]
        expected = np.where(poisoned, NAN, other.astype(np.float32))
        np.testing.assert_array_equal(o.astype(np.float32), expected, config)


@every_dtype
@pytest.mark.parametrize("shape", ["few", "many", "split"])
def test_rows_without_keys_stay_empty(shape: str, dtype: str) -> None:
    """Queries before the first key see nothing, and neither does a sequence of no keys."""
    seqlen_q, seqlen_k = {"few": (4, 2), "many": (150, 90), "split": (9, 5000)}[shape]
    used = (seqlen_k, 0) if shape != "split" else (5, 0)
    p = replace(problem("one_row", dtype), seqlen_q=seqlen_q, seqlen_k=seqlen_k, causal=True)
    p = with_sinks(replace(p, seqused_k=used), -INF, INF, NAN, 300.0)
    for config in configs_for(p):
        o, lse = run(p, config=config)
        empty = np.moveaxis(lse, 1, 2) == -INF
        assert empty[1].all() and empty[0, : seqlen_q - used[0]].all(), config
        assert (o[empty].astype(np.float32) == 0).all(), config


def test_scores_of_nothing_but_minus_infinity_count_as_no_key() -> None:
    for name in ("one_row", "many_rows", "split"):
        p = with_sinks(PROBLEMS[name], 1.0)
        q, k, v = make_inputs(p)
        q[...] = np.abs(q)
        k[...] = -INF
        for config in configs_for(p):
            o, lse = run(p, [q, k, v], config)
            assert (o == 0).all() and (lse == -INF).all(), config


@pytest.mark.parametrize("values", ["wide", "one_large_key", "growing", "soaring"])
@pytest.mark.parametrize("name", ["few_rows", "many_rows", "split", "split_rows"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_beside_scores_whose_maximum_grows(name: str, values: str, dtype: str) -> None:
    """Weights are relative to a maximum that is not the last one, and sinks are near it."""
    p = replace(PROBLEMS[name], dtype=dtype, values=values)
    lse = oracle.attention(*make_inputs(p), **p.options())[1]
    p = with_sinks(p, *(float(x) for x in np.median(lse, axis=(0, 2))))
    for config in configs_for(p):
        if p.averages_rounding or not rounds_p(p, config):
            check(p, config=config, roundings=4 if rounds_p(p, config) else 1)


@pytest.mark.parametrize("name", ["one_row", "few_rows", "one_block", "split"])
@every_dtype
def test_pages_do_not_change_bits(name: str, dtype: str) -> None:
    assert_pages_change_no_bit(with_sinks(problem(name, dtype)))


@pytest.mark.parametrize("name", ["split", "split_rows", "many_rows"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_do_not_change_bits(name: str, dtype: str) -> None:
    assert_threads_change_no_bit(with_sinks(problem(name, dtype)))


def test_many_heads() -> None:
    """Heads of several K/V heads are computed together, each with a sink of its own."""
    for n_heads, n_heads_kv in ((64, 8), (33, 11), (16, 16), (5, 1)):
        for dtype in ("float32", "bfloat16"):
            check_every_kernel(
                with_sinks(AttentionProblem(2, 1, 400, n_heads, n_heads_kv, 64, dtype))
            )


# ---- Merging ----


def _parts(p: AttentionProblem, bounds: list[int]) -> tuple[np.ndarray, np.ndarray]:
    q, k, v = make_inputs(p)
    results = [
        flashattn.flash_attn_func(q, k[:, a:b], v[:, a:b], return_lse=True)
        for a, b in zip(bounds, bounds[1:])
    ]
    return tuple(np.stack(x) for x in zip(*results))


@pytest.mark.parametrize("name", ["one_row", "many_rows", "split"])
def test_partial_results_merge_to_the_whole(name: str) -> None:
    p = with_sinks(PROBLEMS[name])
    parts = _parts(p, [0, 1, 100, 100, p.seqlen_k])
    whole, whole_lse = run(p)
    sinks = np.array(p.sinks, np.float32)
    o, lse = flashattn.flash_combine(*parts, sinks=sinks, return_lse=True)
    np.testing.assert_allclose(o, whole, rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(lse, whole_lse, rtol=1e-5, atol=1e-5)
    assert lse.tobytes() == flashattn.flash_combine(*parts, return_lse=True)[1].tobytes()
    plain = flashattn.flash_combine(*parts)
    assert np.abs(o - plain).max() > 1e-3  # what a sink that is dropped would give


@random_problems
@given(
    shape=st.tuples(
        st.integers(0, 9), st.integers(0, 3), st.integers(0, 20), st.integers(1, 5),
        st.integers(1, 70),
    ),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    empty=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_random_partial_results(shape: tuple, dtype: str, empty: float, seed: int) -> None:
    n, batch, seqlen, heads, _ = shape
    rng = np.random.default_rng(seed)
    o = rng.standard_normal(shape).astype(np.float32)
    lse = (5 * rng.standard_normal((n, batch, heads, seqlen))).astype(np.float32)
    lse[rng.random(lse.shape) < empty] = -INF
    sinks = (6 * rng.standard_normal(heads)).astype(np.float32)
    sinks[rng.random(heads) < 0.2] = rng.choice([-INF, INF, 300, -300])
    merged, merged_lse = flashattn.flash_combine(o, lse, sinks=sinks, dtype=dtype, return_lse=True)
    expected, expected_lse = oracle.combine(o, lse, sinks)
    tolerance = {"float32": 1e-5, "float16": 6e-4, "bfloat16": 5e-3}[dtype]
    error = np.abs(merged.astype(np.float64) - expected)
    assert (error <= tolerance * np.maximum(1, np.abs(expected))).all()
    finite = np.isfinite(expected_lse)
    assert ((merged_lse == -INF) == ~finite).all()
    np.testing.assert_allclose(merged_lse[finite], expected_lse[finite], rtol=1e-5, atol=1e-5)


def test_extreme_sinks_of_partial_results() -> None:
    rng = np.random.default_rng(0)
    o, lse = rng.standard_normal((2, 1, 3, 6, 8), np.float32), np.zeros((2, 1, 6, 3), np.float32)
    lse[..., 1] = -INF  # a row without keys
    sinks = np.array([-INF, -1e30, INF, 1e30, NAN, 0], np.float32)
    merged = flashattn.flash_combine(o, lse, sinks=sinks)
    plain = flashattn.flash_combine(o, lse)
    assert (merged[:, 1] == 0).all()
    for row in (0, 2):
        assert merged[0, row, :2].tobytes() == plain[0, row, :2].tobytes()
        assert (merged[0, row, 2:4] == 0).all() and np.isnan(merged[0, row, 4]).all()
        np.testing.assert_allclose(merged[0, row, 5], plain[0, row, 5] * 2 / 3, rtol=1e-6)


def test_no_partial_results() -> None:
    o, lse = np.zeros((0, 1, 3, 2, 8), np.float32), np.zeros((0, 1, 2, 3), np.float32)
    merged = flashattn.flash_combine(o, lse, sinks=np.array([INF, NAN], np.float32))
    assert (merged == 0).all()


# ---- Arrays ----


def _small() -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 5, 4, 8)).astype(np.float32) for _ in range(3))
    return [q, k, v], np.array([0.5, -1.0, 2.0, 0.25], np.float32)


@pytest.mark.parametrize("dtype", ["float16", "float64", ml_dtypes.bfloat16], ids=str)
def test_other_types_are_converted(dtype: object) -> None:
    inputs, sinks = _small()
    expected = flashattn.flash_attn_func(*inputs, sinks=sinks)
    found = flashattn.flash_attn_func(*inputs, sinks=sinks.astype(dtype))
    assert found.tobytes() == expected.tobytes()
    o, lse = flashattn.flash_attn_func(*inputs, return_lse=True)
    merged = [
        flashattn.flash_combine(o[None], lse[None], sinks=x) for x in (sinks, sinks.astype(dtype))
    ]
    assert merged[0].tobytes() == merged[1].tobytes()
    np.testing.assert_allclose(merged[0], expected, rtol=1e-5, atol=1e-6)


def test_strides_and_foreign_arrays() -> None:
    inputs, sinks = _small()
    expected = flashattn.flash_attn_func(*inputs, sinks=sinks)
    spread = np.full(8, NAN, np.float32)
    spread[::2] = sinks
    for array in (spread[::2], DLPackArray(sinks)):
        assert flashattn.flash_attn_func(*inputs, sinks=array).tobytes() == expected.tobytes()
    huge = np.array([1e300, -1e300, 0, 0])  # infinite in float32
    o = flashattn.flash_attn_func(*inputs, sinks=huge)
    assert (o[..., 0, :] == 0).all()
    assert o[..., 1, :].tobytes() == flashattn.flash_attn_func(*inputs)[..., 1, :].tobytes()


@pytest.mark.parametrize(
    "sinks, message",
    [
        (np.zeros(3, np.float32), r"sinks has shape \(3,\), not \(4,\): one per query head"),
        (np.zeros((1, 4), np.float32), r"sinks has shape \(1, 4\), not \(4,\)"),
        (np.zeros(4, np.int32), "sinks is int32: not one of float32, float16, bfloat16, float64"),
        (
            DLPackArray(np.zeros(4, np.float16)),
            "sinks is float16 with a stride of 1 elements, and a DLPack",
        ),
    ],
    ids=["number", "axes", "type", "foreign"],
)
def test_refusals(sinks: object, message: str) -> None:
    inputs, _ = _small()
    with pytest.raises(ValueError, match=message):
        flashattn.flash_attn_func(*inputs, sinks=sinks)
    with pytest.raises(ValueError, match=message):
        o, lse = flashattn.flash_attn_func(*inputs, return_lse=True)
        flashattn.flash_combine(o[None], lse[None], sinks=sinks)
    with pytest.raises(TypeError, match="sinks is of type list"):
        flashattn.flash_attn_func(*inputs, sinks=[0.0] * 4)


def test_outputs_that_overlap_them_are_refused() -> None:
    for call in (ForwardCall(), CombineCall()):
        for output in (call.o, call.lse):
            call.args.sinks = output.array.ctypes.data
            assert call.run() == 100 and "overlaps sinks" in last_error()
            call.args.sinks = output.array.ctypes.data - 12  # ends in it
            assert call.run() == 100 and "overlaps sinks" in last_error()
        call.assert_untouched()


def test_sizes_and_support_do_not_look_at_them() -> None:
    call = ForwardCall()
    size = call.needed_workspace()
    call.args.sinks = 4  # no address
    assert call.needed_workspace() == size


def test_varlen_takes_them() -> None:
    (q, k, v), sinks = _small()
    expected = flashattn.flash_attn_func(q, k, v, sinks=sinks)
    ends = {"cu_seqlens_q": [0, 5], "cu_seqlens_k": [0, 5], "max_seqlen_q": 5, "max_seqlen_k": 5}
    o = flashattn.flash_attn_varlen_func(q[0], k[0], v[0], sinks=sinks, **ends)
    assert o.tobytes() == expected.tobytes()
