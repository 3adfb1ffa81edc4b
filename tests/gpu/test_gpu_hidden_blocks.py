"""Masks that hide whole blocks of keys, and show others as they are: every CUDA row that serves
masks agrees with the float64 oracle, and those of SM80 and SM90 leave the hidden blocks out."""

from __future__ import annotations

import math
from dataclasses import replace

import flashattn
import numpy as np
import pytest
import torch
from bias_cases import BiasCase
from flashattn import Arch
from gpu_problems import (
    check,
    check_every_row,
    check_in_pages,
    configs_for,
    configs_for_pages,
    device_inputs,
    device_options,
    run,
    same_bits,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import E4M3
from paging import PagedProblem
from problems import AttentionProblem
from strategies import random_problems

PROBLEMS = {
    "full": AttentionProblem(1, 300, 1300, 2, 1, 64),
    "causal": AttentionProblem(2, 700, 700, 2, 2, 64, causal=True),
    "window": AttentionProblem(1, 300, 1700, 2, 2, 64, window_size=(900, 0)),
    "sinks": AttentionProblem(1, 140, 900, 2, 1, 64, softcap=2.0, sinks=(0.5, -1.0)),
    "ragged": AttentionProblem(
        3, 300, 900, 4, 2, 64, causal=True,
        cu_seqlens_q=(0, 200, 200, 500), cu_seqlens_k=(0, 840, 860, 1760),
    ),
    "in_use": AttentionProblem(
        3, 140, 800, 4, 2, 64, causal=True, seqused_q=(140, 3, 0), seqused_k=(0, 1, 777)
    ),
}  # fmt: skip
TYPES = (("float16", 64), ("bfloat16", 128), ("bfloat16", 256), ("float16", 96), (E4M3, 64))
SQUARES = {"hidden": 0.0, "empty_rows": 0.0, "hidden_blocks": 0.5, "shown_blocks": 0.3}
BIASES = {
    "float32": BiasCase(kind="float32", **SQUARES),
    "float16": BiasCase(kind="float16", strided=True, **SQUARES),
    "bfloat16": BiasCase(slopes=1, kind="bfloat16", **SQUARES),
    "bits": BiasCase(kind="bits", **SQUARES),
    "holes": BiasCase(kind="bits", **{**SQUARES, "hidden": 0.4}),
    "last_keys": BiasCase(kind="float16", n_keys=301, from_end=True, **SQUARES),
    "last_bits": BiasCase(kind="bits", n_keys=530, from_end=True, **SQUARES),
    "repeated": BiasCase(kind="float32", repeats="bhq", **SQUARES),
    "factors": BiasCase(kind="float16", repeats="h", factors=True, **SQUARES),
    "nothing": BiasCase(kind="bits", **{**SQUARES, "hidden_blocks": 1.0, "shown_blocks": 0.0}),
}
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


@every_type
@pytest.mark.parametrize("bias", ["bfloat16", "bits", "last_bits"])
@pytest.mark.parametrize("page_size", [16, 19])
def test_keys_in_pages(page_size: int, bias: str, dtype: str, d_head: int) -> None:
    if d_head == 96:
        pytest.skip("pages have no rows of this d_head with bias")
    p = AttentionProblem(3, 170, 900, 4, 2, d_head, causal=True, seqused_k=(900, 65, 790))
    q = PagedProblem(replace(_typed(p, dtype, d_head), bias=BIASES[bias]), page_size)
    configs = configs_for_pages(q)
    assert configs
    for config in configs:
        check_in_pages(q, config)


@settings(random_problems, max_examples=60)
@given(data=st.data())
def test_random_squares(data: st.DataObject) -> None:
    draw = data.draw
    kind = draw(st.sampled_from(("float32", "float16", "bfloat16", "bits")))
    hidden = draw(st.sampled_from((0.2, 0.7, 0.95)))
    bias = BiasCase(
        slopes=draw(st.integers(0, 1)),
        kind=kind,
        repeats="".join(draw(st.sets(st.sampled_from("bh")))),
        hidden=draw(st.sampled_from((0.0, 0.3))),
        empty_rows=draw(st.sampled_from((0.0, 0.5))),
        hidden_blocks=hidden,
        shown_blocks=draw(st.sampled_from((0.0, 1 - hidden))),
        seed=draw(st.integers(0, 2**31)),
    )
    if draw(st.booleans()):
        bias = replace(bias, from_end=True, n_keys=draw(st.integers(1, 1000)))
    p = AttentionProblem(
        2, draw(st.integers(1, 400)), draw(st.integers(1, 2500)), 2, 1,
        causal=draw(st.booleans()), bias=bias, seed=bias.seed,
    )  # fmt: skip
    p = _typed(p, *draw(st.sampled_from(TYPES)))
    configs = configs_for(p)
    if configs:
        check(p, draw(st.sampled_from(configs)))


# ---- Blocks are left out ----


def _hidden_keys(seqlen_k: int) -> torch.Tensor:
    """Returns which keys a mask hides from every query: whole blocks of any size at both ends, a
    few in the middle, and many."""
    hidden = torch.zeros(seqlen_k, dtype=torch.bool, device="cuda")
    for begin, end in ((0, 256), (768, 896), (1152, 2816), (3456, seqlen_k)):
        hidden[begin:end] = True
    return hidden


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8)


