"""The table walk of gradients: every row of the two operations that this machine can run is
compared with the oracle, on problems that each take another path, and of each pair of types that it
serves.
"""

from __future__ import annotations

from dataclasses import replace

import flashattn
import pytest
from gradient_problems import OPS, GradientProblem, check, configs_for, gradient_kernels
from memory import DTYPES
from problems import AttentionProblem

PROBLEMS = {
    "one_of_all": AttentionProblem(),
    "full": AttentionProblem(2, 35, 70, 4, 2),
    "tile_edges": AttentionProblem(1, 64, 128, 2, 2, 32),
    "past_tile_edges": AttentionProblem(1, 65, 129, 2, 1, 32),
    "causal": AttentionProblem(1, 100, 100, 2, 2, 16, causal=True),
    "causal_more_keys": AttentionProblem(1, 37, 110, 2, 1, 24, causal=True),
    "causal_more_queries": AttentionProblem(1, 110, 37, 2, 1, 24, causal=True),
    "window": AttentionProblem(1, 90, 110, 2, 1, 20, window_size=(20, 7)),
    "window_of_one_key": AttentionProblem(1, 13, 61, 1, 1, 8, causal=True, window_size=(0, -1)),
    "chunks": AttentionProblem(1, 70, 90, 2, 1, 16, causal=True, attention_chunk=32),
    "offset_back": AttentionProblem(2, 40, 60, 2, 1, 16, causal=True, diagonal_offset=-35),
    "offset_on": AttentionProblem(2, 60, 40, 2, 1, 16, window_size=(9, 2), diagonal_offset=17),
    "softcap": AttentionProblem(1, 40, 40, 2, 2, 32, softcap=3.0),
    "scale": AttentionProblem(1, 40, 40, 2, 2, 32, softmax_scale=0.05),
    "sinks": AttentionProblem(1, 40, 40, 4, 2, 32, sinks=(0.0, 3.0, -2.0, 30.0), causal=True),
    "seqused_k": AttentionProblem(3, 40, 50, 2, 1, 16, seqused_k=(0, 1, 37), causal=True),
    "seqused_q": AttentionProblem(3, 40, 50, 2, 1, 16, seqused_q=(0, 1, 37), causal=True),
    "leftpad_k": AttentionProblem(3, 40, 50, 2, 1, 16, leftpad_k=(0, 17, 60), causal=True),
    "ragged": AttentionProblem(
        3, 50, 70, 4, 2, 32, cu_seqlens_q=(0, 1, 1, 51), cu_seqlens_k=(0, 40, 60, 130)
    ),
    "ragged_queries": AttentionProblem(2, 33, 65, 2, 2, 16, cu_seqlens_q=(0, 33, 40), causal=True),
    "ragged_keys": AttentionProblem(2, 33, 80, 2, 2, 16, cu_seqlens_k=(0, 80, 83), causal=True),
    "many_heads": AttentionProblem(10, 8, 9, 32, 32, 8),
    "d_head_1": AttentionProblem(1, 20, 30, 2, 1, 1),
    "d_head_37": AttentionProblem(1, 20, 30, 2, 1, 37),
    "d_head_256": AttentionProblem(1, 20, 30, 2, 1, 256),
    "d_head_520": AttentionProblem(1, 10, 20, 1, 1, 520),
    "d_head_v": AttentionProblem(1, 20, 30, 4, 2, 48, d_head_v=33),
    "identical_keys": AttentionProblem(1, 40, 90, 1, 1, 32, values="identical_keys"),
    "one_large_key": AttentionProblem(1, 40, 90, 1, 1, 32, values="one_large_key"),
    "growing": AttentionProblem(1, 40, 90, 1, 1, 32, values="growing"),
}
# Types of Q and O beside one of K and V.
WIDE = [(None, None), ("float32", None), (None, "float32"), ("float32", "float32")]


def _served(op: flashattn.Op) -> set[int]:
    return {kernel.config.dtype for kernel in gradient_kernels(op)}


def test_each_operation_has_runnable_kernels_of_every_type() -> None:
    dtypes = {flashattn._abi.FLASH_DTYPE_FP16, flashattn._abi.FLASH_DTYPE_BF16}
    for op in OPS:
        assert _served(op) == dtypes | {flashattn._abi.FLASH_DTYPE_FP32}


def test_the_walk_takes_every_row() -> None:
    walked = {
        config
        for dtype in DTYPES
        for configs in configs_for(GradientProblem(AttentionProblem(dtype=dtype)))
        for config in configs
    }
    assert walked == {str(kernel.config) for op in OPS for kernel in gradient_kernels(op)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)
def test_every_kernel(p: AttentionProblem, dtype: str) -> None:
    g = GradientProblem(replace(p, dtype=dtype), has_d_lse=p.values == "normal")
    for configs in configs_for(g):
        check(g, configs=configs)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("wide", [(False,) * 3, (True, False, True), (True,) * 3])
@pytest.mark.parametrize("q_dtype, o_dtype", WIDE)
def test_tensors_of_fp32_beside_16_bits(
    q_dtype: str | None, o_dtype: str | None, wide: tuple[bool, bool, bool], dtype: str
) -> None:
    p = AttentionProblem(1, 40, 50, 4, 2, 32, dtype, q_dtype, o_dtype, causal=True)
    for configs in configs_for(GradientProblem(p)):
        check(GradientProblem(p, wide=wide), configs=configs)


def test_a_row_of_another_operation_is_refused() -> None:
    p = AttentionProblem(1, 3, 4, 2, 1, 8)
    dq, dkv = configs_for(GradientProblem(p))[0]
    for configs, computes, asks in (
        ((dkv, dkv), "backward_dkv", "backward_dq"),
        ((dq, dq), "backward_dq", "backward_dkv"),
        (("REFERENCE (FP32, any, 16, 1): causal+window+softcap+varlen+paged+bias", dkv),
         "forward", "backward_dq"),
    ):  # fmt: skip
        with pytest.raises(flashattn.FlashAttnNotImplementedError) as refusal:
            check(GradientProblem(p), configs=configs)
        assert f"computes {computes}, the call {asks}" in str(refusal.value)
