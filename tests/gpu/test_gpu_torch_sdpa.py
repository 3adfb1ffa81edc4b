"""torch's scaled_dot_product_attention by flashattn.sdpa, on CUDA devices."""

from __future__ import annotations

import math

import pytest
import torch
from flashattn import sdpa

attend = torch.nn.functional.scaled_dot_product_attention
FLASH = torch.nn.attention.SDPBackend.FLASH_ATTENTION


@pytest.fixture(autouse=True)
def only_flash():
    sdpa.register()
    with torch.nn.attention.sdpa_kernel(FLASH):
        yield
    torch.nn.attention.restore_flash_attention_impl()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("seqlens", "is_causal"),
    [((300, 300), False), ((300, 300), True), ((100, 300), False), ((300, 100), False)],
    ids=str,
)
def test_agrees_with_torch(seqlens: tuple[int, int], dtype: torch.dtype, is_causal: bool) -> None:
    """torch has no flash kernel for a causal mask between different lengths."""
    q, k, v = (
        torch.randn(2, seqlen, 8, 64, device="cuda", dtype=dtype).transpose(1, 2)
        for seqlen in (seqlens[0], seqlens[1], seqlens[1])
    )
    with torch.no_grad():
        expected = attend(q, k, v, is_causal=is_causal)
        torch.nn.attention.activate_flash_attention_impl(sdpa.NAME)
        o = attend(q, k, v, is_causal=is_causal)
        compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
        again = compiled(q, k, v, is_causal=is_causal)
    assert o.stride() == expected.stride() and torch.equal(again, o)
    torch.testing.assert_close(o, expected, atol=2e-2, rtol=2e-2)


def test_gradients_are_torchs() -> None:
    torch.nn.attention.activate_flash_attention_impl(sdpa.NAME)
    x = torch.randn(1, 2, 100, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    attend(x, x, x, is_causal=True).sum().backward()
    assert bool(x.grad.isfinite().all())


@pytest.mark.parametrize("scale", [0.0, -0.3, 1e-46, 1e39, math.inf, math.nan])
def test_torch_keeps_scales_that_are_not_served(scale: float) -> None:
    q, k, v = torch.randn(3, 2, 8, 100, 64, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        expected = attend(q, k, v, scale=scale)
        torch.nn.attention.activate_flash_attention_impl(sdpa.NAME)
        o = attend(q, k, v, scale=scale)
    torch.testing.assert_close(o, expected, equal_nan=True)
