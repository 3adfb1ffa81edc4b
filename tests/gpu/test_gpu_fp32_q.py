"""A Q of fp32 beside K and V of 16 bits: a call has the bits of one with a Q that was rounded to
the type of K before, whichever kernel serves it."""

from __future__ import annotations

from typing import Any

import flashattn
import pytest
import torch
from device_memory import lengths
from flashattn import torch_ops
from gpu_problems import DTYPES

HEADS = {"dense": (8, 8), "groups": (8, 2)}
# batch, queries, keys: prefill, one query, few queries over many keys, a chunk.
SIZES = ((2, 200, 330), (3, 1, 700), (1, 4, 9000), (1, 128, 4100), (2, 5, 3))
every_dtype = pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES])


def _inputs(
    size: tuple[int, int, int], heads: tuple[int, int], d_head: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, seqlen_q, seqlen_k = size
    generator = torch.Generator("cuda").manual_seed(sum(size) + d_head)
    q = torch.randn(batch, seqlen_q, heads[0], d_head, device="cuda", generator=generator)
    shape = (batch, seqlen_k, heads[1], d_head)
    k, v = (torch.randn(shape, device="cuda", generator=generator).to(dtype) for _ in range(2))
    return q, k, v


def _both(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> None:
    """Compares a call with the one whose Q is rounded before, for both types of O."""
    for out_dtype in ("float32", str(k.dtype).removeprefix("torch.")):
        o, lse = flashattn.flash_attn_func(q, k, v, out_dtype=out_dtype, return_lse=True, **options)
        expected, expected_lse = flashattn.flash_attn_func(
            q.to(k.dtype), k, v, out_dtype=out_dtype, return_lse=True, **options
        )
        assert o.dtype == expected.dtype and not torch.isnan(o).any()
        assert torch.equal(o, expected) and torch.equal(lse, expected_lse)


@every_dtype
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("d_head", [40, 64, 90, 128, 256])
def test_q_is_rounded_once(
    size: tuple[int, int, int], heads: tuple[int, int], d_head: int, dtype: torch.dtype
) -> None:
    _both(*_inputs(size, heads, d_head, dtype), causal=True)


@every_dtype
def test_strides(dtype: torch.dtype) -> None:
    q, k, v = _inputs((2, 70, 130), (4, 2), 64, dtype)
    by_heads = q.transpose(1, 2).contiguous().transpose(1, 2)
    _both(by_heads, k, v)
    spread = torch.empty(2, 70, 4, 67, device="cuda")[..., 1:65]  # not aligned
    _both(spread.copy_(q), k, v)
    _both(q[:, :1].expand(2, 70, 4, 64), k, v)


@every_dtype
def test_masks_sinks_and_softcap(dtype: torch.dtype) -> None:
    q, k, v = _inputs((2, 90, 260), (4, 2), 128, dtype)
    mask = torch.randn(2, 4, 90, 260, device="cuda", dtype=torch.float16)
    sinks = torch.randn(4, device="cuda")
    _both(q, k, v, attn_mask=mask, sinks=sinks)
    _both(q, k, v, softcap=20.0, window_size=(50, 3))


@every_dtype
@pytest.mark.parametrize("lengths_q", [(1, 1, 1), (1, 300, 4), (0, 70, 1)])
def test_ragged_queries_over_pages(lengths_q: tuple[int, ...], dtype: torch.dtype) -> None:
    q, k, v = _inputs((1, sum(lengths_q), 64 * 30), (8, 2), 128, dtype)
    ends = [sum(lengths_q[:i]) for i in range(len(lengths_q) + 1)]
    options = {
        "cu_seqlens_q": lengths(ends),
        "max_seqlen_q": max(lengths_q),
        "seqused_k": lengths((300, 640, 64)),
        "page_table": torch.arange(30, device="cuda", dtype=torch.int32).view(3, 10),
        "causal": True,
    }
    pages = [x.view(30, 64, 2, 128) for x in (k, v)]
    o = flashattn.flash_attn_varlen_func(q[0], *pages, **options)
    rounded = q[0].to(dtype)
    expected = flashattn.flash_attn_varlen_func(rounded, *pages, out_dtype="float32", **options)
    assert o.dtype == torch.float32 and torch.equal(o, expected)
    assert torch.equal(torch_ops.flash_attn_varlen_func(q[0], *pages, **options), expected)


@every_dtype
def test_torch_ops(dtype: torch.dtype) -> None:
    q, k, v = _inputs((2, 70, 130), (4, 2), 64, dtype)
    o = torch_ops.flash_attn_func(q, k, v, causal=True)
    assert o.dtype == torch.float32
    expected = flashattn.flash_attn_func(q.to(dtype), k, v, out_dtype="float32", causal=True)
    assert torch.equal(o, expected)


@pytest.mark.parametrize("size", SIZES)
def test_a_captured_call_rounds_again(size: tuple[int, int, int]) -> None:
    q, k, v = _inputs(size, (8, 2), 128, torch.bfloat16)
    torch_ops.flash_attn_func(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = torch_ops.flash_attn_func(q, k, v)
    q.copy_(torch.randn_like(q))
    graph.replay()
    expected = flashattn.flash_attn_func(q.bfloat16(), k, v, out_dtype="float32")
    assert torch.equal(o, expected)


def test_beyond_fp16_is_infinity() -> None:
    q, k, v = _inputs((1, 1, 1), (1, 1), 64, torch.float16)
    q[:] = 1e6
    k[:] = 1
    assert torch.isnan(flashattn.flash_attn_func(q, k, v)).all()


def test_e4m3_has_no_copy() -> None:
    q, k, v = _inputs((1, 4, 64), (1, 1), 64, torch.float16)
    k, v = (x.to(torch.float8_e4m3fn) for x in (k, v))
    with pytest.raises(NotImplementedError, match="Q FP32"):
        flashattn.flash_attn_func(q, k, v)


def test_each_row_takes_the_copy() -> None:
    """Rows that a caller names are measured with the copy, and need its workspace."""
    q, k, v = _inputs((2, 70, 130), (4, 2), 64, torch.bfloat16)
    out = torch.empty(2, 70, 4, 64, device="cuda")
    config = flashattn.select_config(q, k, v).config
    assert config == flashattn.select_config(q.bfloat16(), k, v, out_dtype="float32").config
    assert flashattn.measure(q, k, v, [config], out=out, n_launches=2)[0] > 0
    small = torch.empty(2 * q.numel(), device="cuda", dtype=torch.uint8)
    with pytest.raises(ValueError, match="workspace has"):
        flashattn.measure(q, k, v, [config], out=out, workspace=small)
