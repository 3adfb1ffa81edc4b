"""torch's scaled_dot_product_attention by flashattn.sdpa: results, what is left to torch's own
kernels, gradients, compilers, and that torch gets its kernels back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not hasattr(torch.nn.attention, "register_flash_attention_impl"):
    pytest.skip("torch.nn.attention has no registry", allow_module_level=True)

from flashattn import sdpa  # noqa: E402
from torch_gradients import assert_close  # noqa: E402

attend = torch.nn.functional.scaled_dot_product_attention
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# batch, query heads, K/V heads, queries, keys, d_head
SIZES = [(2, 4, 4, 33, 33, 64), (1, 4, 2, 7, 20, 40), (2, 6, 1, 20, 7, 128), (1, 2, 2, 1, 300, 64)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Size]]:
    """Makes the library's attention active, and returns the shapes of Q of its calls."""
    shapes: list[torch.Size] = []
    own = sdpa._attend

    def counted(query: torch.Tensor, *more: object, **named: object) -> torch.Tensor:
        shapes.append(query.shape)
        return own(query, *more, **named)

    monkeypatch.setattr(sdpa, "_attend", counted)
    sdpa.register()
    torch.nn.attention.activate_flash_attention_impl(sdpa.NAME)
    yield shapes
    torch.nn.attention.restore_flash_attention_impl()


