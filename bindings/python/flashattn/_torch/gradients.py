"""This module records the gradients of attention, where torch records derivatives: those of q, k, v
and sinks, from those of O and LSE."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Callable

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function

from . import derivatives
from .call import DEFAULTS
from .forward import DTYPES
from .schemas import NAMES, NAMES_OF_GRADIENTS

DERIVED = ("q", "k", "v", "sinks")
# OPERATORS says which operator computes the gradients of which.
OPERATORS = {"fwd": "bwd", "varlen_fwd": "varlen_bwd"}
_SCALES = ("k_descale", "v_descale", "q_descale")
_PAGES = ("page_table", "v_page_table", "page_indptr", "page_rows")
_MOST_D_HEAD_ON_CUDA = 256
_KV_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def _any_requires_grad(*values: Any, **named: Any) -> bool:
    tensors = (x for x in (*values, *named.values()) if isinstance(x, Tensor))
    return any(x.requires_grad for x in tensors)


_any_requires_grad = getattr(torch._C, "_any_requires_grad", _any_requires_grad)


def are_wanted(arguments: tuple, options: dict[str, Any]) -> bool:
    """Returns whether gradients are recorded, and a tensor among these requires one."""
    return torch.is_grad_enabled() and _any_requires_grad(*arguments, **options)


def has_gradients(x: Tensor) -> bool:
    """Returns whether there are kernels for gradients of so many columns on the tensor's device."""
    return not x.is_cuda or x.shape[-1] <= _MOST_D_HEAD_ON_CUDA


def recorder(name: str, overload: str, kernel: Callable) -> Callable[..., Any]:
    """Returns a function that calls this overload (default, lse or out) of an operator of attention
    and records gradients: of a call's keys, arguments and outputs, and of whether the dispatcher
    would do nothing but call the kernel, which is the one of lse."""
    packet = getattr(torch.ops.flashattn, name)
    names = NAMES[name]
    defaults = tuple(DEFAULTS.get(x) for x in names)
    at_sinks = names.index("sinks")
    take: Callable[[tuple], tuple] = tuple
    if name in OPERATORS:
        take = itemgetter(*map(names.index, NAMES_OF_GRADIENTS[OPERATORS[name]][6:]))

    def record(
        keys: torch._C.DispatchKeySet, arguments: tuple, outputs: dict[str, Any], is_plain: bool
    ) -> Any:
        given = arguments + defaults[len(arguments) :]
        named = dict(zip(names, given))
        others = *given[3:at_sinks], *given[at_sinks + 1 :]
        if not is_plain or _any_requires_grad(*others) or _refusal(name, named, outputs):
            _refuse(name, named, outputs)

        def attend() -> tuple[Tensor, Tensor]:
            if is_plain:
                return kernel(*arguments, **outputs)
            below = keys & torch._C._after_autograd_keyset
            return packet.lse.redispatch(below, *arguments, **outputs)

        tensors = *given[:3], given[at_sinks]
        o, lse = _Attention.apply(attend, OPERATORS[name], take(given), *tensors)
        return (o, lse) if overload == "lse" else o

    return record


def _refuse(name: str, given: dict[str, Any], outputs: dict[str, Any]) -> None:
    """Raises NotImplementedError for a call of which there are no gradients."""
    derivatives.refuse(given.keys(), given.values(), DERIVED)
    derivatives.refuse(outputs.keys(), outputs.values())
    reason = _refusal(name, given, outputs)
    if reason is None:
        return
    for of in DERIVED:
        if given[of] is not None and given[of].requires_grad:
            derivatives.refuse_gradient(of, reason)


def _refusal(name: str, given: dict[str, Any], outputs: dict[str, Any]) -> str | None:
    """Returns why there are no gradients, or None."""
    q, k, v = given["q"], given["k"], given["v"]
    if not (q.is_cpu or q.is_cuda or q.is_meta):
        return f"on the device {q.device}"
    if not (has_gradients(q) and has_gradients(v)):
        return f"of more than {_MOST_D_HEAD_ON_CUDA} columns on CUDA devices"
    for x in _PAGES:
        if given.get(x) is not None:
            return "with K and V in pages"
    for x in _SCALES:
        if given[x] is not None:
            return "with scales of K and V"
    if {k.dtype, v.dtype} <= DTYPES.keys() and (k.dtype not in _KV_TYPES or v.dtype != k.dtype):
        return f"with K in {k.dtype} and V in {v.dtype}"
    if name not in OPERATORS or "out" in outputs:
        return "of results that are given as out and lse"
    return None


class SingleLevel(torch.autograd.Function):
    """Is a function for the kernels of operators. There torch has unwrapped what transforms of
    torch.func wrap, all but one level, of which this is a plain function."""

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        if not torch._C._are_functorch_transforms_active():
            return super().apply(*arguments)
        with enable_single_level_autograd_function():
            return super(torch.autograd.Function, cls).apply(*arguments)

    @staticmethod
    def run(compute: Callable[[], Any]) -> Any:
        """Returns what the operator's kernel computes, within forward(). Levels below record their
        own gradients."""
        if not torch._C._are_functorch_transforms_active():
            return compute()
        with torch.enable_grad():
            return compute()


class _Attention(SingleLevel):
    """Computes (O, LSE) by attend(), and gradients by an operator that takes `options`, its last
    arguments."""

    @staticmethod
    def forward(
        ctx: Any, attend: Callable, operator: str, options: tuple, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        o, lse = SingleLevel.run(attend)
        ctx.operator = getattr(torch.ops.flashattn, operator).default
        given = (*tensors[:3], o, lse, *options)
        ctx.save_for_backward(*(x for x in given if isinstance(x, Tensor)))
        # An ellipsis stands for a tensor, which must not be kept here.
        ctx.given = tuple(... if isinstance(x, Tensor) else x for x in given)
        ctx.sinks_dtype = None if tensors[3] is None else tensors[3].dtype
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[3:]
        if d_o is d_lse is None:
            return (None,) * 7
        saved = iter(ctx.saved_tensors)
        given = tuple(next(saved) if x is ... else x for x in ctx.given)
        if d_o is None:
            d_o = torch.zeros_like(given[3])
        flags = dict(zip(("dq", "dk", "dv", "d_sinks"), wanted))
        found = ctx.operator(d_o, *given, d_lse=d_lse, **flags)
        *d_qkv, d_sinks = (x if is_wanted else None for x, is_wanted in zip(found, wanted))
        if d_sinks is not None:
            d_sinks = d_sinks.to(ctx.sinks_dtype)
        return (None, None, None, *d_qkv, d_sinks)


class Underived(SingleLevel):
    """Computes gradients by compute(), and records that those of `tensors` have no gradients."""

    @staticmethod
    def forward(ctx: Any, compute: Callable, *tensors: Any) -> Any:
        return SingleLevel.run(compute)

    @staticmethod
    def backward(ctx: Any, *of_results: Any) -> Any:
        raise NotImplementedError(
            "the gradients of attention have no gradients themselves: there is no second "
            "derivative (create_graph=True, or torch.func.grad of a gradient)"
        )
