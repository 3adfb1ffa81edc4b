"""ALiBi and masks on every CUDA row that serves them, against the float64 oracle."""

from __future__ import annotations

import math
from dataclasses import replace

import flashattn
import numpy as np
import pytest
import torch
from bias_cases import BiasCase
from bias_graphs import check_replays
from flashattn import Feature
from gpu_problems import (
    MLA_FAMILIES,
    check,
    check_every_row,
    check_in_pages,
    configs_for,
    configs_for_pages,
    device_inputs,
    device_options,
    run,
    runnable_rows,
    same_bits,
)
from memory import E4M3
from paging import PagedProblem
from problems import AttentionProblem

PROBLEMS = {
    "row": AttentionProblem(2, 1, 300, 4, 2, 64),
    "few_rows": AttentionProblem(1, 3, 200, 6, 2, 64, causal=True),
    "split": AttentionProblem(1, 2, 2100, 4, 2, 64, causal=True),
    "block": AttentionProblem(1, 40, 130, 4, 1, 64, causal=True),
    "full": AttentionProblem(2, 130, 200, 4, 2, 64),
    # Blocks of 128 keys at both sides of the diagonal, and across it.
    "blocks": AttentionProblem(1, 200, 520, 2, 1, 64),
    "whole_blocks": AttentionProblem(1, 200, 700, 2, 1, 64, causal=True),
    "window": AttentionProblem(1, 150, 171, 2, 2, 64, window_size=(33, 0)),
    "softcap": AttentionProblem(1, 70, 90, 2, 1, 64, softcap=2.0, causal=True),
    "sinks": AttentionProblem(1, 40, 90, 2, 1, 64, sinks=(0.5, -1.0)),
    "ragged": AttentionProblem(
        3, 90, 150, 4, 2, 64, causal=True, cu_seqlens_q=(0, 1, 1, 91), cu_seqlens_k=(0, 40, 60, 210)
    ),
    "in_use": AttentionProblem(
        3, 40, 100, 4, 2, 64, causal=True, seqused_q=(40, 3, 0), seqused_k=(0, 1, 77)
    ),
}  # fmt: skip
BIASES = {
    "slopes": BiasCase(slopes=1),
    "slopes_of_sequences": BiasCase(slopes=2),
    "float32": BiasCase(kind="float32"),
    "float16": BiasCase(kind="float16"),
    "strided": BiasCase(kind="float16", strided=True),
    "bfloat16": BiasCase(slopes=1, kind="bfloat16"),
    "bool": BiasCase(kind="bool"),
    "bits": BiasCase(kind="bits"),
    "last_keys": BiasCase(kind="float32", n_keys=61, from_end=True),
    "last_bits": BiasCase(slopes=2, kind="bits", n_keys=33, from_end=True),
    "repeated": BiasCase(kind="float32", repeats="bhq"),
    "repeated_heads": BiasCase(kind="bits", repeats="h"),
    "factors": BiasCase(kind="float16", repeats="bh", factors=True, seed=1),
    "factors_and_slopes": BiasCase(slopes=2, kind="float32", factors=True),
    "factors_of_bfloat16": BiasCase(kind="bfloat16", repeats="h", factors=True),
    "factors_apart": BiasCase(kind="float16", strided=True, factors=True),
    "factors_of_last_keys": BiasCase(kind="float32", n_keys=61, from_end=True, factors=True),
}
TYPES = (("float16", 64), ("bfloat16", 128), ("bfloat16", 256), ("float16", 96), (E4M3, 64))
every_type = pytest.mark.parametrize(("dtype", "d_head"), TYPES)


def _typed(p: AttentionProblem, dtype: str, d_head: int) -> AttentionProblem:
    if dtype != E4M3:
        return replace(p, dtype=dtype, d_head=d_head)
    types = {"dtype": E4M3, "q_dtype": "bfloat16", "o_dtype": "float32"}
    return replace(p, d_head=d_head, k_descale=0.5, v_descale=-1.5, **types)


