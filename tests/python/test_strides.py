"""Strides of axes of length 1 may be anything, because nothing lies one step along such an axis.
Other strides, pages and lengths in arrays say where keys lie, and no bit of a result depends on it.
"""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
from flashattn._library import check as check_status
from flashattn._library import library
from flashattn._problem import Problem as CallArguments
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from memory import DTYPES, E4M3, Guarded, GuardedBytes
from paging import KINDS, PagedProblem, run_paged
from problems import AttentionProblem, configs_for, configs_for_pages, make_inputs, run
from strategies import examples, random_problems

HUGE = 2**62 + 8
ONE = AttentionProblem(1, 40, 300, 1, 1, 64, causal=True)
DECODE = AttentionProblem(1, 1, 2100, 8, 2, 64)
# The axes of length 1 in each: batch and heads; batch, queries; keys; batch, heads and K/V heads of
# many rows.
PROBLEMS = [
    ONE,
    replace(ONE, batch=3, seqlen_q=200),
    replace(ONE, batch=2, n_heads=4, n_heads_kv=2, seqlen_k=1),
    DECODE,
    replace(DECODE, n_heads=2, batch=2),
    replace(DECODE, n_heads=1, n_heads_kv=1, seqlen_k=1),
]


def run_with_huge_strides(p: AttentionProblem, inputs: list[np.ndarray], config: str) -> np.ndarray:
    call = CallArguments(*inputs, p.call_options())
    o = Guarded(call.o_shape, inputs[0].dtype)
    lse = Guarded(call.lse_shape, np.float32)
    call.set_output(o.array, lse.array)
    for tensor, seqlen, n_heads in (
        (call.args.q, p.seqlen_q, p.n_heads),
        (call.args.k, p.seqlen_k, p.n_heads_kv),
        (call.args.v, p.seqlen_k, p.n_heads_kv),
        (call.args.o, p.seqlen_q, p.n_heads),
    ):
        tensor.stride_batch = HUGE if p.batch == 1 else tensor.stride_batch
        tensor.stride_seq = HUGE if seqlen == 1 else tensor.stride_seq
        tensor.stride_head = HUGE if n_heads == 1 else tensor.stride_head
    workspace = GuardedBytes(1 << 24)
    call.args.workspace, call.args.workspace_size = workspace.address, workspace.size
    check_status(library().flash_forward(call.args, flashattn.config.resolve(config), None))
    workspace.assert_guards()
    return o.take()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("p", PROBLEMS, ids=str)
def test_strides_of_axes_of_length_1_do_not_count(p: AttentionProblem, dtype: str) -> None:
    p = replace(p, dtype=dtype)
    inputs = make_inputs(p)
    for config in configs_for(p):
        expected, _ = run(p, inputs, config)
        assert run_with_huge_strides(p, inputs, config).tobytes() == expected.tobytes(), config


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_ragged_tensor_of_one_token_has_no_stride_either(dtype: str) -> None:
    p = replace(DECODE, dtype=dtype, cu_seqlens_q=(0, 1), seqlen_q=1)
    inputs = make_inputs(p)
    for config in configs_for(p):
        expected, _ = run(p, inputs, config)
        assert run_with_huge_strides(p, inputs, config).tobytes() == expected.tobytes(), config


# ---- Where keys lie ----------------------------------------------------------------------------

# Twenty-five keys, of which the two rows see others.
WINDOW = AttentionProblem(1, 2, 25, 1, 1, 128, window_size=(19, 2))
# Both are split by their lengths, and not by the keys that rows see.
WINDOWED_BLOCKS = AttentionProblem(1, 100, 2000, 24, 24, 8, window_size=(50, 0))
WINDOWED_GROUP = AttentionProblem(1, 40, 2100, 72, 24, 8, "bfloat16", window_size=(70, 3))
MOST_MULTIPLICATIONS = 1e8


