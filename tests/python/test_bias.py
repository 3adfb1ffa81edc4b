"""ALiBi and masks on every kernel here that serves them.

A mask joins scores in every way that a task reads its keys: few rows in place, packed keys shared
or private, copies of pages, split keys that merge.
"""

from __future__ import annotations

import math
from dataclasses import replace

import flashattn
import numpy as np
import pytest
import task_problems
from bias_cases import KINDS, BiasCase, packed
from flashattn import oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import E4M3, dtype_of
from pairwise import combined
from problems import (
    AttentionProblem,
    check,
    configs_for,
    make_inputs,
    rounds_p,
    run,
)
from strategies import biases, random_problems
from task_problems import (
    DTYPES,
    assert_pages_change_no_bit,
    assert_threads_change_no_bit,
    every_dtype,
    typed,
)

INF, NAN = float("inf"), float("nan")

PROBLEMS = {
    **task_problems.PROBLEMS,
    "sinks": AttentionProblem(1, 40, 90, 2, 1, 32, sinks=(0.5, -1.0)),
}
BIASES = {
    "slopes": BiasCase(slopes=1),
    "slopes_of_sequences": BiasCase(slopes=2),
    **{kind: BiasCase(kind=kind) for kind in KINDS},
    "both": BiasCase(slopes=1, kind="float32"),
    "strided": BiasCase(kind="float16", strided=True),
    "first_keys": BiasCase(kind="bfloat16", n_keys=37),
    "last_keys": BiasCase(kind="float32", n_keys=61, from_end=True),
    "last_bits": BiasCase(slopes=2, kind="bits", n_keys=33, from_end=True),
    "repeated": BiasCase(kind="float32", repeats="bhq"),
    "repeated_heads": BiasCase(kind="bits", repeats="h"),
    "factors": BiasCase(kind="float16", repeats="bh", factors=True),
    "factors_and_slopes": BiasCase(slopes=2, kind="float32", factors=True),
    "factors_of_bfloat16": BiasCase(kind="bfloat16", repeats="h", factors=True),
    "factors_apart": BiasCase(kind="float16", strided=True, factors=True),
    "factors_of_last_keys": BiasCase(kind="float32", n_keys=61, from_end=True, factors=True),
}


def problem(name: str, dtype: str, bias: BiasCase | None) -> AttentionProblem:
    p = PROBLEMS[name]
    if bias is not None and bias.n_keys is not None and not bias.from_end:
        # a mask of fewer keys than a padded k has is refused
        bias = replace(bias, n_keys=bias.n_keys if p.cu_seqlens_k else None)
    return typed(replace(p, bias=bias), dtype)


def agrees(p: AttentionProblem) -> None:
    configs = configs_for(p)
    assert configs
    for config in [None, *configs]:
        if p.averages_rounding or not rounds_p(p, config):
            check(p, config=config, roundings=4 if rounds_p(p, config) else 1)


@combined(name=PROBLEMS, bias=BIASES, dtype=DTYPES)
def test_agrees_with_the_oracle(name: str, bias: str, dtype: str) -> None:
    agrees(problem(name, dtype, BIASES[bias]))


@settings(random_problems, max_examples=150)
@given(data=st.data())
def test_random_problems(data: st.DataObject) -> None:
    draw = data.draw
    name, dtype = draw(st.sampled_from(list(PROBLEMS))), draw(st.sampled_from(DTYPES))
    seqlen_q = draw(st.integers(1, 140))
    p = PROBLEMS[name]
    if p.cu_seqlens_q is None and p.seqused_q is None:
        p = replace(p, seqlen_q=seqlen_q, seqlen_k=draw(st.integers(1, 700)))
    bias = draw(biases(p.seqlen_k))
    p = replace(p, dtype=dtype, bias=bias, seed=bias.seed, causal=draw(st.booleans()))
    if dtype == E4M3:
        p = replace(p, q_dtype="bfloat16", o_dtype="float32")
    config = draw(st.sampled_from(configs_for(p)))
    if p.averages_rounding or not rounds_p(p, config):
        check(p, config=config, roundings=4)


