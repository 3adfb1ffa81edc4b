"""This module registers the operators of attention, flashattn::fwd, varlen_fwd, decode and combine,
each with three overloads: default returns O, .lse returns (O, LSE), .out writes to the caller's
tensors.

One kernel serves the CPU and CUDA. Where torch would record derivatives, gradients.py does, and
tensors of which it has none are refused.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from . import derivatives, gradients
from .combine import combine
from .forward import forward, lse_shape, type_of_o
from .schemas import ARGUMENTS, call_maker, names_of

# Compilers must hand tensors over with the strides that they would have without compiling: strides
# decide whether a call is possible at all, and how fast it is.
TAGS = [
    getattr(torch.Tag, name)
    for name in ("pt2_compliant_tag", "needs_exact_strides")
    if hasattr(torch.Tag, name)
]
_CAST = (torch.float32, torch.float16, torch.bfloat16)

LIBRARY = torch.library.Library("flashattn", "DEF")  # its operators live as long as it does


# ---- Kernels ----


def _kernels(run: Callable) -> dict[str, Callable]:
    """Returns the kernel of each overload, by the overload's suffix. `run` takes an operator's
    arguments as a tuple, and its outputs: out, lse, return_lse, out_dtype."""

    def default(*arguments: Any, out_dtype: torch.dtype | None = None) -> Tensor:
        return run(arguments, None, None, False, out_dtype)[0]

    def with_lse(*arguments: Any, out_dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        return run(arguments, None, None, True, out_dtype)

    def into(*arguments: Any, out: Tensor, lse: Tensor | None = None) -> None:
        run(arguments, out, lse, False, None)
        note_written(out, lse)

    return {"": default, ".lse": with_lse, ".out": into}


def _attention(name: str) -> Callable:
    make = call_maker(name)
    return lambda arguments, *outputs: forward(make(arguments, *outputs))


def _combine(arguments: tuple, *outputs: Any) -> tuple[Tensor, Tensor | None]:
    o_partial, lse_partial, sinks = (*arguments, None)[:3]
    return combine(o_partial, lse_partial, sinks, outputs)


def note_written(*written: Tensor | None) -> None:
    """Tells autograd that the values of these tensors have changed."""
    for x in written:
        if x is not None and not x.is_inference():
            increment_version(x)


# ---- Shapes, without data ----


def _shapes(name: str) -> dict[str, Callable]:
    """Returns what replaces each overload's kernel where tensors have no data, by the overload's
    suffix."""
    names = names_of(ARGUMENTS[name])

    def default(*arguments: Any, out_dtype: torch.dtype | None = None) -> Tensor:
        derivatives.refuse(names, arguments)
        first = arguments[0]
        shape = first.shape[1:]
        if name != "combine":  # O has the heads of q, and those are as wide as heads of v
            shape = (*first.shape[:-1], arguments[2].shape[-1])
        return first.new_empty(shape, dtype=out_dtype or type_of_o(first.dtype))

    def with_lse(*arguments: Any, out_dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        out = default(*arguments, out_dtype=out_dtype)
        return out, out.new_empty(lse_shape(out), dtype=torch.float32)

    def into(*arguments: Any, out: Tensor, lse: Tensor | None = None) -> None:
        derivatives.refuse(names, arguments)
        derivatives.refuse(("out", "lse"), (out, lse))

    return {"": default, ".lse": with_lse, ".out": into}


# ---- Derivatives ----

_raw_keys = getattr(torch._C.DispatchKeySet, "raw_repr", lambda keys: None)


def _plain_keys(device: str) -> int | None:
    """Returns the keys of a call with plain tensors on this device, under no mode and no transform:
    the device's own and its autograd's. None where torch does not tell keys."""
    found = (getattr(torch._C.DispatchKey, name) for name in (device, f"Autograd{device}"))
    own, autograd = map(torch._C.DispatchKeySet, found)
    return _raw_keys(own | autograd)


_IS_KNOWN = hasattr(forward_ad, "_current_level")
_PLAIN = {_plain_keys(device) for device in ("CPU", "CUDA") if _IS_KNOWN} - {None}


def is_plain(keys: torch._C.DispatchKeySet) -> bool:
    """Returns whether the dispatcher would do nothing between autograd and the kernel of a call
    with these keys."""
    return _raw_keys(keys) in _PLAIN and forward_ad._current_level < 0


def _derived(name: str, overload: str, kernels: dict[str, Callable]) -> Callable:
    """Returns what runs before the kernel where torch would record derivatives. It records
    gradients, or calls the kernel itself where the dispatcher would do nothing else; otherwise it
    refuses tensors that need a derivative, and hands the call on to the dispatcher."""
    names = names_of(ARGUMENTS[name])
    kernel, redispatch = kernels[overload], operator_of(name + overload).redispatch
    record = None
    if name != "combine":
        record = gradients.recorder(name, overload.lstrip(".") or "default", kernels[".lse"])

    def derive(keys: torch._C.DispatchKeySet, *arguments: Any, **outputs: Any) -> Any:
        if gradients.are_wanted(arguments, outputs) and record is not None:
            return record(keys, arguments, outputs, is_plain(keys))
        if is_plain(keys):
            return kernel(*arguments, **outputs)  # which refuses gradients that nothing records
        derivatives.refuse(names, arguments)
        derivatives.refuse(outputs.keys(), outputs.values())
        return redispatch(keys & torch._C._after_autograd_keyset, *arguments, **outputs)

    return derive


# ---- Autocast ----


def _autocast(operator: str, device_type: str) -> Callable:
    """Returns what runs under autocast: q, k and v become the type of autocast, as in torch's own
    attention, but k and v of e4m3 stay as they are."""

    def cast(*arguments: Any, **outputs: Any) -> Any:
        dtype = torch.get_autocast_dtype(device_type)
        qkv = (x.to(dtype) if x.dtype in _CAST else x for x in arguments[:3])
        with torch.autocast(device_type, enabled=False):
            return operator_of(operator)(*qkv, *arguments[3:], **outputs)

    return cast


def operator_of(name: str) -> torch._ops.OpOverload:
    """Returns the overload that is registered as "fwd", "fwd.lse" and so on."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.flashattn, packet), overload or "default")


# ---- Registration ----


def _define(name: str) -> None:
    of_new = f"({ARGUMENTS[name]}, *, ScalarType? out_dtype=None)"
    of_given = f"({ARGUMENTS[name]}, *, Tensor(a!) out, Tensor(b!)? lse=None)"
    LIBRARY.define(f"{name}{of_new} -> Tensor", tags=TAGS)
    LIBRARY.define(f"{name}.lse{of_new} -> (Tensor, Tensor)", tags=TAGS)
    LIBRARY.define(f"{name}.out{of_given} -> ()", tags=TAGS)


def _implement(name: str, run: Callable) -> None:
    shapes, kernels = _shapes(name), _kernels(run)
    for overload, kernel in kernels.items():
        operator = name + overload
        for key in ("CPU", "CUDA"):
            LIBRARY.impl(operator, kernel, key)
        LIBRARY.impl(operator, _derived(name, overload, kernels), "Autograd", with_keyset=True)
        torch.library.register_fake(f"flashattn::{operator}", shapes[overload], lib=LIBRARY)
        if name != "combine":
            for key, device_type in (("AutocastCPU", "cpu"), ("AutocastCUDA", "cuda")):
                LIBRARY.impl(operator, _autocast(operator, device_type), key)


for _name in ARGUMENTS:
    _define(_name)
    _implement(_name, _combine if _name == "combine" else _attention(_name))