@every_type
@pytest.mark.parametrize("kind", ["bits", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("seqlen_k", [3584, 3700])
def test_hidden_blocks_are_not_multiplied(
    seqlen_k: int, kind: str, dtype: str, d_head: int
) -> None:
    """V is NaN in hidden blocks: its product with a weight of 0 would be NaN too."""
    p = _typed(AttentionProblem(1, 150, seqlen_k, 2, 1), dtype, d_head)
    q, k, v = device_inputs(p)
    hidden = _hidden_keys(seqlen_k)
    shown = [q, *(_bytes(x)[:, ~hidden].view(x.dtype) for x in (k, v))]
    for x in (k, v):
        _bytes(x)[:, hidden] = 0xFF
    mask = (~hidden).expand(1, 1, p.seqlen_q, seqlen_k)
    if kind != "bits":
        numbers = torch.zeros(mask.shape, dtype=getattr(torch, kind), device="cuda")
        mask = numbers.masked_fill_(~mask, -math.inf)
    alone = replace(p, seqlen_k=shown[1].shape[1])
    configs = _leaving_out(p)
    assert configs
    for config in configs:
        o, lse = run(p, [q, k, v], config, attn_mask=mask)
        expected_o, expected_lse = run(alone, shown, config)
        difference = np.abs(o.astype(np.float32) - expected_o.astype(np.float32))
        assert difference.max() < 2e-2, config
        assert np.abs(lse - expected_lse).max() < 1e-3, config


def _leaving_out(p: AttentionProblem) -> list[flashattn.Config]:
    """Returns the rows that leave hidden blocks out."""
    configs = configs_for(replace(p, bias=BIASES["bits"]))
    return [config for config in configs if config.arch in (Arch.SM80, Arch.SM90)]


def test_nan_of_a_shown_block_stays_where_the_last_blocks_are_hidden() -> None:
    """The block visited first is in the middle of the keys, and V is not finite there."""
    p = AttentionProblem(1, 150, 2000, 2, 1, 128, dtype="bfloat16")
    q, k, v = device_inputs(p)
    v[:, 1000, :, 7] = math.inf
    v[:, 990, :, 9] = math.nan
    v[:, 500, :, 11] = -math.inf
    mask = torch.zeros(1, 1, 150, 2000, dtype=torch.bool, device="cuda")
    mask[..., 100:1024] = True
    for config in _leaving_out(p):
        o, _ = run(p, [q, k, v], config, attn_mask=mask)
        found = o.astype(np.float32)
        assert (found[..., 7] == np.inf).all() and (found[..., 11] == -np.inf).all()
        assert np.isnan(found[..., 9]).all()
        assert np.isfinite(np.delete(found, (7, 9, 11), -1)).all()


def test_masks_of_one_meaning_give_the_same_bits() -> None:
    """In SM90 rows those of numbers alone: their scores are in another unit than without them."""
    for name in ("full", "causal", "ragged"):
        p = _typed(PROBLEMS[name], "bfloat16", 128)
        mask = device_options(replace(p, bias=replace(BIASES["holes"], kind="bool")))["attn_mask"]
        numbers = torch.zeros(mask.shape, device="cuda").masked_fill_(~mask, -math.inf)
        tensors = device_inputs(p)
        for config in _leaving_out(p):
            results = [
                run(p, tensors, config, attn_mask=given)
                for given in (mask, numbers, numbers.half(), numbers.bfloat16())
                if given is not mask or config.arch == Arch.SM80
            ]
            assert all(same_bits(results[0], other) for other in results[1:]), config


def test_documents_are_sequences_of_their_own() -> None:
    """A mask of documents gives what a ragged batch of them gives."""
    ends = [0, 300, 301, 1500, 2048]
    p = AttentionProblem(1, 2048, 2048, 4, 2, 128, dtype="bfloat16", causal=True)
    q, k, v = device_inputs(p)
    document = torch.zeros(2048, dtype=torch.int32, device="cuda")
    for begin in ends[1:-1]:
        document[begin:] += 1
    mask = (document[:, None] == document[None, :])[None, None]
    o = flashattn.flash_attn_func(q, k, v, causal=True, attn_mask=mask)
    cu_seqlens = torch.tensor(ends, dtype=torch.int32, device="cuda")
    expected = flashattn.flash_attn_varlen_func(
        q[0], k[0], v[0], cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens,
        max_seqlen_q=1200, max_seqlen_k=1200, causal=True,
    )  # fmt: skip
    torch.testing.assert_close(o[0], expected, atol=2e-2, rtol=2e-2)
