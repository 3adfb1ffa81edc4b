"""Merging partial results in CUDA memory."""

from __future__ import annotations

import itertools

import flashattn
import numpy as np
import pytest
import torch
from device_memory import Guarded, download, upload
from flashattn import flash_attn_func, flash_combine, oracle
from memory import dtype_of

DTYPES = ("float32", "float16", "bfloat16")
# The error of rounding to the result's type, and of a few float32 operations.
TOLERANCE = {"float32": 1e-5, "float16": 6e-4, "bfloat16": 5e-3}
SHAPES = [
    (3, 2, 37, 4, 64),
    (1, 1, 5, 2, 8),
    (33, 2, 3, 2, 40),
    (2, 3, 100, 5, 37),
    (4, 1, 9, 2, 256),
    (2, 1, 9, 2, 1000),
]


def _partials(shape: tuple, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    n, batch, seqlen, heads, _ = shape
    rng = np.random.default_rng(sum(shape))
    o = rng.standard_normal(shape).astype(dtype_of(dtype))
    lse = (5 * rng.standard_normal((n, batch, heads, seqlen))).astype(np.float32)
    lse[rng.random(lse.shape) < 0.2] = -np.inf
    return o, lse


def _check(o_partial: np.ndarray, lse_partial: np.ndarray, dtype: str, **layouts: str) -> None:
    o = Guarded(o_partial.shape[1:], dtype, layouts.get("output", "contiguous"))
    lse = Guarded(lse_partial.shape[1:], "float32")
    source = upload(o_partial, layouts.get("input", "contiguous"))
    flash_combine(source, torch.from_numpy(lse_partial).cuda(), out=o.tensor, lse=lse.tensor)
    expected, expected_lse = oracle.combine(o_partial, lse_partial)
    error = np.abs(o.take().astype(np.float64) - expected)
    assert (error <= TOLERANCE[dtype] * np.maximum(1, np.abs(expected))).all()
    merged_lse = lse.take()
    np.testing.assert_array_equal(np.isneginf(merged_lse), np.isneginf(expected_lse))
    finite = np.isfinite(expected_lse)
    np.testing.assert_allclose(merged_lse[finite], expected_lse[finite], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtypes", list(itertools.product(DTYPES, DTYPES)), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_the_oracle(shape: tuple, dtypes: tuple[str, str]) -> None:
    _check(*_partials(shape, dtypes[0]), dtypes[1])


@pytest.mark.parametrize("layout", ["padded", "heads_first", "padded_by_three", "shifted"])
def test_layouts(layout: str) -> None:
    partials = _partials((3, 2, 37, 4, 64), "bfloat16")
    _check(*partials, "bfloat16", input=layout)
    _check(*partials, "float16", output=layout)


def test_rows_without_weight_are_not_looked_at() -> None:
    o, lse = _partials((3, 1, 40, 2, 64), "float16")
    lse[1] = -np.inf
    o[1] = np.nan
    lse[:, :, 0, 2] = -np.inf  # a row that no partial saw
    o[:, :, 2, 0] = np.nan
    _check(o, lse, "float16")


def test_no_partials_and_no_rows() -> None:
    o, lse = flash_combine(
        torch.empty(0, 2, 5, 4, 8, device="cuda"),
        torch.empty(0, 2, 4, 5, device="cuda"),
        return_lse=True,
    )
    assert (o == 0).all() and (lse == -torch.inf).all()
    nothing = torch.empty(2, 0, 5, 4, 8, device="cuda")
    assert flash_combine(nothing, torch.empty(2, 0, 4, 5, device="cuda")).shape == (0, 5, 4, 8)


def test_more_than_65535_rows_of_every_kind() -> None:
    o = torch.randn(2, 70_000, 1, 3, 8, device="cuda", dtype=torch.float16)
    lse = torch.randn(2, 70_000, 3, 1, device="cuda")
    expected, _ = oracle.combine(download(o), download(lse))
    assert np.abs(download(flash_combine(o, lse)) - expected).max() < 6e-3


@pytest.mark.parametrize("options", [{}, {"softcap": 4.0}, {"softmax_scale": 0.1}], ids=str)
def test_attention_over_parts_of_the_keys_merges_to_the_whole(options: dict) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(2, n, h, 64, device="cuda", generator=generator).half()
        for n, h in ((90, 4), (300, 2), (300, 2))
    )
    parts = [slice(0, 1), slice(1, 200), slice(200, 200), slice(200, 300)]
    results = [
        flash_attn_func(q, k[:, part], v[:, part], return_lse=True, **options) for part in parts
    ]
    o, lse = flash_combine(*(torch.stack(x) for x in zip(*results)), return_lse=True)
    whole, whole_lse = flash_attn_func(q, k, v, return_lse=True, **options)
    assert (o - whole).abs().max() < 2e-3
    torch.testing.assert_close(lse, whole_lse, rtol=1e-5, atol=1e-5)


def test_devices_that_differ_are_refused() -> None:
    o, lse = torch.zeros(2, 1, 3, 2, 8, device="cuda"), torch.zeros(2, 1, 2, 3)
    with pytest.raises(ValueError, match="lse_partial is on the CPU, o_partial on CUDA device 0"):
        flash_combine(o, lse)
    with pytest.raises(ValueError, match="out is on the CPU, o_partial on CUDA device 0"):
        flash_combine(o, lse.cuda(), out=torch.empty(1, 3, 2, 8))


def test_repeats_are_bit_identical() -> None:
    o, lse = torch.randn(5, 2, 99, 4, 64, device="cuda"), torch.randn(5, 2, 4, 99, device="cuda")
    first = flash_combine(o, lse)
    assert all(torch.equal(first, flash_combine(o, lse)) for _ in range(4))
    assert flashattn.device_info(flashattn.Device.CUDA_CURRENT).compute_capability >= 80