def apart(x: np.ndarray, gap: int, heads_first: bool) -> np.ndarray:
    """Returns the same numbers of [batch, seq, head, d] with a gap of some elements after each
    token; heads_first: of a head, instead of all heads."""
    batch, seqlen, n_heads, d = x.shape
    if heads_first:
        room = np.empty((batch, n_heads, seqlen, d + gap), x.dtype)
        view = room[..., :d].swapaxes(1, 2)
    else:
        room = np.empty((batch, seqlen, n_heads * d + gap), x.dtype)
        view = room[..., : n_heads * d].reshape(x.shape)
        assert np.shares_memory(view, room)
    view[...] = x
    return view


def bits(results: tuple[np.ndarray, np.ndarray]) -> tuple[bytes, bytes]:
    return results[0].tobytes(), results[1].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gap", [3, 8, 64, 128])
def test_bits_do_not_depend_on_the_stride_of_keys(gap: int, dtype: str) -> None:
    p = replace(WINDOW, dtype=dtype)
    q, k, v = make_inputs(p)
    for config in configs_for(p):
        expected = bits(run(p, [q, k, v], config))
        assert bits(run(p, [q, apart(k, gap, False), v], config)) == expected, config
        assert bits(run(p, [q, k, apart(v, gap, True)], config)) == expected, config


@pytest.mark.parametrize("p", [WINDOWED_BLOCKS, WINDOWED_GROUP], ids=str)
def test_bits_do_not_depend_on_whether_lengths_are_in_an_array(p: AttentionProblem) -> None:
    for config in configs_for(p):
        expected = bits(run(p, config=config))
        assert bits(run(replace(p, seqused_k=(p.seqlen_k,)), config=config)) == expected, config


@st.composite
def dense_problems(draw: st.DrawFn) -> AttentionProblem:
    """Draws problems of all ways to read keys: in place, packed for a task or for several."""
    n_heads_kv = draw(st.sampled_from([1, 2, 3, 24]))
    side = st.one_of(st.just(-1), st.integers(0, 40), st.integers(0, 400))
    p = AttentionProblem(
        batch=draw(st.integers(1, 2)),
        seqlen_q=draw(st.one_of(st.integers(1, 6), st.integers(1, 130))),
        seqlen_k=draw(st.one_of(st.integers(1, 300), st.integers(1000, 2600))),
        n_heads=n_heads_kv * draw(st.sampled_from([1, 1, 2, 3, 8])),
        n_heads_kv=n_heads_kv,
        d_head=draw(st.one_of(st.sampled_from([8, 64, 128]), st.integers(1, 136))),
        dtype=draw(st.sampled_from((*DTYPES, E4M3))),
        causal=draw(st.booleans()),
        window_size=draw(st.tuples(side, side)),
        seed=draw(st.integers(0, 2**32 - 1)),
    )
    assume(float(np.prod(p.q_shape)) * p.seqlen_k <= MOST_MULTIPLICATIONS)
    return p


@settings(random_problems, max_examples=examples(300))
@given(dense_problems(), st.data())
def test_bits_do_not_depend_on_where_keys_lie(p: AttentionProblem, data: st.DataObject) -> None:
    q, k, v = make_inputs(p)
    config = data.draw(st.sampled_from([None, *configs_for_pages(p)]), label="config")
    gaps = st.one_of(st.sampled_from([0, 8, 128, 256, 512]), st.integers(0, 300))
    gap_k, gap_v = data.draw(st.tuples(gaps, gaps), label="gaps")
    k_heads_first, v_heads_first = data.draw(st.tuples(*[st.booleans()] * 2), label="heads first")
    expected = bits(run(p, [q, k, v], config))
    there = [q, apart(k, gap_k, k_heads_first), apart(v, gap_v, v_heads_first)]
    assert bits(run(p, there, config)) == expected
    lengths = replace(p, seqused_k=(p.seqlen_k,) * p.batch)
    assert bits(run(lengths, there, config)) == expected
    page_size = data.draw(st.one_of(st.sampled_from([16, 64]), st.integers(2, 40)), label="page")
    order = data.draw(st.sampled_from(["contiguous", "heads_first"]), label="order")
    paged = PagedProblem(
        replace(p, layouts=("contiguous", order, order, "contiguous")),
        page_size,
        data.draw(st.sampled_from(KINDS), label="kind"),
    )
    assert bits(run_paged(paged, [q, k, v], config)) == expected
