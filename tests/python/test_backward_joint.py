"""All gradients of a call together have the bits that each has by itself, with any workspace, and
sums of many rows and keys are as exact as short ones."""

from __future__ import annotations

import flashattn
import numpy as np
import pytest

OPTIONS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_size": (40, 70)},
    "chunks": {"attention_chunk": 100},
    "softcap": {"softcap": 2.0, "causal": True},
    "slopes": {"alibi_slopes": np.array([0.1, 0.3, 0.01, 0.0], np.float32)},
    "mask": {"attn_mask": np.random.default_rng(1).random((2, 4, 300, 400)) < 0.3},
    "offset": {"causal": True, "diagonal_offset": -120},
}
EVERY_OPTION = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def _draw(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return np.random.default_rng(len(shape) + shape[1]).standard_normal(shape).astype(dtype)


def _problem(options: dict, dtype: object = np.float32) -> tuple:
    q, k = _draw(2, 300, 4, 40, dtype=dtype), _draw(2, 400, 2, 40, dtype=dtype)
    v, d_o = _draw(2, 400, 2, 72, dtype=dtype), _draw(2, 300, 4, 72, dtype=dtype)
    o, lse = flashattn.flash_attn_func(q, k, v, return_lse=True, **options)
    return d_o, q, k, v, o, lse


def _same(found: object, expected: object) -> None:
    for name in ("dq", "dk", "dv"):
        if getattr(found, name) is not None:
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)


@EVERY_OPTION
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_one_gradient_alone(options: dict, dtype: object) -> None:
    call = _problem(options, dtype)
    together = flashattn.flash_attn_backward(*call, **options)
    for wanted in ("dq", "dk", "dv"):
        others = {name: False for name in ("dq", "dk", "dv") if name != wanted}
        _same(flashattn.flash_attn_backward(*call, **others, **options), together)


def _sizes(call: tuple) -> tuple[int, int]:
    """Returns the least workspace that flash_attn_backward() takes, and one that is never short."""
    least, enough = 0, 1 << 28
    while least + 1 < enough:
        size = (least + enough) // 2
        try:
            flashattn.flash_attn_backward(*call, workspace=np.empty(size, np.uint8))
            enough = size
        except flashattn.FlashAttnError:
            least = size
    return enough, 1 << 28


def test_workspaces() -> None:
    call = _problem({})
    expected = flashattn.flash_attn_backward(*call)
    for size in _sizes(call):
        workspace = np.full(size, 0xFF, np.uint8)
        _same(flashattn.flash_attn_backward(*call, workspace=workspace), expected)


def _equal_tokens(n: int, columns: int) -> np.ndarray:
    """Returns tokens of one head, whose sums in fp32 would be rounded one way for long."""
    token = np.linspace(0.1, 0.9, columns, dtype=np.float32)
    return np.repeat(token[None, None, None], n, axis=1)


@pytest.mark.parametrize(("len_q", "len_k"), [(1, 400_000), (400_000, 1)])
def test_long_sums(len_q: int, len_k: int) -> None:
    q, k = _equal_tokens(len_q, 4), _equal_tokens(len_k, 4)
    v, d_o = _equal_tokens(len_k, 8), _equal_tokens(len_q, 8)
    o, lse = flashattn.flash_attn_func(q, k, v, return_lse=True)
    found = flashattn.flash_attn_backward(d_o, q, k, v, np.zeros_like(o), lse)
    q, k, v, d_o = (x[0, 0, 0].astype(np.float64) for x in (q, k, v, d_o))
    p = np.exp(q @ k / 2 - lse[0, 0, 0])
    ds = p * (d_o @ v)
    np.testing.assert_allclose(found.dv[0, 0, 0], len_q * p * d_o, rtol=5e-6)
    np.testing.assert_allclose(found.dk[0, 0, 0], len_q * ds * q / 2, rtol=5e-6)
    np.testing.assert_allclose(found.dq[0, 0, 0], len_k * ds * k / 2, rtol=5e-6)
