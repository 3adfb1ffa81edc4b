"""The table walk of gradients on a CUDA device: every row that the device runs is compared with the
oracle on the problems of the CPU's walk, in every type and head dimension that it serves, and
refuses every other."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import pytest
from bias_cases import BiasCase
from block_cases import BlockCase
from device_memory import LAYOUTS
from flashattn import DType
from gradient_problems import GradientProblem
from gradient_runs import OPS, check, gradient_rows, serves
from problems import AttentionProblem, make_inputs
from test_backward_table import PROBLEMS as OF_CPU

DTYPES = ("float16", "bfloat16")
HEADS = (64, 128, (192, 128), 256)
LEAST_PROBLEMS = 8  # that each row serves

PROBLEMS = {
    **{name: p for name, p in OF_CPU.items() if not p.diagonal_offset and p.d_head <= 256},
    "several_blocks": AttentionProblem(1, 300, 420, 4, 2, 64, causal=True),
    "several_blocks_full": AttentionProblem(2, 200, 333, 3, 1, 64),
    "several_windows": AttentionProblem(1, 400, 390, 2, 1, 64, window_size=(70, 30)),
    "several_chunks": AttentionProblem(1, 300, 390, 2, 1, 64, causal=True, attention_chunk=96),
    "causal_softcap_sinks": AttentionProblem(
        1, 150, 170, 4, 2, 64, causal=True, softcap=4.0, sinks=(0.0, 2.0, -1.0, 1.0)
    ),
    "many_ragged": AttentionProblem(
        6, 300, 400, 4, 2, 64, causal=True,
        cu_seqlens_q=(0, 0, 130, 130, 131, 431, 500), cu_seqlens_k=(0, 50, 180, 190, 190, 590, 600),
    ),
    "ragged_used": AttentionProblem(
        3, 130, 200, 2, 1, 64, causal=True, cu_seqlens_q=(0, 130, 140, 200),
        cu_seqlens_k=(0, 200, 210, 300), seqused_q=(100, 10, 0), seqused_k=(150, 0, 90),
    ),
    "alibi": AttentionProblem(1, 150, 170, 4, 2, 64, causal=True, bias=BiasCase(slopes=1)),
    "mask_of_numbers": AttentionProblem(2, 90, 150, 4, 2, 64, bias=BiasCase(kind="float32")),
    "mask_of_bits": AttentionProblem(1, 90, 150, 2, 1, 64, bias=BiasCase(kind="bits")),
    "mask_of_blocks": AttentionProblem(2, 90, 150, 4, 2, 64, bias=BlockCase(20, 33, repeats="b")),
    "mask_softcap": AttentionProblem(
        1, 90, 150, 4, 2, 64, causal=True, softcap=5.0, bias=BiasCase(kind="float16", slopes=2)
    ),
}  # fmt: skip


def _typed(p: AttentionProblem, dtype: str, heads: int | tuple[int, int]) -> AttentionProblem:
    """Returns the problem with a d_head of the row's, or with both head dimensions; narrow ones
    stay as they are once."""
    if p.d_head_v is not None or p.d_head in (1, 37, 256):
        return replace(p, dtype=dtype)
    d_head, d_head_v = heads if isinstance(heads, tuple) else (heads, None)
    return replace(p, dtype=dtype, d_head=d_head, d_head_v=d_head_v)


def _rows(op: flashattn.Op, p: AttentionProblem) -> list[flashattn.Config]:
    return [row.config for row in gradient_rows(op) if serves(row.config, p)]


def test_rows_of_every_type_and_head_dimension() -> None:
    for op in OPS:
        found = {(row.config.dtype, row.config.d_head) for row in gradient_rows(op)}
        assert found >= {(t, d) for t in (DType.FP16, DType.BF16) for d in (64, 128, 256)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_row(name: str, heads: int | tuple[int, int], dtype: str) -> None:
    p = _typed(PROBLEMS[name], dtype, heads)
    g = GradientProblem(p, has_d_lse=p.values == "normal")
    dq, dkv = (_rows(op, p) for op in OPS)
    assert dq and dkv
    for i in range(max(len(dq), len(dkv))):
        check(g, dq[i % len(dq)], dkv[i % len(dkv)])


def test_the_walk_takes_every_row() -> None:
    problems = [
        _typed(p, dtype, heads) for p in PROBLEMS.values() for dtype in DTYPES for heads in HEADS
    ]
    for op in OPS:
        for row in gradient_rows(op):
            assert sum(serves(row.config, p) for p in problems) >= LEAST_PROBLEMS, row.config


@pytest.mark.parametrize("op", OPS)
def test_rows_refuse_what_they_do_not_serve(op: flashattn.Op) -> None:
    keyword = "dq_config" if op == flashattn.Op.BACKWARD_DQ else "dkv_config"
    for name in ("full", "window", "softcap", "ragged", "alibi", "d_head_256"):
        p = replace(PROBLEMS[name], dtype="bfloat16")
        for row in gradient_rows(op):
            if not serves(row.config, p):
                with pytest.raises(flashattn.FlashAttnNotImplementedError, match="does not serve"):
                    check(GradientProblem(p), **{keyword: row.config})


# ---- Layouts and types ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("d_head", [64, 72, 50])
def test_layouts(layout: str, d_head: int, dtype: str) -> None:
    p = AttentionProblem(2, 70, 90, 4, 2, d_head, dtype, causal=True, layouts=(layout,) * 4)
    check(GradientProblem(p, has_d_lse=True, layouts=(layout,) * 4))
    check(GradientProblem(p, layouts=(layout,) * 4, wide=(True, True, True)))


@pytest.mark.parametrize("at", range(4))
def test_one_tensor_that_is_not_aligned(at: int) -> None:
    layouts = ["contiguous"] * 4
    layouts[at] = "shifted"
    p = AttentionProblem(
        2, 70, 90, 4, 2, 64, "bfloat16", cu_seqlens_q=(0, 70, 100), cu_seqlens_k=(0, 30, 120)
    )
    check(GradientProblem(replace(p, layouts=tuple(layouts)), layouts=tuple(layouts)))
    check(GradientProblem(p, layouts=tuple(layouts)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wide", [(False,) * 3, (True, False, True), (True,) * 3])
@pytest.mark.parametrize("q_dtype, o_dtype", [("float32", None), (None, "float32")])
def test_tensors_of_fp32_beside_16_bits(
    q_dtype: str | None, o_dtype: str | None, wide: tuple[bool, bool, bool], dtype: str
) -> None:
    """A Q of fp32 is rounded to the type of K, which changes none of these numbers."""
    p = AttentionProblem(1, 80, 100, 4, 2, 64, dtype, q_dtype, o_dtype, causal=True)
    q, k, v = make_inputs(p)
    q = q.astype(k.dtype).astype(q.dtype)
    check(GradientProblem(p, wide=wide), inputs=[q, k, v])


@pytest.mark.parametrize("d_head", [64, 128, 256, 50])
def test_adding(d_head: int) -> None:
    p = AttentionProblem(2, 70, 90, 4, 2, d_head, "bfloat16", causal=True, seqused_k=(90, 31))
    check(GradientProblem(p, wide=(True,) * 3, adds=("dq", "dk", "dv"), wanted=("dq", "dk", "dv")))


@pytest.mark.parametrize("wanted", [("dq",), ("dk",), ("dv",), ("dk", "d_sinks"), ("d_sinks",)])
def test_some_gradients(wanted: tuple[str, ...]) -> None:
    p = AttentionProblem(2, 70, 90, 4, 2, 64, "float16", sinks=(0.0, 1.0, -1.0, 2.0))
    check(GradientProblem(p, wanted=wanted))
