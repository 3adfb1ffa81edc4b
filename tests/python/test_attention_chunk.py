"""Chunks of keys that do not see each other: attention_chunk."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import flashattn
import numpy as np
import pytest
from direct import ForwardCall, assert_refused
from flashattn import _abi, oracle
from flashattn._library import library
from hypothesis import given
from hypothesis import strategies as st
from problems import AttentionProblem, check, check_every_kernel, configs_for, make_inputs, run
from strategies import attention_problems, chunks, random_problems

PREFILL = AttentionProblem(2, 150, 150, 4, 2, 64, "bfloat16", attention_chunk=64)
DECODE = AttentionProblem(1, 1, 5000, 8, 2, 64, "bfloat16", attention_chunk=1024)
every_order = pytest.mark.parametrize("causal", [False, True], ids=["any_order", "causal"])
every_type = pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn"])


@every_order
@every_type
@pytest.mark.parametrize("chunk", [1, 2, 63, 64, 65, 149, 150, 2**40])
def test_prefill(chunk: int, dtype: str, causal: bool) -> None:
    check_every_kernel(replace(PREFILL, attention_chunk=chunk, dtype=dtype, causal=causal))


@every_order
@pytest.mark.parametrize("seqlen_q", [1, 3, 40, 130, 300])
def test_queries_at_the_end_of_more_keys(seqlen_q: int, causal: bool) -> None:
    """The places of the queries end with key 299, in the middle of a chunk or at its end."""
    for chunk in (7, 50, 100, 128, 299):
        p = replace(PREFILL, seqlen_q=seqlen_q, seqlen_k=300, attention_chunk=chunk)
        check_every_kernel(replace(p, causal=causal))


@every_order
@pytest.mark.parametrize("window", [(0, 0), (20, -1), (-1, 5), (100, 3)], ids=str)
@pytest.mark.parametrize("chunk", [16, 50])
def test_windows_hold_beside_chunks(chunk: int, window: tuple[int, int], causal: bool) -> None:
    check_every_kernel(replace(PREFILL, attention_chunk=chunk, window_size=window, causal=causal))


@every_order
@every_type
@pytest.mark.parametrize("seqlen_k", [1023, 1024, 1025, 2048, 5000])
def test_decode(seqlen_k: int, dtype: str, causal: bool) -> None:
    p = replace(DECODE, seqlen_k=seqlen_k, dtype=dtype, causal=causal)
    check_every_kernel(p)
    check_every_kernel(replace(p, seqlen_q=4))


@every_order
def test_a_chunk_begins_between_queries_that_share_keys(causal: bool) -> None:
    """Of 16 queries 11 stand in the chunk before key 4995, whose splits the other five skip."""
    p = replace(DECODE, seqlen_q=16, attention_chunk=4995, causal=causal)
    check_every_kernel(p)
    check_every_kernel(replace(p, seqlen_k=10_000))


@every_order
@pytest.mark.parametrize("chunk", [1, 4, 100, 1000])
def test_a_query_before_the_first_key_sees_none(chunk: int, causal: bool) -> None:
    p = replace(PREFILL, seqlen_q=150, seqlen_k=40, attention_chunk=chunk, causal=causal)
    check_every_kernel(p)
    o, lse = run(p)
    assert (o[:, :110] == 0).all() and (lse[:, :, :110] == -np.inf).all()
    assert np.isfinite(lse[:, :, 110:]).all()


def test_lengths_of_a_batch_have_chunks_of_their_own() -> None:
    p = AttentionProblem(
        4, 130, 400, 4, 2, 64, "bfloat16", causal=True, cu_seqlens_q=(0, 1, 1, 131, 135),
        seqused_k=(400, 77, 131, 2), attention_chunk=96,
    )  # fmt: skip
    check_every_kernel(p)
    check_every_kernel(replace(p, causal=False))
    check_every_kernel(replace(p, seqused_q=(1, 0, 70, 3)))


@pytest.mark.parametrize("flags", [{}, {"batch_invariant": True}], ids=str)
def test_a_chunk_that_hides_nothing_changes_no_bit(flags: dict) -> None:
    p = replace(PREFILL, causal=True, attention_chunk=0)
    for config in configs_for(p):
        q, k, v = make_inputs(p)
        options = {"causal": True, "config": config, **flags}
        whole = flashattn.flash_attn_func(q, k, v, **options)
        for chunk in (150, 151, 2**31 - 1, 2**31, 2**63 - 1):
            o = flashattn.flash_attn_func(q, k, v, attention_chunk=chunk, **options)
            assert o.tobytes() == whole.tobytes()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("seqlen_q", [1, 4, 150])
def test_keys_of_other_chunks_do_not_matter(seqlen_q: int, poison: float) -> None:
    p = replace(PREFILL, seqlen_q=seqlen_q, causal=True)
    sees = oracle.Mask(True, -1, -1, 64).visible(seqlen_q, 150)
    for config in configs_for(p):
        for key in (0, 63, 64, 127, 128, 149):
            q, k, v = make_inputs(p)
            clean, _ = run(p, [q, k, v], config)
            k[:, key], v[:, key] = poison, poison
            o, _ = run(p, [q, k, v], config)
            np.testing.assert_array_equal(o[:, ~sees[:, key]], clean[:, ~sees[:, key]])
            assert not np.isfinite(o[:, sees[:, key]].astype(np.float32)).any()


def test_each_chunk_is_attention_by_itself() -> None:
    p = replace(PREFILL, seqlen_q=128, seqlen_k=128, causal=True)
    inputs = make_inputs(p)
    for config in configs_for(p):
        halves = [
            run(replace(p, seqlen_q=64, seqlen_k=64, attention_chunk=0),
                [np.ascontiguousarray(x[:, at]) for x in inputs], config)[0]
            for at in (slice(0, 64), slice(64, 128))
        ]  # fmt: skip
        o = run(p, inputs, config)[0].astype(np.float64)
        np.testing.assert_allclose(
            o, np.concatenate(halves, 1).astype(np.float64), atol=2e-2, rtol=2e-2
        )


@random_problems
@given(attention_problems(), chunks(), st.data())
def test_random_chunks_agree_with_the_oracle(
    p: AttentionProblem, chunk: int, data: st.DataObject
) -> None:
    p = replace(p, attention_chunk=max(chunk, 1), dtype="float32", q_dtype=None, o_dtype=None)
    p = replace(p, v_dtype=None, k_descale=None, v_descale=None)
    check(p, config=data.draw(st.sampled_from([None, *configs_for(p)]), label="config"))


# ---- Sizes, and refusals ----


def test_negative_chunks_are_refused() -> None:
    call = ForwardCall()
    call.args.attention_chunk = -1
    assert_refused(call.run(), _abi.FLASH_ERROR_INVALID_ARGUMENT, ["attention_chunk is -1"])
    call.assert_untouched()


def test_other_types_are_refused() -> None:
    q = np.zeros((1, 2, 1, 8), np.float32)
    for chunk in (1.5, "8", None):
        with pytest.raises(ValueError, match="attention_chunk is"):
            flashattn.flash_attn_func(q, q, q, attention_chunk=chunk)
    with pytest.raises(ValueError, match="64 bits"):
        flashattn.flash_attn_func(q, q, q, attention_chunk=2**63)


def test_workspace_of_longer_chunks_suffices() -> None:
    sizes = []
    for chunk in (0, 1024, 16):
        call = ForwardCall()
        call.args.attention_chunk = chunk
        size = ctypes.c_uint64()
        assert library().flash_workspace_size(call.args, None, size) == 0
        sizes.append(size.value)
    assert sizes == sorted(sizes, reverse=True)