# ---- What it means ----


def test_masks_of_one_meaning_give_the_same_bits() -> None:
    """Bool, bits and numbers of 0 and -infinity hide the same keys."""
    for name in ("few_rows", "many_rows", "split", "ragged"):
        p = PROBLEMS[name]
        bias = BiasCase(kind="bool")
        mask = bias.options(p)["attn_mask"]
        p = replace(p, bias=bias)
        numbers = np.where(mask, 0, -INF).astype(np.float32)
        q, k, v = make_inputs(p)
        options = {**p.call_options(), "return_lse": True}
        for config in configs_for(p):
            call = flashattn.flash_attn_varlen_func if p.cu_seqlens_q else _padded
            results = [
                call(q, k, v, config=config, **{**options, **given})
                for given in (
                    {"attn_mask": mask},
                    {"attn_mask": numbers},
                    {"attn_mask": None, "mask_bits": packed(mask)},
                    {"attn_mask": None, "mask_bits": packed(mask).view(np.int32)},
                )
            ]
            for o, lse in results[1:]:
                assert o.tobytes() == results[0][0].tobytes(), config
                assert lse.tobytes() == results[0][1].tobytes(), config


def _padded(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: object) -> object:
    unused = ("max_seqlen_q", "max_seqlen_k", "cu_seqlens_q", "cu_seqlens_k")
    given = {name: x for name, x in options.items() if name not in unused}
    return flashattn.flash_attn_func(q, k, v, **given)


@every_dtype
def test_hidden_keys_do_not_matter(dtype: str) -> None:
    """K holds NaN where no query sees it, as far as the mask goes."""
    for name in ("one_row", "few_rows", "many_rows", "split"):
        p = problem(name, dtype, BiasCase(kind="bits", repeats="bhq", empty_rows=0))
        mask = p.bias.options(p)["attn_mask"].reshape(-1)
        q, k, v = make_inputs(p)
        poisoned = k.copy()
        poisoned[:, ~mask] = NAN
        for kind in ("bits", "float32"):
            p = replace(p, bias=replace(p.bias, kind=kind))
            for config in configs_for(p):
                found, expected = run(p, [q, poisoned, v], config), run(p, [q, k, v], config)
                for a, b in zip(found, expected):
                    assert a.tobytes() == b.tobytes(), config


@combined(
    name=("one_row", "few_rows", "many_rows", "split", "split_rows", "sinks"),
    kind=("float32", "bits", "bool"),
    dtype=DTYPES,
)
def test_rows_that_see_no_key_are_empty(name: str, kind: str, dtype: str) -> None:
    p = problem(name, dtype, BiasCase(kind=kind, hidden=1.0))
    for config in configs_for(p):
        o, lse = run(p, config=config)
        assert (o.astype(np.float32) == 0).all() and (lse == -INF).all(), config