@pytest.fixture
def backwards(calls: list, monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Returns the shapes of Q whose gradients the library computes."""
    shapes: list[torch.Size] = []
    own = sdpa._gradients

    def counted(d_o: torch.Tensor, query: torch.Tensor, *more: object, **named: object) -> object:
        shapes.append(query.shape)
        return own(d_o, query, *more, **named)

    monkeypatch.setattr(sdpa, "_gradients", counted)
    return shapes


def make_inputs(sizes: tuple[int, ...], dtype: torch.dtype, layout: str) -> list[torch.Tensor]:
    batch, n_heads, n_heads_kv, seqlen_q, seqlen_k, d_head = sizes
    random = torch.Generator().manual_seed(0)
    tensors = []
    for heads, seqlen in ((n_heads, seqlen_q), (n_heads_kv, seqlen_k), (n_heads_kv, seqlen_k)):
        x = torch.randn(batch, seqlen, heads, d_head, generator=random).to(dtype).transpose(1, 2)
        tensors.append(x if layout == "tokens" else x.contiguous())
    return tensors


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, scale: float
) -> torch.Tensor:
    """Attention as its definition says, in float64."""
    k, v = (x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = scale * q.double() @ k.transpose(-1, -2)
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("layout", ["heads", "tokens"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_agrees_with_float64(
    calls: list, sizes: tuple[int, ...], dtype: torch.dtype, is_causal: bool, layout: str
) -> None:
    q, k, v = make_inputs(sizes, dtype, layout)
    for scale in (None, 0.3):
        o = attend(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=True)
        expected = reference(q, k, v, is_causal, scale or sizes[-1] ** -0.5)
        assert o.dtype == dtype and o.stride() == torch.empty_like(q).stride()
        torch.testing.assert_close(o.double(), expected, atol=TOLERANCES[dtype], rtol=1e-2)
    assert calls == [q.shape, q.shape]


@pytest.mark.parametrize("what", ["dropout", "mask", "float64"])
def test_torch_keeps_what_is_not_served(calls: list, what: str) -> None:
    q, k, v = make_inputs(SIZES[0], torch.float64 if what == "float64" else torch.float32, "heads")
    mask = torch.zeros(33, 33).requires_grad_() if what == "mask" else None
    o = attend(q, k, v, attn_mask=mask, dropout_p=0.5 if what == "dropout" else 0.0)
    assert calls == [] and o.shape == q.shape


# A scale that the library does not serve: not positive in float32, or not finite there.
UNSERVED_SCALES = [0, 0.0, -0.0, -0.3, 1e-46, -1e-50, 1e39, 1e300, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("scale", UNSERVED_SCALES)
def test_torch_keeps_scales_that_are_not_served(calls: list, scale: float) -> None:
    inputs = make_inputs(SIZES[0], torch.float32, "tokens")
    o = attend(*inputs, scale=scale)
    leaves = [x.clone().requires_grad_() for x in inputs]
    attend(*leaves, scale=scale).sum().backward()
    masked = attend(*inputs, attn_mask=torch.zeros(33, 33), scale=scale)
    assert calls == []
    torch.nn.attention.restore_flash_attention_impl()
    torch.testing.assert_close(o, attend(*inputs, scale=scale), equal_nan=True)
    expected = attend(*inputs, attn_mask=torch.zeros(33, 33), scale=scale)
    torch.testing.assert_close(masked, expected, equal_nan=True)
    if scale == 0:
        torch.testing.assert_close(o, inputs[2].mean(2, keepdim=True).expand_as(o))


@pytest.mark.parametrize("scale", [1e-45, 1e-30, 3.4e38])
def test_scales_at_the_ends_of_float32_are_served(calls: list, scale: float) -> None:
    q, k, v = make_inputs(SIZES[0], torch.float32, "tokens")
    q = torch.zeros_like(q) if scale > 1 else q
    torch.testing.assert_close(attend(q, k, v, scale=scale), v.mean(2, keepdim=True).expand_as(q))
    assert calls == [q.shape]


@pytest.mark.parametrize("device", ["CPU", "CUDA"])
def test_what_is_not_served_is_told_by_device(device: str) -> None:
    q, k, v = make_inputs(SIZES[0], torch.float16, "tokens")
    assert sdpa._is_served(q, k, v, 0.0, None, device)
    assert sdpa._is_served(q, k, v, 0.0, 0.3, device)
    for scale in UNSERVED_SCALES:
        assert not sdpa._is_served(q, k, v, 0.0, scale, device)
    assert not sdpa._is_served(*(x[..., :0] for x in (q, k, v)), 0.0, None, device)


@pytest.mark.parametrize("scale", [None, 0.5])
def test_torch_keeps_heads_of_no_elements(calls: list, scale: float | None) -> None:
    x = torch.empty(2, 4, 9, 0)
    assert attend(x, x, x, scale=scale).shape == x.shape
    assert calls == []


@pytest.mark.parametrize("axes", ["rows", "heads", "sequences", "keys"])
@pytest.mark.parametrize("kind", ["bool", "numbers"])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_masks_agree_with_float64(calls: list, dtype: torch.dtype, kind: str, axes: str) -> None:
    q, k, v = make_inputs(SIZES[1], dtype, "tokens")
    shape = {"rows": (7, 20), "heads": (1, 4, 7, 20), "sequences": (1, 1, 7, 20), "keys": (1, 20)}
    random = torch.Generator().manual_seed(1)
    mask = torch.rand(shape[axes], generator=random) < 0.7
    mask[..., 0] = True
    added = torch.where(mask, torch.randn(mask.shape, generator=random), -torch.inf).to(dtype)
    given = mask if kind == "bool" else added
    o = attend(q, k, v, attn_mask=given, enable_gqa=True)
    k2, v2 = (x.double().repeat_interleave(2, 1) for x in (k, v))
    scores = q.double() @ k2.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask, -torch.inf) if kind == "bool" else scores + added.double()
    torch.testing.assert_close(
        o.double(), scores.softmax(-1) @ v2, atol=TOLERANCES[dtype], rtol=1e-2
    )
    assert calls == [q.shape]


def test_gradients_beside_rows_that_see_no_key(calls: list) -> None:
    inputs = make_inputs(SIZES[0], torch.float32, "tokens")
    mask = torch.ones(33, 33, dtype=torch.bool).tril()
    mask[5] = False
    leaves = [x.clone().requires_grad_() for x in inputs]
    o = attend(*leaves, attn_mask=mask)
    o.square().sum().backward()
    assert calls == [inputs[0].shape] and (o[:, :, 5] == 0).all()
    assert (leaves[0].grad[:, :, 5] == 0).all()
    rest = torch.arange(33) != 5
    expected = [x.clone().requires_grad_() for x in inputs]
    q, k, v = expected
    scores = (q @ k.transpose(-1, -2) * 64**-0.5).masked_fill(~mask, -torch.inf)
    (scores[:, :, rest].softmax(-1) @ v).square().sum().backward()
    for own, other in zip(leaves, expected):
        torch.testing.assert_close(own.grad, other.grad, atol=1e-4, rtol=1e-4)


def _gradients(inputs: list[torch.Tensor], **options: object) -> list[torch.Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    attend(*leaves, enable_gqa=True, **options).square().sum().backward()
    return [x.grad for x in leaves]


MASKS = {
    "none": lambda q, k: {},
    "causal": lambda q, k: {"is_causal": True},
    "bool": lambda q, k: {"attn_mask": torch.ones(q, k, dtype=torch.bool).tril(3)},
    "numbers": lambda q, k: {"attn_mask": torch.linspace(-1, 1, q * k).view(1, 1, q, k)},
    "scale": lambda q, k: {"scale": 0.3},
}


@pytest.mark.parametrize("layout", ["heads", "tokens"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gradients_are_those_of_torch(
    calls: list, backwards: list, sizes: tuple[int, ...], mask: str, layout: str
) -> None:
    inputs = make_inputs(sizes, torch.float32, layout)
    options = MASKS[mask](*sizes[3:5])
    ours = _gradients(inputs, **options)
    assert len(calls) == len(backwards) == 1
    torch.nn.attention.restore_flash_attention_impl()
    if mask == "numbers":
        options = {"attn_mask": options["attn_mask"].double()}
    assert_close(ours, _gradients([x.double() for x in inputs], **options))
    assert len(calls) == len(backwards) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_in_16_bits(backwards: list, dtype: torch.dtype) -> None:
    inputs = make_inputs(SIZES[0], dtype, "tokens")
    ours = _gradients(inputs, is_causal=True)
    assert len(backwards) == 1 and all(x.dtype == dtype for x in ours)
    expected = _gradients([x.double() for x in inputs], is_causal=True)
    for own, right in zip(ours, expected):
        assert float((own.double() - right).norm()) <= 1e-2 * float(right.norm())


def test_gradients_of_what_is_not_served_are_torchs(calls: list, backwards: list) -> None:
    inputs = make_inputs(SIZES[0], torch.float32, "tokens")
    mask = torch.zeros(33, 33, requires_grad=True)
    for options in ({"dropout_p": 0.5}, {"attn_mask": mask}, {"scale": -0.3}):
        _gradients(inputs, **options)
    assert mask.grad.any() and calls == backwards == []


def test_gradients_outlive_the_library_in_torchs_place(calls: list, backwards: list) -> None:
    """Either backward pass takes O and LSE of either forward pass."""
    inputs = make_inputs(SIZES[0], torch.float32, "tokens")
    mask = torch.ones(33, 33, dtype=torch.bool).tril()
    mask[5] = False
    first, second = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    loss = attend(*first, attn_mask=mask).square().sum()
    torch.nn.attention.restore_flash_attention_impl()
    loss.backward()
    loss = attend(*second, attn_mask=mask).square().sum()
    torch.nn.attention.activate_flash_attention_impl(sdpa.NAME)
    loss.backward()
    assert len(calls) == len(backwards) == 1
    for x, y in zip(first, second):
        torch.testing.assert_close(x.grad, y.grad, atol=1e-4, rtol=1e-4)


def test_an_output_without_a_gradient_has_none(calls: list) -> None:
    class Ends(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> None:
            return None

    inputs = [x.requires_grad_() for x in make_inputs(SIZES[0], torch.float32, "tokens")]
    Ends.apply(attend(*inputs)).sum().backward()
    assert len(calls) == 1 and all(x.grad is None for x in inputs)


def test_compiled_graphs_have_gradients(backwards: list) -> None:
    torch._dynamo.reset()
    inputs = make_inputs(SIZES[1], torch.float32, "heads")

    def loss(*x: torch.Tensor) -> torch.Tensor:
        return attend(*x, is_causal=True, enable_gqa=True).square().sum()

    expected = _gradients(inputs, is_causal=True)
    leaves = [x.clone().requires_grad_() for x in inputs]
    torch.compile(loss, fullgraph=True, backend="aot_eager")(*leaves).backward()
    assert len(backwards) == 2
    for x, y in zip(leaves, expected):
        torch.testing.assert_close(x.grad, y, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", ["heads", "tokens"])
def test_compiled_graphs_call_it(calls: list, layout: str) -> None:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q, k, v, is_causal=True).transpose(1, 2).flatten(2) * 2

    inputs = make_inputs(SIZES[0], torch.float32, layout)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(*inputs), model(*inputs))
    assert len(calls) == 2


def test_shapes_are_those_that_compilers_expect(calls: list, backwards: list) -> None:
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    for layout in ("heads", "tokens"):
        inputs = make_inputs(SIZES[0], torch.bfloat16, layout)
        with torch._subclasses.FakeTensorMode() as mode:
            expected = operator(*map(mode.from_tensor, inputs))
            fake = map(mode.from_tensor, inputs)
            derived = backward(expected[0], *fake, *expected, 0.0, False)
        found = operator(*inputs)
        of_found = backward(found[0], *inputs, *found, 0.0, False)
        for x, y in zip((*found, *of_found), (*expected, *derived)):
            assert (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)
    assert len(calls) == len(backwards) == 2


def test_torch_gets_its_kernels_back(calls: list) -> None:
    q, k, v = make_inputs(SIZES[0], torch.float32, "heads")
    attend(q, k, v)
    torch.nn.attention.restore_flash_attention_impl()
    attend(q, k, v)
    torch.nn.attention.activate_flash_attention_impl(sdpa.NAME)
    attend(q, k, v)
    assert len(calls) == 2
