"""This module registers the operator flashattn::quantise, with two overloads: default returns codes
and scales, .minus_mean takes means off and returns them, too."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from .._quantise import quantise
from . import derivatives
from .registration import LIBRARY, TAGS

_ARGUMENTS = (
    "Tensor x, *, SymInt? n_scales=None, bool tokens=False, bool hadamard=False, "
    "Tensor? cu_seqlens=None, SymInt? max_seqlen=None"
)


def _default(x: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return tuple(quantise(x, **options))[:2]


def _minus_mean(x: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return tuple(quantise(x, minus_mean=True, **options))


# ---- Shapes, without data ----


def _shapes(
    x: Tensor,
    *,
    n_scales: Any = None,
    tokens: bool = False,
    hadamard: bool = False,
    cu_seqlens: Tensor | None = None,
    max_seqlen: Any = None,
) -> tuple[Tensor, ...]:
    derivatives.refuse(("x", "cu_seqlens"), (x, cu_seqlens))
    batch = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    n_heads, d_head = x.shape[-2:]
    of_scales = (*x.shape[:-1], 1) if tokens else (batch, n_heads if n_scales is None else n_scales)
    codes = x.new_empty(x.shape, dtype=torch.float8_e4m3fn)
    scale = x.new_empty(of_scales, dtype=torch.float32)
    return codes, scale, x.new_empty((batch, n_heads, d_head), dtype=torch.float32)


def _shapes_of_default(x: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return _shapes(x, **options)[:2]


# ---- Registration ----


def _underived(operator: torch._ops.OpOverload) -> Callable:
    """Returns what runs before the kernel where torch would record derivatives."""

    def refuse(keys: torch._C.DispatchKeySet, x: Tensor, **options: Any) -> Any:
        derivatives.refuse(("x", *options), (x, *options.values()))
        return operator.redispatch(keys & torch._C._after_autograd_keyset, x, **options)

    return refuse


def _register(overload: str, results: str, kernel: Callable, shapes: Callable) -> Any:
    name = f"quantise.{overload}" if overload else "quantise"
    LIBRARY.define(f"{name}({_ARGUMENTS}) -> {results}", tags=TAGS)
    operator = getattr(torch.ops.flashattn.quantise, overload or "default")
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(name, kernel, key)
    LIBRARY.impl(name, _underived(operator), "Autograd", with_keyset=True)
    torch.library.register_fake(f"flashattn::{name}", shapes, lib=LIBRARY)
    return operator


OPERATOR = _register("", "(Tensor, Tensor)", _default, _shapes_of_default)
WITH_MEAN = _register("minus_mean", "(Tensor, Tensor, Tensor)", _minus_mean, _shapes)
