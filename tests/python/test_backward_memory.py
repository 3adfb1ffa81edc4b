"""The memory of gradients: where they may lie, what is written of it and what is not, and the
workspace."""

from __future__ import annotations

import ctypes
import time
from dataclasses import replace

import flashattn
import numpy as np
import pytest
from flashattn import _abi
from flashattn._library import check as check_status
from flashattn._library import library
from gradient_problems import (
    NAMES,
    GradientProblem,
    check,
    compare_run,
    configs_for,
    make,
    random_d_o,
)
from hypothesis import given, settings
from memory import LAYOUTS
from problems import AttentionProblem, make_inputs
from strategies import gradient_problems, random_problems

RAGGED = AttentionProblem(
    3, 9, 12, 4, 2, 8, cu_seqlens_q=(0, 0, 9, 14), cu_seqlens_k=(0, 5, 5, 17), causal=True
)
PADDED = AttentionProblem(2, 9, 12, 4, 2, 8, "bfloat16", causal=True, sinks=(0.0, 1.0, 2.0, 3.0))


def _bits(gradients) -> list[bytes | None]:
    return [None if x is None else x.tobytes() for x in gradients]


# ---- Where gradients lie ----


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("p", [RAGGED, PADDED], ids=["ragged", "padded"])
def test_layouts_have_the_same_bits(p: AttentionProblem, layout: str) -> None:
    g = GradientProblem(p, has_d_lse=True)
    moved = replace(g, forward=replace(p, layouts=(layout,) * 4), layouts=(layout,) * 4)
    for configs in configs_for(g):
        assert _bits(make(g, configs=configs).launch()) == _bits(
            make(moved, configs=configs).launch()
        )


@pytest.mark.parametrize("ragged", [False, True])
def test_gradients_may_be_views_of_one_packed_tensor(ragged: bool) -> None:
    """Q, K and V are views of a tensor [tokens, 3, heads, d_head], and so are their gradients."""
    tokens = (14,) if ragged else (2, 7)
    cu = (0, 5, 14) if ragged else None
    p = AttentionProblem(2, 9 if ragged else 7, 9 if ragged else 7, 3, 3, 8, causal=True,
                         cu_seqlens_q=cu, cu_seqlens_k=cu)  # fmt: skip
    qkv = np.random.default_rng(0).standard_normal((*tokens, 3, 3, 8)).astype(np.float32)
    inputs = [qkv[..., i, :, :] for i in range(3)]
    g = GradientProblem(p)
    expected = check(g, inputs)
    run = make(g, inputs)
    packed = np.full(qkv.shape, np.nan, np.float32)
    stride = packed.strides[len(tokens) - 1] // 4
    for i, name in enumerate(NAMES[:3]):
        tensor = getattr(run.args, name)
        tensor.data = packed[..., i, :, :].ctypes.data
        tensor.stride_batch, tensor.stride_seq, tensor.stride_head = 7 * stride, stride, 8
    run.set_workspace(run.sizes()[1])
    check_status(library().flash_backward(run.args, None))
    for i, name in enumerate(NAMES[:3]):
        np.testing.assert_array_equal(packed[..., i, :, :], getattr(expected, name))


def test_d_o_may_repeat_where_the_call_says_so() -> None:
    p = AttentionProblem(2, 9, 12, 4, 2, 8)
    g = GradientProblem(p)
    row = random_d_o(g)[:1, :1, :1]
    expected = make(g, d_o=np.broadcast_to(row, p.o_shape)).launch()
    run = make(g)
    run.args.d_o.data = row.ctypes.data
    run.args.d_o.stride_batch = run.args.d_o.stride_seq = run.args.d_o.stride_head = 0
    with pytest.raises(ValueError, match=r"d_o\.stride_batch is 0 .* FLASH_FLAG_BROADCAST"):
        run.launch()
    run.forward.flags |= _abi.FLASH_FLAG_BROADCAST
    assert _bits(run.launch()) == _bits(expected)


# ---- What is written ----


@pytest.mark.parametrize("left_out", NAMES)
def test_what_is_not_wanted_changes_nothing(left_out: str) -> None:
    g = GradientProblem(replace(RAGGED, sinks=(1.0, 0.0, 2.0, -1.0)), has_d_lse=True)
    whole = make(g).launch()
    rest = make(replace(g, wanted=tuple(x for x in NAMES if x != left_out))).launch()
    alone = make(replace(g, wanted=(left_out,))).launch()
    for name in NAMES:
        one = alone if name == left_out else rest
        np.testing.assert_array_equal(getattr(one, name), getattr(whole, name))
        assert getattr(rest if name == left_out else alone, name) is None


