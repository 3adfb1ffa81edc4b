"""This module computes attention with Q, K and V, or K and V, in one tensor. In eager code their
gradients are written into one tensor, too, where autograd would copy each of three into it."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from .._torch import direct
from .._torch.gradients import Underived, has_gradients
from ._arguments import contiguous_rows
from ._call import attend_padded, attend_ragged, covers_all_rows, options_of_ragged

# Split returns the parts of a packed tensor, as views.
Split = Callable[[Tensor], "tuple[Tensor, ...]"]


def attend_packed(
    q: Tensor | None, packed: Tensor, split: Split, *, return_lse: bool, **options: Any
) -> Any:
    """Returns what attend_ragged() returns for q, or the first of three parts, and the others, or
    attend_padded() without cu_seqlens_q."""
    of_forward, operator = attend_padded, "bwd"
    if "cu_seqlens_q" in options:
        of_forward, operator = attend_ragged, "varlen_bwd"
    tensors = _tensors(q, packed, split)
    if not _is_recorded(q, packed) or not covers_all_rows(tensors[0], options):
        return of_forward(*tensors, return_lse=return_lse, **options)
    if operator == "varlen_bwd":
        options = options_of_ragged(*tensors[:2], **options)
    q = contiguous_rows(q)
    o, lse = _Packed.apply(of_forward, operator, split, options, q, contiguous_rows(packed))
    return (o, lse) if return_lse else o


def _tensors(q: Tensor | None, packed: Tensor, split: Split) -> tuple[Tensor, ...]:
    return split(packed) if q is None else (q, *split(packed))


def _is_recorded(q: Tensor | None, packed: Tensor) -> bool:
    """Returns whether gradients are recorded, of plain tensors, where nothing but autograd looks at
    the call."""
    tensors = [x for x in (q, packed) if x is not None]
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors):
        return False
    first, last = tensors[0].detach(), tensors[-1].detach()
    is_plain = direct.is_possible(first, last, last)
    return is_plain and all(x.dtype.itemsize > 1 and has_gradients(x) for x in tensors)


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        attend: Callable,
        operator: str,
        split: Split,
        options: dict[str, Any],
        q: Tensor | None,
        packed: Tensor,
    ) -> tuple[Tensor, Tensor]:
        o, lse = attend(*_tensors(q, packed, split), return_lse=True, **options)
        ctx.operator, ctx.split = getattr(torch.ops.flashattn, operator), split
        arrays = {name: x for name, x in options.items() if isinstance(x, Tensor)}
        ctx.names, ctx.options = tuple(arrays), {n: options[n] for n in options.keys() - arrays}
        ctx.save_for_backward(q, packed, o, lse, *arrays.values())
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, packed, o, lse, *arrays = ctx.saved_tensors
        options = {**ctx.options, **dict(zip(ctx.names, arrays))}
        left, right = options.pop("window_size")
        options.update(window_left=left, window_right=right)
        d_o = torch.zeros_like(o) if d_o is None else d_o

        def compute() -> tuple[Tensor | None, Tensor]:
            tensors = _tensors(q, packed, ctx.split)
            inputs = d_o, *tensors, o, lse
            if direct.is_mapped(d_o, d_lse):  # and operators that write to arguments are not
                found = ctx.operator.default(*inputs, **options, d_lse=d_lse)[:3]
                parts = found if q is None else found[1:]
                are_heads = tensors[-1].ndim == packed.ndim
                d_packed = torch.cat(parts, -2) if are_heads else torch.stack(parts, -3)
                return (None if q is None else found[0]), d_packed
            # Tokens of no sequence have a gradient, which the operator does not write.
            d_packed = torch.zeros(packed.shape, dtype=packed.dtype, device=packed.device)
            dq = None if q is None else torch.zeros(q.shape, dtype=q.dtype, device=q.device)
            results = dict(zip(("dq", "dk", "dv"), _tensors(dq, d_packed, ctx.split)))
            ctx.operator.out(*inputs, **options, d_lse=d_lse, **results)
            return dq, d_packed

        return None, None, None, None, *Underived.apply(compute, d_o, d_lse, q, packed)
