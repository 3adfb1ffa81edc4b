"""This module registers the operators flashattn::bwd and varlen_bwd, which compute the gradients of
flashattn::fwd and varlen_fwd, each with two overloads: default returns those of q, k, v and sinks,
.out writes to the caller's tensors.

They have no derivatives themselves. Where torch would record those, it records that there are none,
for whoever asks later: torch.func and create_graph=True record on the way to first derivatives.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from .._backward import flash_attn_backward
from . import derivatives, gradients
from .call import DEFAULTS
from .registration import LIBRARY, TAGS, is_plain, note_written, operator_of
from .schemas import ARGUMENTS_OF_GRADIENTS, NAMES_OF_GRADIENTS

_RESULTS = ("dq", "dk", "dv", "d_sinks")
_N_NEEDED = 6  # d_o, q, k, v, o, lse
_FLAGS = ", ".join(f"bool {name}=True" for name in _RESULTS)
_WRITTEN = ", ".join(f"Tensor({x}!)? {name}=None" for x, name in zip("abcd", _RESULTS))

# ---- Kernels ----


def _kernels(name: str) -> dict[str, Callable]:
    """Returns the kernel of each overload, by the overload's suffix."""
    names = NAMES_OF_GRADIENTS[name]
    defaults = tuple(DEFAULTS.get(x) for x in names)

    def run(arguments: tuple, **options: Any) -> tuple:
        given = dict(zip(names, arguments + defaults[len(arguments) :]))
        needed = [given.pop(x) for x in names[:_N_NEEDED]]
        needed[0] = _readable(needed[0])
        given["window_size"] = given.pop("window_left"), given.pop("window_right")
        return flash_attn_backward(*needed, **given, **options)

    def default(
        *arguments: Any, d_lse: Tensor | None = None, **wanted: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        places = {x: None if wanted.get(x, True) else False for x in _RESULTS}
        found = run(arguments, d_lse=_readable(d_lse), **places)
        return tuple(arguments[1].new_empty(0) if x is None else x for x in found)

    def into(
        *arguments: Any, d_lse: Tensor | None = None, add: bool = False, **results: Tensor | None
    ) -> None:
        places = {x: False if results.get(x) is None else results[x] for x in _RESULTS}
        run(arguments, d_lse=_readable(d_lse), add=add, **places)
        note_written(*results.values())

    return {"": default, ".out": into}


def _readable(gradient: Tensor | None) -> Tensor | None:
    """Returns a gradient that autograd passes, or a copy where the C API cannot say its strides:
    that of a sum is one element, repeated."""
    if gradient is None or (gradient.stride(-1) == 1 and 0 not in gradient.stride()):
        return gradient
    return gradient.contiguous()


# ---- Shapes, without data ----


def _shapes(name: str) -> dict[str, Callable]:
    """Returns what replaces each overload's kernel where tensors have no data, by the overload's
    suffix."""
    names = NAMES_OF_GRADIENTS[name]
    at_sinks = names.index("sinks")

    def default(
        *arguments: Any, d_lse: Tensor | None = None, **wanted: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        derivatives.refuse((*names[: len(arguments)], "d_lse"), (*arguments, d_lse))
        q, k, v = arguments[1:4]
        sinks = arguments[at_sinks] if at_sinks < len(arguments) else None
        shapes = [x.shape if wanted.get(f"d{n}", True) else (0,) for n, x in zip("qkv", (q, k, v))]
        found = [x.new_empty(shape) for x, shape in zip((q, k, v), shapes)]
        if sinks is None or not wanted.get("d_sinks", True):
            return *found, q.new_empty(0)
        return *found, q.new_empty(q.shape[-2:-1], dtype=torch.float32)

    def into(*arguments: Any, **options: Any) -> None:
        derivatives.refuse((*names[: len(arguments)], *options), (*arguments, *options.values()))

    return {"": default, ".out": into}


# ---- Derivatives ----


def _derived(name: str, overload: str, kernel: Callable) -> Callable:
    """Returns what runs before the kernel where torch would record derivatives."""
    names = NAMES_OF_GRADIENTS[name]
    redispatch = operator_of(name + overload).redispatch

    def derive(keys: torch._C.DispatchKeySet, *arguments: Any, **options: Any) -> Any:
        is_recorded = gradients.are_wanted(arguments, options)
        if is_plain(keys) and not is_recorded:
            return kernel(*arguments, **options)

        def compute() -> Any:
            return redispatch(keys & torch._C._after_autograd_keyset, *arguments, **options)

        may_require = (*names, "d_lse") if overload == "" else ()
        derivatives.refuse(
            (*names[: len(arguments)], *options), (*arguments, *options.values()), may_require
        )
        if is_recorded:
            return gradients.Underived.apply(compute, *arguments, *options.values())
        return compute()

    return derive


# ---- Registration ----


def _define(name: str) -> None:
    arguments = f"{ARGUMENTS_OF_GRADIENTS[name]}, *, Tensor? d_lse=None"
    LIBRARY.define(f"{name}({arguments}, {_FLAGS}) -> (Tensor, Tensor, Tensor, Tensor)", tags=TAGS)
    LIBRARY.define(f"{name}.out({arguments}, bool add=False, {_WRITTEN}) -> ()", tags=TAGS)


def _implement(name: str) -> None:
    shapes = _shapes(name)
    for overload, kernel in _kernels(name).items():
        operator = name + overload
        for key in ("CPU", "CUDA"):
            LIBRARY.impl(operator, kernel, key)
        LIBRARY.impl(operator, _derived(name, overload, kernel), "Autograd", with_keyset=True)
        torch.library.register_fake(f"flashattn::{operator}", shapes[overload], lib=LIBRARY)


def register() -> None:
    """Registers the operators, once."""
    for name in ARGUMENTS_OF_GRADIENTS:
        _define(name)
        _implement(name)
