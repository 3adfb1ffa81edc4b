"""This module registers the operators of attention, flashattn::fwd, varlen_fwd, decode and combine,
each with three overloads: default returns O, .lse returns (O, LSE), .out writes to the caller's
tensors.

One kernel serves the CPU and CUDA. Where torch would record derivatives, tensors that need one are
refused.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from . import derivatives
from .arguments import (
    NEW_O,
    NEW_O_AND_LSE,
    Bias,
    Mask,
    Pages,
    Ragged,
    Scales,
    Used,
    bias_of,
    pages_of,
    scales_of,
)
from .combine import combine
from .forward import forward, lse_shape

_QKV = "Tensor q, Tensor k, Tensor v"
_OPTIONS = (
    "float? softmax_scale=None, bool causal=False, SymInt window_left=-1, SymInt window_right=-1, "
    "float softcap=0.0, bool batch_invariant=False, Tensor? k_descale=None, "
    "Tensor? v_descale=None, Tensor? sinks=None, Tensor? seqused_q=None"
)
_BIAS = (
    "Tensor? alibi_slopes=None, Tensor? attn_mask=None, Tensor? mask_bits=None, "
    "SymInt? mask_keys=None"
)
_LAST = "SymInt attention_chunk=0, Tensor? leftpad_k=None, int n_multiprocessors=0"
PAGES = (
    "Tensor? page_table=None, Tensor? v_page_table=None, Tensor? page_indptr=None, "
    "Tensor? page_rows=None"
)
# ARGUMENTS holds the arguments of each operator, without those for its outputs.
ARGUMENTS = {
    "fwd": f"{_QKV}, {_OPTIONS}, Tensor? seqused_k=None, {_BIAS}, {_LAST}",
    "varlen_fwd": f"{_QKV}, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, SymInt? max_seqlen_q, "
    f"SymInt? max_seqlen_k, {PAGES}, {_OPTIONS}, Tensor? seqused_k=None, {_BIAS}, {_LAST}",
    "decode": f"{_QKV}, Tensor seqused_k, {PAGES}, SymInt? max_seqlen_k=None, {_OPTIONS}, {_BIAS}, "
    f"{_LAST}",
    "combine": "Tensor o_partial, Tensor lse_partial, Tensor? sinks=None",
}


def names_of(arguments: str) -> list[str]:
    """Returns the names of the arguments of a schema."""
    return re.findall(r" (\w+)(?:=|,|$)", arguments)


def tensors_of(arguments: str) -> list[tuple[int, str]]:
    """Returns the place and the name of each argument of a schema that is a tensor."""
    return [
        (i, names_of(f" {argument}")[0])
        for i, argument in enumerate(arguments.split(", "))
        if argument.startswith("Tensor")
    ]


TENSORS = {name: tensors_of(arguments) for name, arguments in ARGUMENTS.items()}
_AFTER_PAGES = names_of(f"{_OPTIONS}, {_BIAS}, {_LAST}")  # of decode
# Compilers must hand tensors over with the strides that they would have without compiling: strides
# decide whether a call is possible at all, and how fast it is.
TAGS = [
    getattr(torch.Tag, name)
    for name in ("pt2_compliant_tag", "needs_exact_strides")
    if hasattr(torch.Tag, name)
]
_CAST = (torch.float32, torch.float16, torch.bfloat16)

LIBRARY = torch.library.Library("flashattn", "DEF")  # its operators live as long as it does


# ---- From an operator's arguments to those of forward(), but for the outputs ----

_Call = tuple[
    Tensor,
    Tensor,
    Tensor,
    Mask,
    Optional[Used],
    Optional[Scales],
    Optional[Tensor],
    Optional[Ragged],
    Optional[Pages],
    Optional[Bias],
]


def _fwd(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> _Call:
    *options, bias = _options(*options)
    return q, k, v, *options, None, None, bias


def _varlen_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    page_table: Tensor | None = None,
    v_page_table: Tensor | None = None,
    page_indptr: Tensor | None = None,
    page_rows: Tensor | None = None,
    *options: Any,
) -> _Call:
    ragged = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    pages = pages_of(page_table, v_page_table, page_indptr, page_rows)
    *options, bias = _options(*options)
    return q, k, v, *options, ragged, pages, bias


def _decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seqused_k: Tensor,
    page_table: Tensor | None = None,
    v_page_table: Tensor | None = None,
    page_indptr: Tensor | None = None,
    page_rows: Tensor | None = None,
    max_seqlen_k: int | None = None,
    *options: Any,
) -> _Call:
    *options, bias = _options(**dict(zip(_AFTER_PAGES, options)), seqused_k=seqused_k)
    ragged = None if max_seqlen_k is None else (None, None, None, max_seqlen_k)
    pages = pages_of(page_table, v_page_table, page_indptr, page_rows)
    return q, k, v, *options, ragged, pages, bias


def _options(
    softmax_scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    batch_invariant: bool = False,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    sinks: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    attn_mask: Tensor | None = None,
    mask_bits: Tensor | None = None,
    mask_keys: int | None = None,
    attention_chunk: int = 0,
    leftpad_k: Tensor | None = None,
    n_multiprocessors: int = 0,
) -> tuple[Mask, Used | None, Scales | None, Tensor | None, Bias | None]:
    mask = softmax_scale, causal, window_left, window_right, softcap, batch_invariant
    used = None
    if not seqused_q is seqused_k is leftpad_k is None:
        used = seqused_q, seqused_k, leftpad_k
    scales = scales_of(k_descale, v_descale)
    bias = bias_of(alibi_slopes, attn_mask, mask_bits, mask_keys)
    return (*mask, attention_chunk, n_multiprocessors), used, scales, sinks, bias


def _combine(
    o_partial: Tensor, lse_partial: Tensor, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    return o_partial, lse_partial, sinks


# ---- Kernels ----


def _kernels(call: Callable, grouped: Callable) -> dict[str, Callable]:
    """Returns the kernel of each overload, by the overload's suffix. `grouped` makes arguments of
    `call` from the operator's."""

    def default(*arguments: Any, out_dtype: torch.dtype | None = None) -> Tensor:
        outputs = NEW_O if out_dtype is None else (None, None, False, out_dtype)
        return call(*grouped(*arguments), outputs)[0]

    def with_lse(*arguments: Any, out_dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        outputs = NEW_O_AND_LSE if out_dtype is None else (None, None, True, out_dtype)
        return call(*grouped(*arguments), outputs)

    def into(*arguments: Any, out: Tensor, lse: Tensor | None = None) -> None:
        call(*grouped(*arguments), (out, lse, False, None))
        note_written(out, lse)

    return {"": default, ".lse": with_lse, ".out": into}


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
        return first.new_empty(shape, dtype=out_dtype or first.dtype)

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


def _underived(name: str, operator: str, kernel: Callable) -> Callable:
    """Returns what runs before the kernel where torch would record derivatives. It calls the kernel
    itself where the dispatcher would do nothing between autograd and the kernel, which the call's
    keys say; otherwise it refuses tensors that need a derivative, and hands the call on to the
    dispatcher."""
    names = names_of(ARGUMENTS[name])
    redispatch = operator_of(operator).redispatch

    def refuse(keys: torch._C.DispatchKeySet, *arguments: Any, **outputs: Any) -> Any:
        if _raw_keys(keys) in _PLAIN and forward_ad._current_level < 0:
            return kernel(*arguments, **outputs)  # the kernel refuses gradients too
        derivatives.refuse(names, arguments)
        derivatives.refuse(outputs.keys(), outputs.values())
        return redispatch(keys & torch._C._after_autograd_keyset, *arguments, **outputs)

    return refuse


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


def _implement(name: str, call: Callable, grouped: Callable) -> None:
    shapes = _shapes(name)
    for overload, kernel in _kernels(call, grouped).items():
        operator = name + overload
        for key in ("CPU", "CUDA"):
            LIBRARY.impl(operator, kernel, key)
        LIBRARY.impl(operator, _underived(name, operator, kernel), "Autograd", with_keyset=True)
        torch.library.register_fake(f"flashattn::{operator}", shapes[overload], lib=LIBRARY)
        if name != "combine":
            for key, device_type in (("AutocastCPU", "cpu"), ("AutocastCUDA", "cuda")):
                LIBRARY.impl(operator, _autocast(operator, device_type), key)


for _name, _call, _grouped in (
    ("fwd", forward, _fwd),
    ("varlen_fwd", forward, _varlen_fwd),
    ("decode", forward, _decode),
    ("combine", combine, _combine),
):
    _define(_name)
    _implement(_name, _call, _grouped)
