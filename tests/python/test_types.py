"""Q and O of other types than K and V, on every kernel here: what is rounded, and what is not."""

from __future__ import annotations

import itertools
from dataclasses import replace

import flashattn
import numpy as np
import pytest
from memory import dtype_of
from problems import (
    AttentionProblem,
    check,
    configs_for,
    forward_kernels,
    make_inputs,
    rounds_p,
    run,
    workspace_size,
)

# Ways of CPU kernels: few rows in place, packed keys of a task and of a head, split keys, tiles.
PROBLEMS = {
    "one_row": AttentionProblem(2, 1, 300, 4, 4, 64),
    "few_rows": AttentionProblem(1, 3, 200, 6, 2, 72, causal=True),
    "odd_columns": AttentionProblem(1, 5, 90, 2, 2, 37),
    "one_block": AttentionProblem(1, 40, 130, 2, 1, 128, causal=True),
    "many_rows": AttentionProblem(2, 150, 170, 4, 2, 64),
    "many_rows_of_few_columns": AttentionProblem(1, 300, 90, 1, 1, 13),
    "split": AttentionProblem(1, 1, 5000, 4, 2, 64),
    "split_rows": AttentionProblem(1, 30, 5000, 4, 2, 32, causal=True),
    "softcap": AttentionProblem(1, 70, 90, 2, 1, 64, softcap=2.0),
}
HALVES = ("float16", "bfloat16")
OTHER_TYPES = [(q, o) for q, o in itertools.product((None, "float32"), repeat=2) if q or o]

every_problem = pytest.mark.parametrize("name", PROBLEMS)
every_half = pytest.mark.parametrize("dtype", HALVES)


@every_problem
@every_half
@pytest.mark.parametrize("q_dtype, o_dtype", OTHER_TYPES, ids=str)
def test_agrees_with_the_oracle(name: str, dtype: str, q_dtype: str, o_dtype: str) -> None:
    p = replace(PROBLEMS[name], dtype=dtype, q_dtype=q_dtype, o_dtype=o_dtype)
    configs = configs_for(p)
    assert configs
    for config in [None, *configs]:
        noisy = rounds_p(p, config)
        if p.averages_rounding or not noisy:
            check(p, config=config, roundings=4 if noisy else 1)


@every_problem
@every_half
@pytest.mark.parametrize("q_dtype", [None, "float32"], ids=str)
def test_o_of_16_bits_is_that_of_fp32_rounded(name: str, dtype: str, q_dtype: str) -> None:
    p = replace(PROBLEMS[name], dtype=dtype, q_dtype=q_dtype)
    wide = replace(p, o_dtype="float32")
    configs = configs_for(p)
    assert configs == configs_for(wide)
    for config in configs:
        (o, lse), (wide_o, wide_lse) = run(p, config=config), run(wide, config=config)
        assert wide_o.dtype == np.float32
        assert (wide_o.astype(o.dtype) == o).all() and (lse == wide_lse).all()
        assert (wide_o != o.astype(np.float32)).any(), f"{config} rounds O to {dtype}"


@every_problem
@every_half
def test_q_of_fp32_keeps_what_16_bits_lose(name: str, dtype: str) -> None:
    """LSE has no other rounding in it, so that Q rounded to 16 bits would show."""
    p = replace(PROBLEMS[name], dtype=dtype, q_dtype="float32", o_dtype="float32")
    q, k, v = make_inputs(p)
    for config in configs_for(p):
        lse = run(p, [q, k, v], config)[1]
        rounded = run(p, [q.astype(dtype_of(dtype)).astype(np.float32), k, v], config)[1]
        assert np.abs(lse - rounded).max() > 2e-5
        check(p, [q, k, v], config, roundings=4)


@every_problem
@every_half
def test_q_of_fp32_is_as_good_as_the_same_in_16_bits(name: str, dtype: str) -> None:
    p = replace(PROBLEMS[name], dtype=dtype, o_dtype="float32")
    wide = replace(p, q_dtype="float32")
    q, k, v = make_inputs(p)
    for config in configs_for(wide):
        o, lse = run(p, [q, k, v], config)
        wide_o, wide_lse = run(wide, [q.astype(np.float32), k, v], config)
        if config.startswith("AMX"):  # which has rows of bf16 decoded on tiles
            assert np.abs(lse - wide_lse).max() < 1e-5 and np.abs(o - wide_o).max() < 2e-2
        else:
            assert (o == wide_o).all() and (lse == wide_lse).all()


