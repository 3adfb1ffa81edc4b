"""Gradients that torch records on a CUDA device, by every door: those of the formulas in float64,
and where the door is an operator, those of flash_attn_backward bit for bit."""

from __future__ import annotations

from typing import Any, Callable

import flashattn
import pytest
import torch
import torch_gradients
from flashattn import torch_ops
from flashattn.compat import fa2, fa3
from torch.utils.checkpoint import checkpoint
from torch_gradients import assert_close, gradients, leaves

TOLERANCE = 2e-2  # bf16
LENGTHS = (150, 0, 70)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _tensors(*lengths: int, d_head: int = 64, heads: tuple[int, int] = (4, 2)) -> list:
    seqlen_q, seqlen_k = lengths
    shapes = [(2, seqlen_q, heads[0], d_head), *[(2, seqlen_k, heads[1], d_head)] * 2]
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]


def _loss(o: torch.Tensor, lse: torch.Tensor | None = None) -> torch.Tensor:
    weights = torch.linspace(-1, 1, o.numel(), dtype=torch.float64, device=o.device).view(o.shape)
    total = (o.double() * weights).sum()
    return total if lse is None else total + lse.double().square().sum() / 100


def _expected(tensors: list[torch.Tensor], with_lse: bool = False, **options: Any) -> list:
    """Returns the gradients by the formulas, on the CPU."""

    def loss(*x: torch.Tensor) -> torch.Tensor:
        o, lse = torch_gradients.attention(*x, **options)
        return _loss(o, lse if with_lse else None)

    return gradients(loss, leaves(*(x.cpu().double() for x in tensors)))


def _assert_close(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert_close([x.cpu() for x in found], expected, TOLERANCE)


def test_autograd_calls_the_same_kernels() -> None:
    q, k, v = leaves(*_tensors(170, 190))
    sinks = torch.tensor([0.0, 1.0, -1.0, 2.0], device="cuda", requires_grad=True)
    o, lse = torch_ops.flash_attn_func(q, k, v, causal=True, sinks=sinks, return_lse=True)
    d_o, d_lse = torch.randn_like(o), torch.randn_like(lse)
    found = torch.autograd.grad((o, lse), (q, k, v, sinks), (d_o, d_lse))
    with torch.no_grad():
        expected = flashattn.flash_attn_backward(
            d_o, q, k, v, o, lse, d_lse=d_lse, causal=True, sinks=sinks
        )
    for x, y in zip(found, expected):
        assert torch.equal(x, y)


@pytest.mark.parametrize("d_head", [40, 64, 128, 256])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 3.0}], ids=str)
def test_gradients_are_those_of_the_formulas(options: dict[str, Any], d_head: int) -> None:
    tensors = _tensors(170, 190, d_head=d_head)

    def loss(*x: torch.Tensor) -> torch.Tensor:
        return _loss(*torch_ops.flash_attn_func(*x, return_lse=True, **options))

    found = gradients(loss, leaves(*tensors))
    _assert_close(found, _expected(tensors, with_lse=True, **options))


@pytest.mark.parametrize("version", [fa2, fa3], ids=["fa2", "fa3"])
def test_functions_of_flash_attn(version: Any) -> None:
    tensors = _tensors(170, 170)

    def loss(*x: torch.Tensor) -> torch.Tensor:
        found = version.flash_attn_func(*x, causal=True)
        return _loss(found[0] if isinstance(found, tuple) else found)

    _assert_close(gradients(loss, leaves(*tensors)), _expected(tensors, causal=True))


def _ragged(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[0, : LENGTHS[0]], x[1, : LENGTHS[2]]])


def test_ragged_batches() -> None:
    tensors = [_ragged(x) for x in _tensors(170, 170)]
    ends = torch.tensor([0, 150, 150, 220], device="cuda", dtype=torch.int32)

    def loss(*x: torch.Tensor) -> torch.Tensor:
        return _loss(fa2.flash_attn_varlen_func(*x, ends, ends, 150, 150, causal=True))

    def expected(*x: torch.Tensor) -> torch.Tensor:
        parts = [y.split(LENGTHS) for y in x]
        found = [
            torch_gradients.attention(*(y[None] for y in one), causal=True)[0][0]
            for one in zip(*parts)
            if len(one[0])
        ]
        return _loss(torch.cat(found))

    _assert_close(
        gradients(loss, leaves(*tensors)),
        gradients(expected, leaves(*(x.cpu().double() for x in tensors))),
    )


def test_packed_tensors() -> None:
    parts = _tensors(130, 130, heads=(2, 2))
    packed = torch.stack(parts, 2)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return _loss(fa2.flash_attn_qkvpacked_func(x, causal=True))

    (found,) = gradients(loss, leaves(packed))
    _assert_close(list(found.unbind(2)), _expected(parts, causal=True))


def _in_layers(wrap: Callable[..., Any]) -> list[torch.Tensor]:
    q, k, v = leaves(*_tensors(100, 100))
    attend = wrap(lambda q, k, v: torch_ops.flash_attn_func(q, k, v, causal=True))
    return list(torch.autograd.grad(_loss(attend(q, k, v)), (q, k, v)))


@pytest.mark.parametrize("is_packed", [False, True])
def test_rows_of_no_sequence_have_no_gradient(is_packed: bool) -> None:
    ends = torch.tensor([0, 150, 220], device="cuda", dtype=torch.int32)
    attend = fa2.flash_attn_varlen_kvpacked_func if is_packed else fa2.flash_attn_varlen_func
    shapes = [(300, 4, 64), *([(300, 2, 2, 64)] if is_packed else [(300, 2, 64)] * 2)]
    inputs = [torch.randn(x, device="cuda", dtype=torch.bfloat16) for x in shapes]
    leavings = [torch.full_like(x, torch.nan) for x in inputs]  # what new memory will hold
    del leavings
    found = gradients(
        lambda *x: attend(*x, ends, ends, 150, 150)[:220].double().sum(), leaves(*inputs)
    )
    for x in found:
        assert x[:220].isfinite().all() and not x[220:].any()


def test_checkpoints_and_compilers_change_no_bit() -> None:
    def of_checkpoint(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *x: checkpoint(f, *x, use_reentrant=False)

    def of_compiler(f: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(f, fullgraph=True, backend="aot_eager")

    results = []
    for wrap in (lambda f: f, of_checkpoint, of_compiler):
        torch.manual_seed(1)
        results.append(_in_layers(wrap))
    for found in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found, results[0]))


def test_autocast() -> None:
    tensors = [x.float() for x in _tensors(100, 100)]

    def loss(*x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return _loss(torch_ops.flash_attn_func(*x))

    found = gradients(loss, leaves(*tensors))
    assert all(x.dtype == torch.float32 for x in found)
    _assert_close(found, _expected(tensors))


def test_a_gradient_of_a_sum_is_one_element() -> None:
    tensors = _tensors(100, 100)

    def of_library(*x: torch.Tensor) -> torch.Tensor:
        return torch_ops.flash_attn_func(*x).sum()

    def of_formulas(*x: torch.Tensor) -> torch.Tensor:
        return torch_gradients.attention(*x)[0].sum()

    found = gradients(of_library, leaves(*tensors))
    expected = gradients(of_formulas, leaves(*(x.cpu().double() for x in tensors)))
    _assert_close(found[2:], expected[2:])  # those of q and k are 0, but for rounding


def test_wide_heads_are_refused() -> None:
    tensors = leaves(*_tensors(10, 10, d_head=320))
    with pytest.raises(NotImplementedError, match="of more than 256 columns on CUDA devices"):
        torch_ops.flash_attn_func(*tensors)