@every_type
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_row_agrees_with_the_oracle(name: str, bias: BiasCase, dtype: str, d_head: int) -> None:
    check_every_row(replace(_typed(PROBLEMS[name], dtype, d_head), bias=bias))


def test_every_row_with_bias_was_tested() -> None:
    tested = {
        config
        for name in ("few_rows", "block", "ragged")
        for dtype, d_head in (*TYPES, ("float16", 32), ("float16", 192), (E4M3, 128), (E4M3, 256))
        for kind in ({dtype} if dtype == E4M3 else {"float16", "bfloat16"})
        for config in configs_for(
            replace(_typed(PROBLEMS[name], kind, d_head), bias=BIASES["slopes"])
        )
    }
    rows = {
        row.config
        for row in runnable_rows()
        if row.config.features & Feature.BIAS
        and row.config.arch not in MLA_FAMILIES
        and not row.config.fixed_reference  # test_gpu_mask_blocks.py
    }
    missing = {row for row in rows - tested if not row.features & Feature.PAGED}
    assert rows and not missing


@every_type
@pytest.mark.parametrize("bias", ["slopes_of_sequences", "bfloat16", "last_bits", "factors"])
@pytest.mark.parametrize("page_size", [1, 16, 19])
def test_keys_in_pages(page_size: int, bias: str, dtype: str, d_head: int) -> None:
    if d_head == 96:
        pytest.skip("pages have no rows of this d_head with bias")
    for seqlen_q in (1, 5, 70):
        p = AttentionProblem(3, seqlen_q, 300, 8, 2, d_head, causal=True, seqused_k=(300, 65, 190))
        q = PagedProblem(replace(_typed(p, dtype, d_head), bias=BIASES[bias]), page_size)
        configs = configs_for_pages(q)
        assert configs
        for config in configs:
            check_in_pages(q, config)


