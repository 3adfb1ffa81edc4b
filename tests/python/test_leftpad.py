"""Keys that begin behind the start of their sequence's place: leftpad_k."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
from bias_cases import BiasCase
from direct import ForwardCall, assert_refused
from flashattn import _abi
from flashattn._library import last_error
from hypothesis import given
from hypothesis import strategies as st
from paging import PagedProblem, run_paged
from problems import (
    AttentionProblem,
    check,
    check_every_kernel,
    configs_for,
    configs_for_pages,
    make_inputs,
    run,
)
from strategies import attention_problems, leftpads, random_problems

PREFILL = AttentionProblem(3, 70, 150, 4, 2, 64, "bfloat16", causal=True, leftpad_k=(0, 7, 90))
DECODE = AttentionProblem(
    4, 1, 3000, 8, 2, 64, "bfloat16", seqused_k=(3000, 0, 65, 2999), leftpad_k=(1000, 0, 64, 1)
)
PADDED = {
    "prefill": PREFILL,
    "in use": replace(PREFILL, seqused_k=(150, 100, 120)),
    "window": replace(PREFILL, causal=False, window_size=(30, 4)),
    "chunks": replace(PREFILL, attention_chunk=32),
    "decode": DECODE,
    "few queries": replace(DECODE, seqlen_q=4, causal=True),
    "ragged": AttentionProblem(
        4, 130, 400, 4, 2, 64, "float16", causal=True, cu_seqlens_q=(0, 1, 1, 131, 135),
        cu_seqlens_k=(0, 200, 300, 600, 650), leftpad_k=(199, 0, 31, 50),
    ),
    "ragged keys in use": AttentionProblem(
        3, 20, 300, 4, 2, 80, cu_seqlens_k=(0, 100, 400, 600), seqused_k=(50, 300, 130),
        leftpad_k=(3, 298, 64),
    ),
    "e4m3": replace(PREFILL, dtype="float8_e4m3fn", k_descale=0.5, v_descale=2.0),
}  # fmt: skip
every_problem = pytest.mark.parametrize("p", PADDED.values(), ids=PADDED)


@every_problem
def test_results_are_the_oracles(p: AttentionProblem) -> None:
    check_every_kernel(p)


@every_problem
def test_padding_is_not_read(p: AttentionProblem) -> None:
    for config in configs_for(p):
        q, k, v = make_inputs(p)
        clean = run(p, [q, k, v], config)
        for b, pad in enumerate(p.leftpad_k):
            begin = 0 if p.cu_seqlens_k is None else p.cu_seqlens_k[b]
            at = (b, slice(0, pad)) if p.cu_seqlens_k is None else slice(begin, begin + pad)
            k[at] = v[at] = np.nan
        for x, y in zip(run(p, [q, k, v], config), clean):
            np.testing.assert_array_equal(x.view(np.uint8), y.view(np.uint8))


@pytest.mark.parametrize("pad", [150, 151, 10_000, 2**31 - 1])
def test_padding_of_all_keys_leaves_none(pad: int) -> None:
    for p in (replace(PREFILL, causal=False), replace(PREFILL, seqlen_q=1)):
        p = replace(p, leftpad_k=(0, pad, 149))
        check_every_kernel(p)
        o, lse = run(p)
        assert (o[1] == 0).all() and (lse[1] == -np.inf).all()
        assert np.isfinite(lse[2]).any()


def test_padding_beyond_the_keys_in_use_leaves_none() -> None:
    p = replace(PREFILL, seqused_k=(150, 6, 0), leftpad_k=(0, 7, 1))
    check_every_kernel(p)
    assert (run(p)[1][1:] == -np.inf).all()


@pytest.mark.parametrize(
    "bias", [BiasCase(slopes=1), BiasCase(kind="float32", n_keys=150)], ids=str
)
def test_biases_count_keys_from_the_first_that_exists(bias: BiasCase) -> None:
    check_every_kernel(replace(PREFILL, dtype="float32", bias=bias))


@pytest.mark.parametrize("p", [PADDED["in use"], DECODE], ids=["in use", "decode"])
def test_slots_have_padding_too(p: AttentionProblem) -> None:
    slots = PagedProblem(p, 1, "slots")
    for config in configs_for_pages(p):
        paged, dense = run_paged(slots, config=config), run(p, config=config)
        assert [x.tobytes() for x in paged] == [x.tobytes() for x in dense]


@random_problems
@given(attention_problems(), st.data())
def test_random_padding_agrees_with_the_oracle(p: AttentionProblem, data: st.DataObject) -> None:
    p = replace(p, leftpad_k=data.draw(leftpads(p.batch)), dtype="float32", q_dtype=None)
    p = replace(p, o_dtype=None, v_dtype=None, k_descale=None, v_descale=None)
    check(p, config=data.draw(st.sampled_from([None, *configs_for(p)]), label="config"))


# ---- Refusals ----


@pytest.mark.parametrize("padding", [-1, -3, -(2**31)])
def test_negative_padding_is_refused(padding: int) -> None:
    call = ForwardCall()
    call.set_lengths("leftpad_k", [0, padding])
    words = [f"leftpad_k[1] is {padding}: negative"]
    assert_refused(call.run(), _abi.FLASH_ERROR_INVALID_ARGUMENT, words)
    call.assert_untouched()


def test_padding_of_pages_is_refused() -> None:
    q = np.zeros((1, 1, 2, 8), np.float32)
    pool = np.zeros((3, 4, 2, 8), np.float32)
    options = {"seqused_k": np.array([6], np.int32), "page_table": np.array([[2, 0]], np.int32)}
    with pytest.raises(ValueError, match="leftpad_k is given with a page_table"):
        flashattn.flash_attn_func(q, pool, pool, leftpad_k=np.array([1], np.int32), **options)


def test_lengths_need_an_array_of_the_batch() -> None:
    q = np.zeros((2, 1, 2, 8), np.float32)
    with pytest.raises(ValueError, match="leftpad_k"):
        flashattn.flash_attn_func(q, q, q, leftpad_k=np.array([1], np.int32))


def test_memory_may_have_any_alignment() -> None:
    call = ForwardCall()
    call.set_lengths("leftpad_k", [2, 5])
    assert call.run() == 0, last_error()
    expected = call.o.array.copy()
    shifted = np.zeros(9, np.uint8)
    shifted[1:] = np.frombuffer(call.lengths[0].tobytes(), np.uint8)
    call.args.leftpad_k = shifted.ctypes.data + 1
    assert call.run() == 0, last_error()
    np.testing.assert_array_equal(call.o.array, expected)