def test_adding_to_what_is_there() -> None:
    """The sum is rounded once, the gradient without it another time."""
    g = GradientProblem(RAGGED, adds=NAMES[:3])
    run = make(g)
    found, plain = run.launch(), make(replace(g, adds=())).launch()
    for name in NAMES[:3]:
        total = run.before[name].astype(np.float64) + getattr(plain, name)
        allowed = 2.0**-24 * (np.abs(total) + np.abs(getattr(plain, name)))
        assert (np.abs(getattr(found, name) - total) <= allowed).all()


EMPTY = {
    "no queries in two of three": AttentionProblem(
        3, 5, 4, 2, 1, 4, cu_seqlens_q=(0, 0, 0, 5), cu_seqlens_k=(0, 4, 4, 8)
    ),
    "no queries": AttentionProblem(2, 0, 4, 2, 1, 4),
    "no keys": AttentionProblem(2, 5, 0, 2, 1, 4),
    "neither": AttentionProblem(2, 0, 0, 2, 1, 4),
    "batch 0": AttentionProblem(0, 5, 4, 2, 1, 4),
    "a ragged batch of 0": AttentionProblem(0, 5, 4, 2, 1, 4, cu_seqlens_q=(0,), cu_seqlens_k=(0,)),
    "no tokens": AttentionProblem(2, 5, 4, 2, 1, 4, cu_seqlens_q=(0, 0, 0), cu_seqlens_k=(0, 0, 0)),
    "no keys in use": AttentionProblem(2, 5, 4, 2, 1, 4, seqused_k=(0, 0)),
    "padding alone": AttentionProblem(2, 5, 4, 2, 1, 4, leftpad_k=(4, 2**31 - 1)),
    "more queries than keys": AttentionProblem(1, 9, 2, 2, 1, 4, causal=True),
    "windows before the keys": AttentionProblem(1, 9, 2, 2, 1, 4, window_size=(-1, 0)),
}


@pytest.mark.parametrize("p", EMPTY.values(), ids=EMPTY)
def test_empty_sequences_have_gradients_of_zeros(p: AttentionProblem) -> None:
    g = GradientProblem(replace(p, sinks=(0.5, 1.0)), has_d_lse=True)
    for configs in [(None, None), *configs_for(g)]:
        check(g, configs=configs)
        found = make(g, configs=configs).launch()
        nobody = 0 in (p.seqlen_q, p.seqlen_k, p.batch) or p.seqused_k or p.leftpad_k
        assert not nobody or all((x == 0).all() for x in found)


def test_rows_not_in_use_get_zeros_and_padding_is_left_alone() -> None:
    """Ragged tensors have room behind their last sequence."""
    p = AttentionProblem(
        3, 6, 7, 2, 1, 4, cu_seqlens_q=(0, 4, 4, 10), cu_seqlens_k=(0, 7, 9, 12),
        seqused_q=(2, 0, 6), seqused_k=(6, 2, 0), leftpad_k=(1, 0, 0), causal=True,
    )  # fmt: skip
    g = GradientProblem(p)
    run = make(g)
    room = {"dq": (13, 2, 4), "dk": (15, 1, 4), "dv": (15, 1, 4)}
    larger = {name: np.full(shape, 7, np.float32) for name, shape in room.items()}
    for name, array in larger.items():
        getattr(run.args, name).data = array.ctypes.data
    run.set_workspace(run.sizes()[1])
    check_status(library().flash_backward(run.args, None))
    expected = check(g)
    for name, array in larger.items():
        n = room[name][0] - 3
        np.testing.assert_array_equal(array[:n], getattr(expected, name))
        assert (array[n:] == 7).all()
    assert (larger["dq"][2:4] == 0).all() and (larger["dk"][[0, 6, 9, 10, 11]] == 0).all()
    assert (larger["dk"][1:6] != 0).any(axis=-1).all()


@pytest.mark.parametrize("name", NAMES[:3])
def test_adding_leaves_rows_that_are_not_in_use(name: str) -> None:
    p = replace(RAGGED, seqused_q=(0, 3, 5), seqused_k=(4, 0, 2))
    run = make(GradientProblem(p, adds=(name,)))
    found = getattr(run.launch(), name)
    unused = [3, 4, 5, 6, 7, 8] if name == "dq" else [4, *range(7, 17)]
    np.testing.assert_array_equal(found[unused], run.before[name][unused])


# ---- The workspace ----