def test_a_long_tree_is_each_of_its_branches() -> None:
    """Each draft sees the prefix and its ancestors, as if it were the last of its branch alone."""
    parents = [-1, 0, 0, 1, 1, 2, 3, 5]
    n, prefix = len(parents), 900
    sees = np.zeros((1, 1, n, n), bool)
    for i, parent in enumerate(parents):
        sees[0, 0, i, i] = True
        while parent >= 0:
            sees[0, 0, i, parent] = True
            parent = parents[parent]
    torch.manual_seed(0)
    shapes = ((n, 8), (prefix + n, 2), (prefix + n, 2))
    q, k, v = (torch.randn(1, s, h, 128, device="cuda").bfloat16() for s, h in shapes)
    mask = torch.from_numpy(sees).cuda()
    o = flashattn.flash_attn_func(q, k, v, attn_mask=mask, mask_keys=n)
    for i in range(n):
        keys = [*range(prefix), *(prefix + j for j in range(n) if sees[0, 0, i, j])]
        alone = flashattn.flash_attn_func(q[:, i : i + 1], k[:, keys], v[:, keys])
        torch.testing.assert_close(o[:, i : i + 1], alone, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("name", ["few_rows", "split", "full", "ragged"])
def test_a_graph_replays_with_other_slopes_and_masks(name: str) -> None:
    p = replace(_typed(PROBLEMS[name], "bfloat16", 64), bias=BIASES["bfloat16"])
    tensors, options = device_inputs(p), device_options(p)
    o = torch.empty_like(tensors[0])
    workspace = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    check_replays(tensors, {**options, "workspace": workspace}, o)


@every_type
def test_rows_with_bias_serve_calls_without_it(dtype: str, d_head: int) -> None:
    for name in ("split", "block"):
        p = _typed(PROBLEMS[name], dtype, d_head)
        configs = [c for c in configs_for(p) if c.features & Feature.BIAS]
        assert configs
        for config in configs:
            check(p, config)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("kind", ["bits", "float16", "bfloat16", "float32"])
def test_hidden_scores_do_not_matter(kind: str, poison: float) -> None:
    """K holds what is no number where no query sees it, as far as the mask goes; V is finite."""
    for name in ("few_rows", "blocks", "whole_blocks"):
        p = _typed(PROBLEMS[name], "bfloat16", 128)
        p = replace(p, bias=BiasCase(kind=kind, repeats="bhq", hidden=0.1, empty_rows=0))
        mask = np.asarray(p.bias.options(p)["attn_mask"]).reshape(-1).astype(np.float32)
        hidden = torch.from_numpy(mask <= (0 if kind == "bits" else -math.inf)).cuda()
        q, k, v = device_inputs(p)
        poisoned = k.clone()
        poisoned[:, hidden] = poison
        for config in configs_for(p):
            assert same_bits(run(p, [q, poisoned, v], config), run(p, [q, k, v], config)), config


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_none_reach_their_rows(value: float) -> None:
    """And no others. A number beyond the causal order does not count."""
    for name in ("few_rows", "block", "whole_blocks"):
        p = _typed(PROBLEMS[name], "bfloat16", 128)
        mask = torch.zeros(1, 1, p.seqlen_q, p.seqlen_k, device="cuda")
        mask[..., p.seqlen_q // 2, 5] = value  # seen
        mask[..., 0, p.seqlen_k - p.seqlen_q + 1 :] = value  # not seen by query 0
        rest = torch.arange(p.seqlen_q) != p.seqlen_q // 2
        q, k, v = device_inputs(p)
        for config in configs_for(replace(p, bias=BIASES["float32"])):
            o = flashattn.flash_attn_func(q, k, v, causal=True, attn_mask=mask, config=config)
            plain = flashattn.flash_attn_func(q, k, v, causal=True)
            assert torch.isnan(o[:, ~rest]).all(), config
            torch.testing.assert_close(o[:, rest], plain[:, rest], atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("kind", ["bits", "bfloat16"])
def test_rows_that_see_no_key_are_empty(kind: str) -> None:
    for name in ("few_rows", "split", "blocks", "sinks", "ragged"):
        p = _typed(PROBLEMS[name], "bfloat16", 128)
        p = replace(p, bias=BiasCase(kind=kind, hidden=1.0))
        for config in configs_for(p):
            o, lse = run(p, config=config)
            assert (o.astype(np.float32) == 0).all() and (lse == -math.inf).all(), config


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_least_finite_number_leaves_a_mean(dtype: torch.dtype) -> None:
    """Masks of that number are common. Where all keys of a row have it, none is hidden."""
    p = _typed(PROBLEMS["blocks"], "bfloat16", 64)
    q, k, v = device_inputs(p)
    shape = (1, 1, p.seqlen_q, p.seqlen_k)
    mask = torch.full(shape, torch.finfo(dtype).min, dtype=dtype, device="cuda")
    expected = v.float().mean(1, keepdim=True)
    expected = expected.repeat_interleave(p.n_heads // p.n_heads_kv, 2).expand(q.shape)
    for config in configs_for(replace(p, bias=BIASES["float32"])):
        o = flashattn.flash_attn_func(q * 0, k, v, attn_mask=mask, config=config)
        torch.testing.assert_close(o.float(), expected, atol=2e-3, rtol=2e-2)


# ---- Factors of heads ----


def _of_factors(name: str, dtype: torch.dtype) -> tuple[AttentionProblem, torch.Tensor]:
    """Returns a problem and a mask for all its heads: whole blocks of keys have numbers, zeros,
    -infinity, or these by turns."""
    p = replace(_typed(PROBLEMS[name], "bfloat16", 128), causal=False)
    torch.manual_seed(3)
    mask = torch.randn(p.seqlen_q, p.seqlen_k).to(dtype)
    at, end = torch.arange(p.seqlen_k), p.seqlen_k // 128 * 128
    mask[:, (at % 3 == 1) | ((at // 128 % 3 == 1) & (at < end))] = 0
    mask[:, (at % 3 == 2) | ((at // 128 % 3 == 2) & (at < end))] = -math.inf
    mask[:, 0] = 1.5
    return p, mask.cuda()


FACTORS_OF = ("few_rows", "split", "blocks", "full")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FACTORS_OF)
def test_factors_of_one_are_none(name: str, dtype: torch.dtype) -> None:
    """Sums may be rounded elsewhere: other code serves masks with factors."""
    p, mask = _of_factors(name, dtype)
    q, k, v = device_inputs(p)
    ones = torch.ones(p.n_heads, device="cuda")
    for config in configs_for(replace(p, bias=BIASES["float32"])):
        given = {"attn_mask": mask, "config": config, "return_lse": True}
        plain = flashattn.flash_attn_func(q, k, v, **given)
        found = flashattn.flash_attn_func(q, k, v, mask_head_scale=ones, **given)
        torch.testing.assert_close(found[0], plain[0], atol=1e-3, rtol=1e-2, msg=str(config))
        torch.testing.assert_close(found[1], plain[1], atol=1e-5, rtol=1e-6, msg=str(config))


@pytest.mark.parametrize("factor", [0.0, -1.5, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FACTORS_OF)
def test_any_factor_hides_what_is_hidden_and_adds_no_zero(
    name: str, dtype: torch.dtype, factor: float
) -> None:
    """Also in blocks that have nothing else, beside the mask, and where it covers a few keys."""
    p, mask = _of_factors(name, dtype)
    q, k, v = device_inputs(p)
    factors = torch.ones(p.n_heads, device="cuda")
    factors[-1] = factor
    zeros = torch.where(mask == -math.inf, mask, 0)
    for config in configs_for(replace(p, bias=BIASES["float32"])):
        given = {"config": config, "return_lse": True}
        for part, n_keys in ((zeros, None), (zeros[:, -37:].contiguous(), 37)):
            given["mask_keys"] = n_keys
            plain = flashattn.flash_attn_func(q, k, v, attn_mask=part, **given)
            found = flashattn.flash_attn_func(
                q, k, v, attn_mask=part, mask_head_scale=factors, **given
            )
            for a, b in zip(plain, found):
                torch.testing.assert_close(a, b, equal_nan=False, atol=1e-5, rtol=1e-2)
        given["mask_keys"] = None
        o, lse = flashattn.flash_attn_func(
            q, k, v, attn_mask=mask, mask_head_scale=factors, **given
        )
        assert o[:, :, :-1].isfinite().all() and lse[:, :-1].isfinite().all(), config
        assert bool(o[:, :, -1].isnan().all()) != math.isfinite(factor), config
        assert bool(lse[:, -1].isnan().all()) != math.isfinite(factor), config


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_product_hides_no_key(dtype: torch.dtype) -> None:
    p = _typed(PROBLEMS["blocks"], "bfloat16", 64)
    q, k, v = device_inputs(p)
    mask = torch.full((p.seqlen_q, p.seqlen_k), -65504.0, device="cuda").to(dtype)
    factors = torch.tensor([3e38, math.inf], device="cuda")[: p.n_heads]
    expected = v.float().mean(1, keepdim=True)
    expected = expected.repeat_interleave(p.n_heads // p.n_heads_kv, 2).expand(q.shape)
    for config in configs_for(replace(p, bias=BIASES["float32"])):
        o = flashattn.flash_attn_func(
            q * 0, k, v, attn_mask=mask, mask_head_scale=factors, config=config
        )
        torch.testing.assert_close(o.float(), expected, atol=2e-3, rtol=2e-2)


@pytest.mark.parametrize("name", ["row", "few_rows", "split", "full", "ragged"])
def test_selection_takes_rows_with_bias_for_calls_with_it_alone(name: str) -> None:
    """On every device the family is that of a call without it."""
    p = _typed(PROBLEMS[name], "bfloat16", 128)
    plain, biased = (
        flashattn.select_config(*device_inputs(of), **device_options(of)).config
        for of in (p, replace(p, bias=BIASES["slopes"]))
    )
    assert not plain.features & Feature.BIAS
    assert biased.features & Feature.BIAS
    assert biased.arch == plain.arch


def test_bits_do_not_depend_on_the_batch() -> None:
    p = replace(_typed(PROBLEMS["in_use"], "bfloat16", 64), bias=BIASES["slopes"])
    assert same_bits(run(p, batch_invariant=True), run(p, batch_invariant=True))
