"""torch's scaled_dot_product_attention by flashattn.sdpa, on CUDA devices."""

from __future__ import annotations

import math

import pytest
import torch
from flashattn import sdpa, torch_ops
from flashattn.config import most_d_head_on_cuda

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


SIZES = {  # batch, query heads, K/V heads, queries, keys, d_head
    "equal": (2, 8, 8, 300, 300, 64),
    "one K/V head": (1, 4, 1, 130, 130, 128),
    "more keys": (2, 4, 2, 100, 300, 64),
    "more queries": (2, 4, 2, 300, 100, 64),
    "256": (1, 2, 2, 90, 150, 256),
    "not a multiple of 8": (1, 2, 2, 90, 150, 50),
}


def _inputs(sizes: tuple[int, ...], dtype: torch.dtype, layout: str = "tokens") -> list:
    batch, n_heads, n_heads_kv, seqlen_q, seqlen_k, d_head = sizes
    torch.manual_seed(0)
    tensors = []
    for heads, seqlen in ((n_heads, seqlen_q), (n_heads_kv, seqlen_k), (n_heads_kv, seqlen_k)):
        x = torch.randn(batch, seqlen, heads, d_head, device="cuda", dtype=dtype).transpose(1, 2)
        tensors.append(x if layout == "tokens" else x.contiguous())
    return tensors


def _gradients(inputs: list[torch.Tensor], is_causal: bool) -> list[torch.Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    attend(*leaves, is_causal=is_causal, enable_gqa=True).square().sum().backward()
    return [x.grad for x in leaves]


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Returns the shapes of Q whose gradients the library computes."""
    shapes: list[torch.Size] = []
    own = sdpa._gradients

    def counted(d_o: torch.Tensor, query: torch.Tensor, *more: object, **named: object) -> object:
        shapes.append(query.shape)
        return own(d_o, query, *more, **named)

    monkeypatch.setattr(sdpa, "_gradients", counted)
    return shapes


@pytest.mark.parametrize("layout", ["tokens", "heads"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_gradients(
    backwards: list, name: str, is_causal: bool, dtype: torch.dtype, layout: str
) -> None:
    """They are those of attention in float64, with the same bits in every call."""
    seqlen_q, seqlen_k = SIZES[name][3:5]
    if is_causal and seqlen_q != seqlen_k:
        pytest.skip("torch has no flash kernel for it")
    inputs = _inputs(SIZES[name], dtype, layout)
    torch.nn.attention.activate_flash_attention_impl(sdpa.NAME)
    found, again = (_gradients(inputs, is_causal) for _ in range(2))
    assert len(backwards) == 2 and all(torch.equal(x, y) for x, y in zip(found, again))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = _gradients([x.double() for x in inputs], is_causal)
    for x, y in zip(found, expected):
        assert x.dtype == dtype
        assert float((x.double() - y).norm()) <= 1e-2 * float(y.norm())


def test_either_backward_pass_takes_what_either_forward_pass_leaves(backwards: list) -> None:
    inputs = _inputs(SIZES["equal"], torch.bfloat16)
    expected = _gradients(inputs, True)
    for actives in ((True, False), (False, True)):
        leaves = [x.clone().requires_grad_() for x in inputs]
        for step, is_active in zip(("forward", "backward"), actives):
            torch.nn.attention.restore_flash_attention_impl()
            if is_active:
                torch.nn.attention.activate_flash_attention_impl(sdpa.NAME)
            if step == "forward":
                loss = attend(*leaves, is_causal=True).square().sum()
            else:
                loss.backward()
        for x, y in zip(leaves, expected):
            assert float((x.grad - y).norm()) <= 2e-2 * float(y.norm())
    assert len(backwards) == 1


def test_compiled_graphs_have_gradients(backwards: list) -> None:
    inputs = _inputs(SIZES["equal"], torch.bfloat16)
    torch.nn.attention.activate_flash_attention_impl(sdpa.NAME)
    expected = _gradients(inputs, True)
    leaves = [x.clone().requires_grad_() for x in inputs]

    def loss(*x: torch.Tensor) -> torch.Tensor:
        return attend(*x, is_causal=True).square().sum()

    torch.compile(loss, fullgraph=True, backend="aot_eager")(*leaves).backward()
    assert len(backwards) == 2
    assert all(torch.equal(x.grad, y) for x, y in zip(leaves, expected))


def test_shapes_are_those_that_compilers_expect(backwards: list) -> None:
    operator = torch.ops.aten._scaled_dot_product_flash_attention
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward
    torch.nn.attention.activate_flash_attention_impl(sdpa.NAME)
    for layout in ("heads", "tokens"):
        q, k, v = _inputs(SIZES["more keys"], torch.bfloat16, layout)
        o, lse, *rest = operator(q, k, v)
        found = backward(o, q, k, v, o, lse, *rest[:4], 0.0, False, *rest[4:6])
        for x, y in zip(found, (q, k, v)):
            assert (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)
    assert len(backwards) == 2


@pytest.mark.parametrize("compiles", [False, True])
def test_dropout(backwards: list, compiles: bool) -> None:
    """O and gradients are those of torch_ops with the state that torch's generator gives then."""
    inputs = _inputs(SIZES["equal"], torch.bfloat16)
    torch.nn.attention.activate_flash_attention_impl(sdpa.NAME)

    def loss(*x: torch.Tensor) -> torch.Tensor:
        return attend(*x, dropout_p=0.5, is_causal=True).square().sum()

    if compiles:
        torch._dynamo.reset()
        loss = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = []
    for call in (loss, _loss_of_operators):
        leaves = [x.clone().requires_grad_() for x in inputs]
        torch.manual_seed(11)
        found = call(*leaves)
        found.backward()
        results.append([found, *(x.grad for x in leaves)])
    assert len(backwards) == 1
    assert all(torch.equal(x, y) for x, y in zip(*results))


def _loss_of_operators(*inputs: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in inputs)
    o = torch_ops.flash_attn_func(q, k, v, causal=True, dropout_p=0.5)
    return o.transpose(1, 2).square().sum()


def test_wide_heads() -> None:
    """Calls of torch's operator itself; scaled_dot_product_attention does not give them to it."""
    if most_d_head_on_cuda() < 512:
        pytest.skip("no kernel here has such heads")
    q, k, v = _inputs((1, 4, 2, 90, 150, 512), torch.bfloat16)
    torch.nn.attention.activate_flash_attention_impl(sdpa.NAME)
    o = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[0]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = attend(*(x.double() for x in (q, k, v)), enable_gqa=True)
    torch.testing.assert_close(o.double(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("scale", [0.0, -0.3, 1e-46, 1e39, math.inf, math.nan])
def test_torch_keeps_scales_that_are_not_served(scale: float) -> None:
    q, k, v = torch.randn(3, 2, 8, 100, 64, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        expected = attend(q, k, v, scale=scale)
        torch.nn.attention.activate_flash_attention_impl(sdpa.NAME)
        o = attend(q, k, v, scale=scale)
    torch.testing.assert_close(o, expected, equal_nan=True)