@every_half
@pytest.mark.parametrize("number", [3.39e38, 3.4e38, np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.parametrize("seqlen_q", [2, 70])
def test_numbers_that_16_bits_do_not_have(dtype: str, number: float, seqlen_q: int) -> None:
    """Such a number is in one element of one row of Q, and other rows are as without it."""
    p = AttentionProblem(1, seqlen_q, 90, 2, 1, 64, dtype, "float32", "float32")
    q, k, v = make_inputs(p)
    k[..., 5] = 0.5
    k[0, 0, 0, 5] = 0.25
    q[0, 1, 1, 5] = number
    for config in configs_for(p):
        check(p, [q, k, v], config, roundings=4)


def test_families_that_multiply_bf16_leave_a_q_of_fp32_to_others() -> None:
    p = AttentionProblem(1, 40, 90, 2, 1, 64, "bfloat16", "float32")
    q, k, v = make_inputs(p)
    multiply_bf16 = (flashattn.Arch.AVX512_BF16, flashattn.Arch.NEON_BF16)
    assert flashattn.select_config(q, k, v).config.arch not in multiply_bf16
    for kernel in forward_kernels():
        if kernel.config.arch in multiply_bf16:
            support = flashattn.query_support(q, k, v, config=kernel.config)
            assert not support
            if kernel.is_runnable:
                assert "q.dtype" in support.reason and "BF16 and FP32" in support.reason


@every_half
def test_workspace_suffices_for_smaller_problems(dtype: str) -> None:
    for q_dtype, o_dtype in OTHER_TYPES:
        p = AttentionProblem(2, 300, 2000, 8, 2, 16, dtype, q_dtype, o_dtype)
        for config in configs_for(p):
            size = workspace_size(p, config)
            for smaller in ((1, 300, 2000), (2, 1, 2000), (2, 40, 700), (2, 290, 10)):
                batch, seqlen_q, seqlen_k = smaller
                small = replace(p, batch=batch, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
                assert workspace_size(small, config) <= size
                run(small, config=config, workspace_bytes=size)


# ---- Calls in Python ----


def _arrays(dtype: str = "float16") -> list[np.ndarray]:
    return make_inputs(AttentionProblem(1, 9, 14, 4, 2, 16, dtype, "float32"))


def test_o_has_the_type_of_q_unless_another_is_given() -> None:
    q, k, v = _arrays()
    assert flashattn.flash_attn_func(q, k, v).dtype == np.float32
    narrow = flashattn.flash_attn_func(q.astype(np.float16), k, v)
    wide = flashattn.flash_attn_func(q.astype(np.float16), k, v, out_dtype="float32")
    assert (narrow.dtype, wide.dtype) == (np.float16, np.float32)
    assert (wide.astype(np.float16) == narrow).all()
    out = np.empty(q.shape, np.float16)
    assert flashattn.flash_attn_func(q, k, v, out=out) is out
    assert (flashattn.flash_attn_func(q, k, v).astype(np.float16) == out).all()
    ragged = {"cu_seqlens_q": [0, 9], "cu_seqlens_k": [0, 14]}
    longest = {"max_seqlen_q": 9, "max_seqlen_k": 14}
    o = flashattn.flash_attn_varlen_func(q[0], k[0], v[0], out_dtype="float16", **ragged, **longest)
    assert o.dtype == np.float16


def test_types_of_out_must_agree() -> None:
    q, k, v = _arrays()
    out = np.empty(q.shape, np.float16)
    with pytest.raises(ValueError, match="out is float16, and out_dtype float32"):
        flashattn.flash_attn_func(q, k, v, out=out, out_dtype="float32")
    with pytest.raises(ValueError, match="out_dtype is 'int8': not one of"):
        flashattn.flash_attn_func(q, k, v, out_dtype="int8")


def test_support_and_selection_look_at_every_type() -> None:
    q, k, v = _arrays()
    assert flashattn.query_support(q, k, v, out_dtype="float16")
    assert flashattn.select_config(q, k, v).config.dtype == flashattn.DType.FP16
    assert "FP16 (Q FP32, O FP32)" in flashattn.select_config(q, k, v).reason
    support = flashattn.query_support(q.astype(dtype_of("bfloat16")), k, v)
    assert not support and "if K and V are FP16, Q and O can be" in support.reason
    wide = k.astype(np.float32)
    support = flashattn.query_support(q, wide, wide, out_dtype="float16")
    assert not support and "Q and O can be: FP32 and FP32" in support.reason


def test_measuring() -> None:
    q, k, v = _arrays()
    out = np.empty(q.shape, np.float16)
    configs = configs_for(AttentionProblem(1, 9, 14, 4, 2, 16, "float16", "float32", "float16"))
    seconds = flashattn.measure(q, k, v, configs, out=out, n_launches=2)
    assert len(seconds) == len(configs) and min(seconds) > 0
