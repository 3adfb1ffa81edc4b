"""Strides of axes of length 1 may be anything, because nothing lies one step along such an axis."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
from flashattn._library import check as check_status
from flashattn._library import library
from flashattn._problem import Problem as CallArguments
from memory import Guarded, GuardedBytes
from problems import AttentionProblem, configs_for, make_inputs, run

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
    call = CallArguments(*inputs, **p.call_options())
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
