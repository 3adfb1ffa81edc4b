"""Masks of blocks of queries and keys: FLASH_MASK_BLOCKS, and flashattn.BlockMask in Python."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import flashattn
import numpy as np
import pytest
from block_cases import BlockCase
from direct import BATCH, N_HEADS, SEQLEN_K, SEQLEN_Q, ForwardCall, assert_refused
from flashattn import _abi
from flashattn._library import last_error
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import E4M3, LATENT
from paging import PagedProblem, run_paged
from pairwise import Row, pairwise
from problems import (
    AttentionProblem,
    check,
    configs_for,
    configs_for_pages,
    make_inputs,
    rounds_p,
    run,
)
from strategies import attention_problems, random_problems

# One for each way that a task reads its keys.
PROBLEMS = {
    "one row": AttentionProblem(2, 1, 900, 4, 2, 64),
    "few rows": AttentionProblem(1, 3, 900, 6, 2, 72, "float16", causal=True),
    "decode": AttentionProblem(4, 2, 900, 8, 2, 64, "bfloat16", causal=True),
    "split": AttentionProblem(1, 30, 5000, 4, 2, 32, causal=True),
    "packed": AttentionProblem(2, 300, 700, 4, 2, 64, "bfloat16"),
    "packed fp16": AttentionProblem(1, 200, 500, 2, 1, 64, "float16", window_size=(300, 100)),
    "packed fp32": AttentionProblem(1, 300, 900, 4, 1, 40, softcap=3.0),
    "private": AttentionProblem(1, 50, 400, 1, 1, 40, "bfloat16"),
    "causal": AttentionProblem(2, 200, 700, 4, 2, 32, "bfloat16", causal=True),
    "slot of blocks": AttentionProblem(1, 400, 400, 3, 3, 32, "bfloat16", causal=True),
    "ragged": AttentionProblem(
        3, 200, 700, 4, 2, 64, causal=True,
        cu_seqlens_q=(0, 90, 91, 291), cu_seqlens_k=(0, 640, 660, 1360),
    ),
    "in use": AttentionProblem(
        3, 140, 800, 4, 2, 64, "bfloat16", causal=True, seqused_q=(140, 3, 0),
        seqused_k=(0, 1, 777),
    ),
    "sinks": AttentionProblem(2, 3, 300, 4, 2, 64, sinks=(0.5, -2.0, 3.0, 1.0)),
    "e4m3": AttentionProblem(1, 100, 300, 2, 1, 72, E4M3, v_descale=2.0),
    "latent": AttentionProblem(2, 1, 300, 16, 1, 576, LATENT, d_head_v=512),
    "q8_0": AttentionProblem(1, 3, 300, 4, 2, 64, "q8_0"),
}  # fmt: skip
CASES = pairwise(
    {
        "problem": tuple(PROBLEMS),
        "block_q": (1, 50, 64, 128, 1000),
        "block_k": (7, 32, 64, 128, 1000),
        "shown": (0.1, 0.6),
        "repeats": ("", "b", "h", "q", "bhq"),
    }
)


def _check(p: AttentionProblem, config: str | None) -> None:
    if p.averages_rounding or not rounds_p(p, config):
        check(p, config=config, roundings=4 if rounds_p(p, config) else 1)


@pytest.mark.parametrize("case", CASES, ids=["-".join(map(str, x.values())) for x in CASES])
def test_agrees_with_the_oracle(case: Row) -> None:
    mask = BlockCase(case["block_q"], case["block_k"], case["shown"], case["repeats"])
    p = replace(PROBLEMS[case["problem"]], bias=mask)
    for config in [None, *configs_for(p)]:
        _check(p, config)


@st.composite
def problems_with_blocks(draw: st.DrawFn) -> AttentionProblem:
    p = draw(attention_problems())
    from_end = draw(st.booleans())
    mask = BlockCase(
        block_q=draw(st.one_of(st.sampled_from([1, 16, 64]), st.integers(1, 300))),
        block_k=draw(st.one_of(st.sampled_from([1, 32, 64, 128]), st.integers(1, 300))),
        shown=draw(st.sampled_from([0.0, 0.2, 0.7, 1.0])),
        repeats="".join(draw(st.sets(st.sampled_from("bhq")))),
        n_keys=draw(st.integers(1, 200)) if from_end else None,
        from_end=from_end,
        more_rows=draw(st.integers(0, 2)),
        seed=draw(st.integers(0, 2**31)),
    )
    return replace(p, bias=mask)


@settings(random_problems, max_examples=200)
@given(problems_with_blocks(), st.data())
def test_random_blocks(p: AttentionProblem, data: st.DataObject) -> None:
    _check(p, data.draw(st.sampled_from([None, *configs_for(p)]), label="config"))


def _bits(results: tuple[np.ndarray, np.ndarray]) -> list[bytes]:
    return [x.tobytes() for x in results]


@pytest.mark.parametrize("name", ["one row", "few rows", "decode", "packed", "causal", "split"])
def test_blocks_have_the_bits_of_the_same_mask_of_bits(name: str) -> None:
    p = replace(PROBLEMS[name], bias=BlockCase(64, 128))
    inputs = make_inputs(p)
    for config in configs_for(p):
        for n_threads in (1, 3):
            flashattn.set_num_threads(n_threads)
            found = run(p, inputs, config)
            dense = flashattn.flash_attn_func(
                *inputs, attn_mask=p.options()["attn_mask"], causal=p.causal, config=config,
                return_lse=True,
            )  # fmt: skip
            assert _bits(found) == _bits(dense), config


@pytest.mark.parametrize("kind", ["table", "rows", "indptr", "slots"])
@pytest.mark.parametrize("name", ["few rows", "decode", "packed", "split"])
def test_pages_do_not_change_bits(name: str, kind: str) -> None:
    p = replace(PROBLEMS[name], bias=BlockCase(50, 64))
    for config in configs_for_pages(p):
        assert _bits(run_paged(PagedProblem(p, 19, kind), config=config)) == _bits(
            run(p, config=config)
        )


@pytest.mark.parametrize("name", ["few rows", "decode", "packed", "packed fp32", "causal", "split"])
def test_keys_that_nobody_sees_are_not_read(name: str) -> None:
    """Blocks of 256 keys, which no family reads in larger ones: those that no head sees are NaN, in
    V too, which a mask that hides single keys must not have."""
    p = replace(PROBLEMS[name], bias=BlockCase(1000, 256, repeats="bhq", shown=0.5, seed=3))
    q, k, v = make_inputs(p)
    hidden = np.flatnonzero(~p.bias.options(p)["attn_mask"][0, 0, 0])
    assert 0 < len(hidden) < p.seqlen_k
    for config in configs_for(p):
        if config.startswith("REFERENCE"):  # leaves out no block
            continue
        expected = _bits(run(p, [q, k, v], config))
        spoiled = [x.copy() for x in (k, v)]
        for x in spoiled:
            x[:, hidden] = np.nan
        assert _bits(run(p, [q, *spoiled], config)) == expected, config


def test_gradients_are_those_of_the_same_mask_of_bits() -> None:
    p = replace(PROBLEMS["causal"], dtype="float32", bias=BlockCase(50, 64))
    q, k, v = make_inputs(p)
    do = np.random.default_rng(2).standard_normal(q.shape).astype(np.float32)
    found = []
    for mask in (p.bias.call_options(p)["attn_mask"], p.options()["attn_mask"]):
        options = {"attn_mask": mask, "causal": True}
        o, lse = flashattn.flash_attn_func(q, k, v, return_lse=True, **options)
        found.append(flashattn.flash_attn_backward(do, q, k, v, o, lse, **options))
    for x, y in zip(found[0][:3], found[1][:3]):
        assert x.any() and x.tobytes() == y.tobytes()


def test_all_hidden_rows_see_nothing() -> None:
    for name in ("one row", "decode", "packed", "split"):
        p = replace(PROBLEMS[name], bias=BlockCase(64, 64, shown=0.0))
        for config in configs_for(p):
            o, lse = run(p, config=config)
            assert not o.any() and (lse == -np.inf).all()


@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
def test_blocks_may_be_words(dtype: type) -> None:
    p = replace(PROBLEMS["packed fp32"], bias=BlockCase(64, 20))
    blocks = p.bias.call_options(p)["attn_mask"].blocks
    assert blocks.shape[-1] == 45
    padded = np.concatenate([blocks, np.zeros((*blocks.shape[:-1], 19), bool)], axis=-1)
    words = np.packbits(padded, axis=-1, bitorder="little").view(dtype)
    inputs = make_inputs(p)
    mask = flashattn.BlockMask(words, 64, 20)
    found = flashattn.flash_attn_func(*inputs, attn_mask=mask, softcap=p.softcap)
    assert found.tobytes() == run(p, inputs)[0].tobytes()
    for wrong in (words[..., :1], words[..., [0, 0, 1]]):
        with pytest.raises(ValueError, match="900 keys 45 of 20, in 2 words"):
            flashattn.flash_attn_func(*inputs, attn_mask=flashattn.BlockMask(wrong, 64, 20))
    with pytest.raises(ValueError, match="blocks has a stride of 2 words, not 1"):
        apart = np.zeros((*words.shape[:-1], 4), dtype)[..., ::2]
        flashattn.flash_attn_func(*inputs, attn_mask=flashattn.BlockMask(apart, 64, 20))


def test_torch_arrays_have_it_too() -> None:
    torch = pytest.importorskip("torch")
    p = replace(PROBLEMS["packed fp32"], bias=BlockCase())
    inputs = make_inputs(p)
    blocks = p.bias.call_options(p)["attn_mask"].blocks
    tensors = [torch.from_numpy(x) for x in inputs]
    mask = flashattn.BlockMask(torch.from_numpy(blocks), 64, 64)
    found = flashattn.flash_attn_func(*tensors, attn_mask=mask, softcap=p.softcap)
    assert found.numpy().tobytes() == run(p, inputs)[0].tobytes()


def test_doors_whose_masks_are_arrays_refuse_blocks() -> None:
    torch = pytest.importorskip("torch")
    from flashattn import torch_ops

    x, mask = torch.ones(1, 64, 2, 16), flashattn.BlockMask(np.ones((1, 1), bool))
    with pytest.raises(TypeError, match="attn_mask is a BlockMask: not a torch tensor"):
        torch_ops.flash_attn_func(x, x, x, attn_mask=mask)
    jax = pytest.importorskip("flashattn.jax")
    with pytest.raises(TypeError, match="attn_mask is of type BlockMask: not an array"):
        jax.flash_attention(x.numpy(), x.numpy(), x.numpy(), attn_mask=mask)


# ---- Refusals ----


class BlocksCall(ForwardCall):
    """A valid call with a mask of blocks of 2 queries and 3 keys."""

    def __init__(self) -> None:
        super().__init__()
        of_queries = -(-SEQLEN_Q // 2)
        self.words = np.full((BATCH, N_HEADS, of_queries, 1), 5, np.uint32)
        self.mask = _abi.flash_mask_t(
            kind=_abi.FLASH_MASK_BLOCKS,
            data=self.words.ctypes.data,
            stride_batch=N_HEADS * of_queries,
            stride_head=of_queries,
            stride_query=1,
            n_keys=SEQLEN_K,
            block_q=2,
            block_k=3,
        )
        self.args.mask = ctypes.addressof(self.mask)


REFUSALS = {
    "no queries": ({"block_q": 0}, "mask.block_q is 0"),
    "no keys": ({"block_k": 0}, "mask.block_k is 0"),
    "negative": ({"block_k": -64}, "mask.block_k is -64"),
    "huge": ({"block_q": 2**31}, "mask.block_q is 2147483648"),
    "bits": ({"kind": 2}, "mask.block_q is 2 and mask.block_k 3 with FLASH_MASK_BITS"),
    "numbers": (
        {"kind": 1, "dtype": 3, "stride_key": 1},
        "mask.block_q is 2 and mask.block_k 3 with FLASH_MASK_ADD",
    ),
    "type": ({"dtype": 3}, "mask.dtype is 3: bits have none"),
    "column": ({"stride_key": 1}, "mask.stride_key is 1: bits have none"),
    "factors": ({"head_scale": 8}, "mask.head_scale is given with FLASH_MASK_BLOCKS"),
    "kind": ({"kind": 4}, "mask.kind is 4: no such kind"),
    "stride": ({"stride_query": -1}, "mask.stride_query is -1: negative"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_is_refused(name: str) -> None:
    changes, words = REFUSALS[name]
    call = BlocksCall()
    for member, value in changes.items():
        setattr(call.mask, member, value)
    assert_refused(call.run(), _abi.FLASH_ERROR_INVALID_ARGUMENT, [words])
    call.assert_untouched()


def test_a_sound_call_of_the_c_api_is_served() -> None:
    call = BlocksCall()
    assert call.run() == 0, last_error()
    seen = np.zeros((BATCH, N_HEADS, SEQLEN_Q, SEQLEN_K), bool)
    seen[..., :3] = seen[..., 6:] = True  # bits 0 and 2 of 5
    expected = flashattn.flash_attn_func(call.q, call.k, call.v, attn_mask=seen)
    assert (call.o.take() == expected).all()


@pytest.mark.parametrize(
    "blocks, words",
    [
        (np.ones((3, 2), bool), r"blocks has shape \(3, 2\): 70 queries are 2 blocks of 64, and"),
        (np.ones((1, 2), bool), r"and 150 keys 3 of 64"),
        (np.ones((2, 3), np.float32), "blocks is float32: not one of bool, uint32, int32"),
        (np.ones((5, 2, 3), bool), r"blocks has shape \(5, 2, 3\)"),
        (np.ones(3, bool), "not 2 to 4 axes"),
    ],
)
def test_blocks_of_other_shapes_are_refused(blocks: np.ndarray, words: str) -> None:
    q, k, v = (np.ones((2, n, 4, 8), np.float32) for n in (70, 150, 150))
    with pytest.raises(ValueError, match=words):
        flashattn.flash_attn_func(q, k, v, attn_mask=flashattn.BlockMask(blocks, 64, 64))


@pytest.mark.parametrize("size", [0, -1, 2**31, 1.5])
def test_sizes_of_blocks_are_positive(size: object) -> None:
    with pytest.raises((ValueError, TypeError), match="block_q is"):
        flashattn.BlockMask(np.ones((1, 1), bool), block_q=size)
