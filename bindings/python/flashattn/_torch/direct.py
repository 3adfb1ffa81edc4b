"""This module decides whether a call may go to the library without torch's dispatcher, which takes
as much time as all else that the host does.

It may where the dispatcher would do nothing but find the kernel: tensors of torch's own class, with
data as it stands, that need no gradient, and nothing that watches calls or changes them (compilers,
tracers, modes, transforms, autocast). Only private functions of torch tell; where torch lacks one
of them, no call goes directly.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

is_compiled = torch.compiler.is_dynamo_compiling
_records_gradients = torch.is_grad_enabled
QUESTIONS = tuple(
    getattr(torch._C, name, None)
    for name in (
        "_len_torch_dispatch_stack",
        "_are_functorch_transforms_active",
        "_is_tracing",
        "_is_any_autocast_enabled",
    )
)
IS_KNOWN = None not in QUESTIONS and hasattr(forward_ad, "_current_level")
_STANDS_FOR_MANY = tuple(
    getattr(torch._C._functorch, name)
    for name in ("is_batchedtensor", "is_legacy_batchedtensor")
    if hasattr(torch._C._functorch, name)
)
_n_modes, _is_transformed, _is_traced, _is_autocast = QUESTIONS


def is_possible(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> bool:
    """Returns whether a call with these tensors may go to the library directly. combine(), which
    has only two tensors, passes the second one twice."""
    if is_compiled() or not IS_KNOWN:
        return False
    if _n_modes() or _is_transformed() or _is_autocast() or _is_traced():
        return False
    if not type(q) is type(k) is type(v) is Tensor or not (q.is_cpu or q.is_cuda):
        return False
    if _records_gradients() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return False
    if sinks is not None and getattr(sinks, "requires_grad", False) and _records_gradients():
        return False
    # The values of a negated tensor are the negatives of what its memory holds.
    return not (q.is_neg() or k.is_neg() or v.is_neg() or forward_ad._current_level >= 0)


def is_possible_with(first: Tensor, *others: Tensor | None) -> bool:
    """Returns whether a call with these tensors, of which some are absent, may go to the library
    directly."""
    if not is_possible(first, first, first):
        return False
    for x in others:
        if x is not None and (type(x) is not Tensor or x.is_neg()):
            return False
    return True


def is_mapped(*tensors: Tensor | None) -> bool:
    """Returns whether one of these stands for many, of which torch makes a call each: as
    torch.func.vmap has them, or the is_grads_batched of torch.autograd.grad."""
    return any(x is not None and stands(x) for x in tensors for stands in _STANDS_FOR_MANY)