@settings(random_problems, max_examples=60)
@given(gradient_problems())
def test_any_workspace_from_least_to_best(g: GradientProblem) -> None:
    """Runs poison it with NaN, so that nothing is read that was not written."""
    for n_threads in (1, 4):
        flashattn.set_num_threads(n_threads)
        run = make(g)
        least, best = run.sizes()
        results = []
        for n_bytes in sorted({least, (least + best) // 2, best, best + 100}):
            run = make(g)
            run.set_workspace(n_bytes)
            results.append(_bits(run.launch()))
        assert results == results[:1] * len(results)
        if least > 0:
            run.set_workspace(least - 1)
            with pytest.raises(flashattn.FlashAttnError, match=f"workspace_size is {least - 1}"):
                run.launch()
            if not run.before:
                for guarded in run.gradients.values():
                    guarded.assert_untouched()


@settings(random_problems, max_examples=60)
@given(gradient_problems())
def test_the_sizes_grow_with_the_problem(g: GradientProblem) -> None:
    run = make(replace(g, forward=replace(g.forward, bias=None)))  # masks have strides
    args, forward = run.args, run.forward
    sizes = _sizes(args)
    assert sizes[0] <= sizes[1]
    for member in ("batch", "seqlen_q", "seqlen_k"):
        before = getattr(forward, member)
        setattr(forward, member, before + 7)
        larger = _sizes(args)
        assert larger[0] >= sizes[0] and larger[1] >= sizes[1], member
        setattr(forward, member, before)
    args.total_q = 10**6
    assert _sizes(args) >= sizes


def _sizes(args: _abi.flash_backward_args_t) -> tuple[int, int]:
    """Asks without data, but for the pointers that say what is wanted."""
    least, best = ctypes.c_uint64(), ctypes.c_uint64()
    check_status(library().flash_backward_workspace_size(args, least, best))
    only = ctypes.c_uint64()
    check_status(library().flash_backward_workspace_size(args, None, only))
    assert only.value == best.value
    check_status(library().flash_backward_workspace_size(args, only, None))
    assert only.value == least.value
    return least.value, best.value


def test_the_workspace_of_a_ragged_batch_follows_its_tokens() -> None:
    """D and the logarithms of sums take 8 bytes for each row of each head."""
    run = make(GradientProblem(RAGGED))
    longest = _sizes(run.args)[0]
    run.args.total_q = RAGGED.cu_seqlens_q[-1]
    assert abs(longest - _sizes(run.args)[0] - 8 * 4 * (3 * 9 - 14)) < 128
    assert _bits(run.launch()) == _bits(make(GradientProblem(RAGGED)).launch())
    run.args.total_q = RAGGED.cu_seqlens_q[-1] - 1
    with pytest.raises(ValueError, match="total_q is 13, and cu_seqlens_q ends with 14 tokens"):
        run.launch()


@pytest.mark.parametrize("wanted", [*((name,) for name in NAMES), NAMES], ids="-".join)
def test_a_bound_of_the_lengths_may_be_far_too_large(wanted: tuple[str, ...]) -> None:
    """A program that does not know its longest sequence gives the most there can be. Neither the
    memory of a call nor what it does grows with that: 2^31 queries and keys of each sequence would
    take longer than a test may."""
    p = replace(RAGGED, n_heads=16, n_heads_kv=16, sinks=(1.0,) * 16)
    g = GradientProblem(p, has_d_lse=True, wanted=wanted)
    exact, loose = make(g), make(g)
    loose.forward.seqlen_q = loose.forward.seqlen_k = 2**31 - 1
    for run in (exact, loose):
        run.args.total_q, run.args.total_k = p.cu_seqlens_q[-1], p.cu_seqlens_k[-1]
    least, _ = loose.sizes()
    assert least < 2**20
    loose.set_workspace(least)
    begin = time.monotonic()
    assert _bits(loose.launch()) == _bits(exact.launch())
    assert time.monotonic() - begin < 3


def test_a_larger_workspace_is_asked_for_without_data() -> None:
    """Sizes do not depend on the data of O, LSE, dO and the gradients."""
    run = make(GradientProblem(PADDED))
    sizes = _sizes(run.args)
    forward = run.forward
    for tensor in (forward.q, forward.k, forward.v, forward.o, run.args.d_o):
        tensor.data = None
    run.args.dq.data = run.args.dk.data = run.args.dv.data = forward.lse = None
    assert _sizes(run.args) == sizes


def test_packed_buffers_compare_with_the_oracle() -> None:
    g = GradientProblem(
        PADDED, has_d_lse=True, layouts=("padded", "heads_first", "padded", "unaligned")
    )
    inputs = make_inputs(PADDED)
    run = make(g, inputs)
    compare_run(g, run, run.launch(), inputs)