@pytest.mark.parametrize("value", [NAN, INF])
def test_numbers_that_are_none_reach_their_rows(value: float) -> None:
    """And no others. A number beyond the causal order does not count."""
    for name in ("few_rows", "one_block", "split_rows"):
        p = replace(PROBLEMS[name], bias=BiasCase(kind="float32", hidden=0, empty_rows=0))
        q, k, v = make_inputs(p)
        mask = np.zeros((1, 1, p.seqlen_q, p.seqlen_k), np.float32)
        mask[..., p.seqlen_q // 2, 5] = value  # seen
        mask[..., 0, p.seqlen_k - p.seqlen_q + 1 :] = value  # not seen by query 0
        for config in configs_for(p):
            o = flashattn.flash_attn_func(q, k, v, causal=True, attn_mask=mask, config=config)
            plain = flashattn.flash_attn_func(q, k, v, causal=True, config=config)
            rest = np.arange(p.seqlen_q) != p.seqlen_q // 2
            assert np.isnan(o[:, ~rest]).all(), config
            np.testing.assert_allclose(o[:, rest], plain[:, rest], rtol=1e-5, atol=1e-6)


def test_the_least_finite_number_leaves_a_mean() -> None:
    """Masks of that number are common. Where all keys have it, none is hidden."""
    p = AttentionProblem(1, 20, 70, 2, 2, 32)
    q, k, v = make_inputs(p)
    q[...] = 0
    for dtype in ("float32", "float16"):
        mask = np.full((20, 70), np.finfo(dtype).min, dtype)
        o = flashattn.flash_attn_func(q, k, v, attn_mask=mask)
        expected = np.broadcast_to(v.mean(1, keepdims=True), o.shape)
        np.testing.assert_allclose(o, expected, rtol=1e-4, atol=1e-5)


# ---- Factors of heads ----


def _of_factors(name: str) -> tuple[AttentionProblem, np.ndarray]:
    """Returns a problem and a mask for all its heads, in which the keys take turns: they have a
    number, 0 or -infinity, or, the last ones, no column."""
    p = replace(PROBLEMS[name], causal=False)
    mask = np.random.default_rng(3).standard_normal((p.seqlen_q, p.seqlen_k)).astype(np.float32)
    mask[:, 1::3], mask[:, 2::3] = 0, -INF
    return p, mask


@pytest.mark.parametrize("name", ["one_row", "few_rows", "many_rows", "split"])
def test_factors_multiply_a_mask_of_their_heads(name: str) -> None:
    """A mask of all heads with factors is one of each head, to the bit; factors of 1 are none."""
    p, mask = _of_factors(name)
    inputs, ones = make_inputs(p), np.ones(p.n_heads, np.float32)
    factors = np.array([0.5, -2, 0.0, 4] * p.n_heads, np.float32)[: p.n_heads]
    with np.errstate(invalid="ignore"):
        of_heads = np.where(mask == -INF, mask, factors[:, None, None] * mask)
    for config in configs_for(p):
        results = [
            flashattn.flash_attn_func(*inputs, config=config, return_lse=True, **given)
            for given in (
                {"attn_mask": mask, "mask_head_scale": factors},
                {"attn_mask": of_heads},
                {"attn_mask": mask, "mask_head_scale": ones},
                {"attn_mask": mask},
            )
        ]
        for found, same in (results[:2], results[2:]):
            assert [x.tobytes() for x in found] == [x.tobytes() for x in same], config


@pytest.mark.parametrize("factor", [0.0, -1.5, NAN, INF, -INF])
def test_any_factor_hides_what_is_hidden_and_adds_no_zero(factor: float) -> None:
    """Also in blocks that have nothing but one of them, and beside the mask."""
    for name in ("one_row", "few_rows", "many_rows", "split"):
        p, mask = _of_factors(name)
        q, k, v = make_inputs(p)
        factors = np.ones(p.n_heads, np.float32)
        factors[-1] = factor
        unmultiplied = mask.copy()
        unmultiplied[:, ::3] = 0
        unmultiplied[:, : p.seqlen_k // 3] = -INF
        k_nan = k.copy()
        k_nan[:, np.isinf(unmultiplied[0])] = NAN
        for config in configs_for(p):
            found, plain = (
                flashattn.flash_attn_func(
                    q, k_nan, v, attn_mask=unmultiplied, config=config, **given
                )
                for given in ({"mask_head_scale": factors}, {})
            )
            assert found.tobytes() == plain.tobytes() and np.isfinite(found).all(), config
            given = {"attn_mask": mask, "mask_head_scale": factors, "config": config}
            o, lse = flashattn.flash_attn_func(q, k, v, return_lse=True, **given)
            assert np.isfinite(o[:, :, :-1]).all(), config
            assert np.isnan(o[:, :, -1]).all() != math.isfinite(factor), config
            assert np.isnan(lse[:, -1]).all() != math.isfinite(factor), config


def test_columns_beside_a_mask_have_no_factor() -> None:
    p = AttentionProblem(1, 20, 70, 2, 2, 32, seqused_k=(70,))
    q, k, v = make_inputs(p)
    mask = np.zeros((20, 30), np.float32)
    factors = np.full(2, NAN, np.float32)
    for config in configs_for(p):
        given = {"seqused_k": np.array([70], np.int32), "mask_keys": 30, "config": config}
        found = flashattn.flash_attn_func(q, k, v, attn_mask=mask, mask_head_scale=factors, **given)
        plain = flashattn.flash_attn_func(q, k, v, attn_mask=mask, **given)
        assert found.tobytes() == plain.tobytes() and np.isfinite(found).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_product_hides_no_key(dtype: str) -> None:
    """Where all keys have the least number, O is a mean of all, whatever it is multiplied by."""
    p = AttentionProblem(1, 40, 70, 2, 2, 32)
    q, k, v = make_inputs(p)
    q[...] = 0
    mask = np.full((40, 70), -65504, np.float32).astype(dtype_of(dtype))
    mask[:, 35:] = 2 * mask[:, 35:] if dtype != "float16" else mask[:, 35:]
    factors = np.array([3e38, INF], np.float32)
    for config in configs_for(p):
        o = flashattn.flash_attn_func(
            q, k, v, attn_mask=mask, mask_head_scale=factors, config=config
        )
        expected = np.broadcast_to(v.mean(1, keepdims=True), o.shape)
        np.testing.assert_allclose(o, expected, rtol=1e-4, atol=1e-5, err_msg=config)


def test_alibi_is_a_mask_of_distances_with_factors() -> None:
    for name in ("few_rows", "many_rows", "split"):
        p = PROBLEMS[name]
        q, k, v = make_inputs(p)
        places = np.arange(p.seqlen_q)[:, None] + p.seqlen_k - p.seqlen_q
        distances = -np.abs(places - np.arange(p.seqlen_k)).astype(np.float32)
        slopes = (2.0 ** -np.arange(1, p.n_heads + 1)).astype(np.float32)
        alibi = flashattn.flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes)
        found = flashattn.flash_attn_func(
            q, k, v, causal=True, attn_mask=distances, mask_head_scale=slopes
        )
        np.testing.assert_allclose(found, alibi, rtol=1e-4, atol=1e-5)


# ---- Trees, documents, prefixes ----


@pytest.mark.parametrize("n_drafts, prefix", [(1, 100), (7, 1000), (64, 3000), (33, 31)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tree_of_drafts_is_its_branches(n_drafts: int, prefix: int, dtype: str) -> None:
    rng = np.random.default_rng(n_drafts)
    parents = [-1] + [int(rng.integers(-1, i)) for i in range(1, n_drafts)]
    sees = np.eye(n_drafts, dtype=bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            sees[i] |= sees[parent]
    p = AttentionProblem(1, n_drafts, prefix + n_drafts, 4, 2, 64, dtype)
    q, k, v = make_inputs(p)
    for mask in ({"attn_mask": sees}, {"mask_bits": packed(sees)}):
        o, lse = flashattn.flash_attn_func(q, k, v, mask_keys=n_drafts, return_lse=True, **mask)
        for i in range(n_drafts):
            branch = [*range(prefix), *(prefix + np.flatnonzero(sees[i]))]
            expected, expected_lse = oracle.attention(q[:, i : i + 1], k[:, branch], v[:, branch])
            tolerance = 2e-5 if dtype == "float32" else 2e-2
            np.testing.assert_allclose(
                o[:, i].astype(np.float64), expected[:, 0], rtol=tolerance, atol=tolerance
            )
            np.testing.assert_allclose(lse[..., i], expected_lse[..., 0], rtol=1e-5, atol=1e-4)


def test_trees_of_a_ragged_batch_in_use() -> None:
    """Lengths differ, and the mask counts from each one's end."""
    n, used = 9, (9, 40, 133)
    p = AttentionProblem(3, n, 150, 4, 2, 64, seqused_k=used)
    p = replace(p, bias=BiasCase(kind="bits", n_keys=n, from_end=True, empty_rows=0))
    agrees(p)
    agrees(replace(p, cu_seqlens_q=(0, 9, 10, 19)))


@pytest.mark.parametrize("n_heads", [1, 4])
def test_documents_and_prefixes(n_heads: int) -> None:
    rng = np.random.default_rng(0)
    n = 300
    p = AttentionProblem(1, n, n, n_heads, 1, 64)
    q, k, v = make_inputs(p)
    documents = np.sort(rng.integers(0, 5, n))
    same = documents[:, None] == documents[None, :]
    o = flashattn.flash_attn_func(q, k, v, attn_mask=same, causal=True)
    for document in range(5):
        at = documents == document
        expected = flashattn.flash_attn_func(q[:, at], k[:, at], v[:, at], causal=True)
        np.testing.assert_allclose(o[:, at], expected, rtol=1e-4, atol=1e-5)
    prefix = np.tril(np.ones((n, n), bool))
    prefix[:, :100] = True
    o = flashattn.flash_attn_func(q, k, v, attn_mask=prefix)
    both = flashattn.flash_attn_func(q[:, :100], k[:, :100], v[:, :100])
    causal = flashattn.flash_attn_func(q[:, 100:], k, v, causal=True)
    np.testing.assert_allclose(o, np.concatenate((both, causal), 1), rtol=1e-4, atol=1e-5)


# ---- Bits that must not change ----


@pytest.mark.parametrize("name", ["one_row", "few_rows", "one_block", "split"])
@every_dtype
def test_pages_do_not_change_bits(name: str, dtype: str) -> None:
    """Pages whose table holds more keys than k had: masks of the first keys have any width."""
    for bias in (BiasCase(slopes=1, kind="float16"), BiasCase(kind="bits")):
        assert_pages_change_no_bit(problem(name, dtype, bias))


@pytest.mark.parametrize("name", ["split", "split_rows", "many_rows"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_do_not_change_bits(name: str, dtype: str) -> None:
    assert_threads_change_no_bit(problem(name, dtype, BiasCase(slopes=1, kind="float32")))


def test_what_joins_nothing_changes_little() -> None:
    for name in PROBLEMS:
        p = PROBLEMS[name]
        plain = run(p)
        zeros = replace(p, bias=BiasCase(kind="float32", repeats="bhq", hidden=0, empty_rows=0))
        q, k, v = make_inputs(p)
        mask = np.zeros((1,) * (2 if p.cu_seqlens_q else 3) + (p.seqlen_k,), np.float32)
        options = {**zeros.call_options(), "attn_mask": mask, "return_lse": True}
        call = flashattn.flash_attn_varlen_func if p.cu_seqlens_q else _padded
        o, lse = call(q, k, v, **options)
        seen = np.isfinite(plain[1])
        np.testing.assert_allclose(lse[seen], plain[1][seen], rtol=1e-5, atol=1e-5)


def test_a_ragged_batch_of_single_queries_has_a_row_for_each() -> None:
    rng = np.random.default_rng(0)
    q = rng.standard_normal((3, 1, 2, 16)).astype(np.float32)
    k, v = rng.standard_normal((2, 3, 9, 2, 16)).astype(np.float32)
    mask = rng.standard_normal((3, 9)).astype(np.float32)
    expected = flashattn.flash_attn_func(q, k, v, attn_mask=mask.reshape(3, 1, 1, 9))
    ends = np.arange(4, dtype=np.int32)
    found = flashattn.flash_attn_varlen_func(
        q[:, 0], k, v, attn_mask=mask, cu_seqlens_q=ends, max_seqlen_q=1
    )
    assert (found == expected[:, 0]).all()
