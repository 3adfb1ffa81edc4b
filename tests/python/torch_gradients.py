"""Gradients of attention by torch's autograd of the formulas, in float64, for tests of doors that
record gradients."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor


def leaves(*tensors: Tensor) -> list[Tensor]:
    """Returns copies that require gradients."""
    return [x.detach().clone().requires_grad_() for x in tensors]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    attn_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns (O, LSE) of padded tensors in the type of q, from the formulas. Each query sees a
    key."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if attn_mask is not None:
        numbers = torch.where(attn_mask, 0.0, -torch.inf) if attn_mask.dtype is torch.bool else None
        scores = scores + (attn_mask if numbers is None else numbers)
    scores = scores.masked_fill(~visible(q.shape[1], k.shape[1], causal, window_size), -torch.inf)
    lse = scores.logsumexp(-1)
    total = lse if sinks is None else torch.logaddexp(lse, sinks[None, :, None])
    return torch.einsum("bhij,bjhd->bihd", torch.exp(scores - total[..., None]), v), lse


def visible(
    seqlen_q: int, seqlen_k: int, causal: bool, window_size: tuple[int, int] = (-1, -1)
) -> Tensor:
    """Returns which keys each query sees: the last query is at the last key."""
    left, right = window_size
    behind = torch.arange(seqlen_k) - torch.arange(seqlen_q)[:, None] - (seqlen_k - seqlen_q)
    seen = torch.ones_like(behind, dtype=torch.bool)
    if causal:
        seen &= behind <= 0
    if left >= 0:
        seen &= behind >= -left
    if right >= 0:
        seen &= behind <= right
    return seen


def gradients(loss: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Returns the gradients of a loss of these tensors."""
    return list(torch.autograd.grad(loss(*inputs), inputs))


def assert_close(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Asserts that each of these tensors is close to the expected one, beside its largest value, or
    a tenth of the largest one of all."""
    largest = [float(y.abs().max()) if y.numel() else 0.0 for y in expected]
    for x, y, of_y in zip(found, expected, largest):
        assert x.shape == y.shape
        difference = (x.double() - y.double()).abs()
        assert not x.numel() or float(difference.max()) <= tolerance * max(of_y, max(largest) / 10)
