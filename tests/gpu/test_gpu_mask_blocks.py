"""Masks of blocks (FLASH_MASK_BLOCKS): every CUDA row that serves masks agrees with the float64
oracle, and those of SM80, SM80_DECODE and SM90 leave the hidden blocks out."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
import torch
from bias_cases import BiasCase
from block_cases import BlockCase
from flashattn import Arch, Feature
from gpu_problems import (
    TYPES,
    check,
    check_every_row,
    check_every_row_in_pages,
    configs_for,
    device_inputs,
    device_options,
    device_shapes,
    host_inputs,
    run,
    runnable_rows,
    same_bits,
    typed,
    types_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from paging import PagedProblem
from problems import AttentionProblem
from strategies import random_problems

PROBLEMS = {
    "row": AttentionProblem(2, 1, 900, 4, 2, 64),
    "few_rows": AttentionProblem(1, 3, 700, 6, 2, 64, causal=True),
    "split": AttentionProblem(1, 2, 2100, 4, 2, 64, causal=True),
    "full": AttentionProblem(2, 300, 900, 4, 2, 64),
    "causal": AttentionProblem(1, 700, 1300, 4, 1, 64, causal=True),
    "window": AttentionProblem(1, 300, 1700, 2, 2, 64, window_size=(900, 0)),
    "sinks": AttentionProblem(1, 140, 900, 2, 1, 64, softcap=2.0, sinks=(0.5, -1.0)),
    "ragged": AttentionProblem(
        4, 300, 900, 4, 2, 64, causal=True,
        cu_seqlens_q=(0, 200, 200, 203, 503), cu_seqlens_k=(0, 840, 860, 1400, 2300),
    ),
    "in_use": AttentionProblem(
        3, 140, 800, 4, 2, 64, causal=True, seqused_q=(140, 3, 0), seqused_k=(0, 1, 777)
    ),
}  # fmt: skip
PROBLEMS["any_order"] = replace(PROBLEMS["ragged"], causal=False)
PROBLEMS["any_order_in_use"] = replace(PROBLEMS["in_use"], causal=False, seqlen_q=300)
MASKS = {
    "whole_tiles": BlockCase(128, 128),
    "many_tiles": BlockCase(256, 384, repeats="b"),
    "parts_of_tiles": BlockCase(64, 64, repeats="b"),
    "across_tiles": BlockCase(50, 72, repeats="h"),
    "small": BlockCase(1, 7, repeats="bh"),
    "large": BlockCase(1000, 256, repeats="q"),
    "last_keys": BlockCase(64, 48, n_keys=301, from_end=True),
    "few_shown": BlockCase(128, 64, shown=0.08, more_rows=2),
    "nothing": BlockCase(64, 64, shown=0.0),
    "everything": BlockCase(64, 64, shown=1.0),
}
every_type = pytest.mark.parametrize(("dtype", "d_head"), TYPES)
every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


@every_type
@every_mask
@pytest.mark.parametrize("name", PROBLEMS)
def test_row_agrees_with_the_oracle(name: str, mask: BlockCase, dtype: str, d_head: int) -> None:
    check_every_row(replace(typed(PROBLEMS[name], dtype, d_head), bias=mask))


@every_mask
@pytest.mark.parametrize("name", ["row", "full", "ragged"])
def test_heads_of_512_elements(name: str, mask: BlockCase) -> None:
    """These are computed by SM90_WIDE and SM80_WIDE."""
    check_every_row(replace(typed(PROBLEMS[name], "bfloat16", 512), bias=mask))


@every_type
@pytest.mark.parametrize("mask", ["whole_tiles", "across_tiles", "last_keys"])
@pytest.mark.parametrize("page_size", [1, 16, 19])
def test_keys_in_pages(page_size: int, mask: str, dtype: str, d_head: int) -> None:
    if d_head == 96:
        pytest.skip("pages have no rows of this d_head with bias")
    for seqlen_q in (1, 5, 170):
        p = AttentionProblem(3, seqlen_q, 900, 8, 2, d_head, causal=True, seqused_k=(900, 65, 790))
        p = replace(typed(p, dtype, d_head), bias=MASKS[mask])
        check_every_row_in_pages(PagedProblem(p, page_size))


@settings(random_problems, max_examples=60)
@given(data=st.data())
def test_random_blocks(data: st.DataObject) -> None:
    draw = data.draw
    sizes = st.one_of(st.sampled_from([1, 32, 64, 128]), st.integers(1, 300))
    n_keys = draw(st.one_of(st.none(), st.integers(1, 1000)))
    mask = BlockCase(
        draw(sizes),
        draw(sizes),
        shown=draw(st.sampled_from((0.05, 0.4, 0.9))),
        repeats="".join(draw(st.sets(st.sampled_from("bhq")))),
        n_keys=n_keys,
        from_end=n_keys is not None,
        seed=draw(st.integers(0, 2**31)),
    )
    p = AttentionProblem(
        2, draw(st.integers(1, 400)), draw(st.integers(1, 2500)), 4, 2,
        causal=draw(st.booleans()), bias=mask, seed=mask.seed,
    )  # fmt: skip
    p = typed(p, *draw(st.sampled_from(TYPES)))
    configs = configs_for(p)
    if configs:
        check(p, draw(st.sampled_from(configs)))


def test_every_family_with_masks_serves_blocks() -> None:
    """Those for a V that is the first columns of K have tests of their own (test_gpu_mla.py)."""
    served = {
        config.arch
        for name in ("few_rows", "full", "ragged")
        for d_head in (128, 512)
        for config in configs_for(
            replace(typed(PROBLEMS[name], "bfloat16", d_head), bias=MASKS["whole_tiles"])
        )
    }
    others = {Arch.SM80_MLA, Arch.SM90_MLA}
    with_masks = {row.config.arch for row in runnable_rows() if row.config.features & Feature.BIAS}
    assert served == with_masks - others


# ---- What is hidden and what is left out ----


def _leaving_out(p: AttentionProblem) -> list[flashattn.Config]:
    """Returns the rows that leave hidden blocks out."""
    return [c for c in configs_for(p) if c.arch in (Arch.SM80, Arch.SM80_DECODE, Arch.SM90)]


@every_type
def test_rows_that_see_nothing(dtype: str, d_head: int) -> None:
    for name in ("row", "full", "ragged"):
        p = replace(typed(PROBLEMS[name], dtype, d_head), bias=MASKS["nothing"])
        for config in configs_for(p):
            o, lse = run(p, config=config)
            assert not o.astype(np.float32).any() and (lse == -np.inf).all()


@every_type
@pytest.mark.parametrize("seqlen_k", [3584, 3700])
@pytest.mark.parametrize("seqlen_q", [1, 5, 150])
def test_hidden_blocks_are_not_multiplied(
    seqlen_q: int, seqlen_k: int, dtype: str, d_head: int
) -> None:
    """K and V are NaN in blocks that no query sees: the product of V with a weight of 0 would be
    NaN too."""
    p = typed(AttentionProblem(1, seqlen_q, seqlen_k, 2, 1), dtype, d_head)
    p = replace(p, bias=BlockCase(1000, 256, repeats="hq", shown=0.5, seed=3))
    hidden = torch.from_numpy(~p.bias.options(p)["attn_mask"][0, 0, 0]).cuda()
    assert 0 < hidden.sum() < seqlen_k
    q, k, v = device_inputs(p)
    configs = _leaving_out(p)
    assert configs
    for config in configs:
        expected = run(p, [q, k, v], config)
        spoiled = [x.clone() for x in (k, v)]
        for x in spoiled:
            x.view(torch.uint8)[:, hidden] = 0xFF
        assert same_bits(run(p, [q, *spoiled], config), expected), config


@pytest.mark.parametrize("mask", ["whole_tiles", "across_tiles", "small"])
def test_blocks_have_the_bits_of_the_same_mask_of_bits(mask: str) -> None:
    for name in ("row", "few_rows", "full", "causal", "ragged"):
        p = replace(typed(PROBLEMS[name], "bfloat16", 128), bias=MASKS[mask])
        tensors = device_inputs(p)
        dense = torch.from_numpy(np.array(p.options()["attn_mask"])).cuda()
        for config in configs_for(p):
            if config in counting_rows():
                continue  # take no other mask
            results = [run(p, tensors, config), run(p, tensors, config, attn_mask=dense)]
            assert same_bits(*results), config


# ---- Rows whose consumers only count the blocks that are shown ----


def counting_rows() -> list[flashattn.Config]:
    return [
        row.config
        for row in runnable_rows()
        if row.config.features & Feature.BIAS and row.config.fixed_reference
    ]


def _counted(config: flashattn.Config, mask: BlockCase, **changes: object) -> AttentionProblem:
    """Returns a problem of the row."""
    p = AttentionProblem(2, 300, 1300, 4, 2, config.d_head, bias=mask, **types_of(config))
    return replace(p, **changes)


@every_mask
def test_counting_rows_serve_whole_tiles_alone(mask: BlockCase) -> None:
    rows = counting_rows()
    whole = mask.block_q % 128 == 0 and mask.block_k % 128 == 0 and not mask.from_end
    assert rows
    for config in rows:
        p = _counted(config, mask)
        assert (config in configs_for(p)) == whole
        for other in (
            replace(p, causal=True),
            replace(p, window_size=(500, -1)),
            replace(p, softcap=3.0),
            replace(p, seqlen_k=512),  # few blocks
            replace(p, bias=BiasCase(kind="bits")),
            replace(p, bias=BiasCase(slopes=1)),
        ):
            assert config not in configs_for(other)
        assert config in configs_for(replace(p, bias=None))


def _selected(p: AttentionProblem) -> flashattn.Config:
    return flashattn.select_config(*device_shapes(p), **device_options(p)).config


def test_the_selected_row_counts_blocks() -> None:
    for config in counting_rows():
        p = _counted(config, MASKS["whole_tiles"])
        assert _selected(p) == config
        for mask in ("parts_of_tiles", "last_keys"):
            assert _selected(replace(p, bias=MASKS[mask])) not in counting_rows()


@pytest.mark.parametrize("mask", ["whole_tiles", "many_tiles", "nothing_of_tiles", "all_tiles"])
def test_counting_rows_agree_with_the_oracle(mask: str) -> None:
    masks = {
        "nothing_of_tiles": BlockCase(128, 128, shown=0.0),
        "all_tiles": BlockCase(128, 128, shown=1.0),
        **MASKS,
    }
    for config in counting_rows():
        p = _counted(config, masks[mask])
        for changes in (
            {},
            {"seqlen_q": 1},
            {"sinks": (0.5, -1.0, 0.0, 2.0)},
            {"seqlen_k": 1280},
            {"seqused_q": (300, 129), "seqused_k": (1, 1153)},
            {"batch": 3, "cu_seqlens_q": (0, 1, 1, 300), "cu_seqlens_k": (0, 900, 1000, 2300)},
            {"batch": 1, "n_heads": 160, "n_heads_kv": 80, "seqlen_q": 140},
        ):
            check(replace(p, **changes), config)


def test_counted_tiles_whose_reference_fails_are_done_again() -> None:
    """Scores of the first keys, which are visited last, outgrow any reference of the others."""
    for config in counting_rows():
        p = _counted(config, BlockCase(128, 128, shown=0.5))
        q, k, v = host_inputs(p)
        k[:, :200] = (k[:, :200].astype(np.float32) * 60).astype(k.dtype)
        check(p, config, [q, k, v])
