"""This module handles arguments as flash-attn takes them: it refuses those that the library lacks,
and turns the others into keywords of the binding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _numbers
from .._torch import foreign


def refuse(**arguments: Any) -> None:
    """Raises NotImplementedError for an argument that is given (not None) and has no equivalent."""
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"{name} is given: libflashattn has no such feature")


def refuse_beside_qv(**arguments: Any) -> None:
    """Raises NotImplementedError for an argument that is given (not None) together with qv."""
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"qv is given together with {name}: one of them must be None")


def refuse_probabilities(dropout_p: float, return_attn_probs: bool) -> None:
    """Raises NotImplementedError where S_dmask is to say which weights are dropped."""
    if dropout_p != 0 and return_attn_probs:
        raise NotImplementedError(
            f"dropout_p is {dropout_p}, and return_attn_probs {return_attn_probs}: weights are "
            "never formed, and flashattn.dropout.kept() says which are dropped"
        )


def refuse_foreign(
    needed: dict[str, Tensor], *, are_derived: bool = False, **optional: Tensor | None
) -> None:
    """Raises TypeError for what is no tensor, but for an optional one that is None, ValueError for
    tensors that are sparse, nested, without axes or on another device than the first, and
    NotImplementedError where autograd would expect a gradient of one, but for the needed ones where
    are_derived is set: torch_ops records their gradients, or refuses them."""
    given = {**needed, **{name: x for name, x in optional.items() if x is not None}}
    foreign.require(**given)
    first = next(iter(given))
    for name, x in given.items():
        if x.ndim == 0:
            raise ValueError(f"{name} is a single number, without axes")
        if x.device != given[first].device:
            raise ValueError(
                f"{name} is on the device {x.device}, and {first} on {given[first].device}"
            )
    refuse_gradients(**(optional if are_derived else given))


def refuse_foreign_of_cache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    rotary_cos: Tensor | None,
    rotary_sin: Tensor | None,
    cache_seqlens: int | Tensor | None,
    cache_batch_idx: Tensor | None,
    cache_leftpad: Tensor | None,
    **others: Tensor | None,
) -> None:
    """Raises as refuse_foreign() does for the tensors of both functions flash_attn_with_kvcache,
    and for others that one of them has."""
    refuse_foreign(
        {"q": q, "k_cache": k_cache, "v_cache": v_cache},
        k=k,
        v=v,
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        cache_seqlens=None if isinstance(cache_seqlens, int) else cache_seqlens,
        cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad,
        **others,
    )


def refuse_gradients(**tensors: Tensor | None) -> None:
    """Raises NotImplementedError where autograd would expect a gradient."""
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad:
            raise NotImplementedError(
                f"{name} requires a gradient, and there is none: call this under torch.no_grad(), "
                f"or with {name}.detach()"
            )


def refuse_other_v(k: Tensor, v: Tensor) -> None:
    """Raises NotImplementedError where v has another d_head, its last axis, than k."""
    if k.shape[-1] != v.shape[-1]:
        raise NotImplementedError(
            f"v has a d_head of {v.shape[-1]}, and k of {k.shape[-1]}: they must be the same"
        )


def softmax_options(
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    attention_chunk: int = 0,
) -> dict[str, Any]:
    """Returns the binding's keywords for these arguments. A negative side of a window is unbounded,
    and a softcap or a chunk that is not positive means none."""
    left, right = _numbers.window(window_size)
    return {
        "softmax_scale": softmax_scale,
        "causal": _numbers.is_true("causal", causal),
        "window_size": (max(left, -1), max(right, -1)),
        "softcap": max(_numbers.real("softcap", softcap), 0.0),
        "attention_chunk": max(_numbers.integer("attention_chunk", attention_chunk), 0),
    }


def multiprocessors(q: Tensor, sm_margin: int) -> dict[str, int]:
    """Returns the binding's keyword for a call that leaves sm_margin multiprocessors of q's device
    to others, at least one to itself. The CPU has none. Raises ValueError for a negative
    sm_margin."""
    sm_margin = _numbers.integer("sm_margin", sm_margin)
    if sm_margin < 0:
        raise ValueError(f"sm_margin is {sm_margin}: negative")
    if sm_margin == 0 or not q.is_cuda:
        return {}
    of_device = torch.cuda.get_device_properties(q.device).multi_processor_count
    return {"n_multiprocessors": max(of_device - sm_margin, 1)}


def has_values(tensor: Tensor) -> bool:
    """Returns whether a call may look at the values: it may on the CPU, unless a compiler only
    traces the call."""
    return tensor.is_cpu and type(tensor) is Tensor and not torch.compiler.is_compiling()


def contiguous_rows(tensor: Tensor | None) -> Tensor | None:
    """Returns the tensor, or a copy where its innermost axis is not contiguous."""
    return tensor.contiguous() if tensor is not None and tensor.stride(-1) != 1 else tensor


def lengths_of(name: str, lengths: Tensor | None, count: int) -> Tensor | None:
    """Returns the argument of this name: `count` contiguous int32 values. Raises ValueError for
    others."""
    if lengths is None:
        return None
    if lengths.dtype != torch.int32 or lengths.shape != (count,):
        raise ValueError(
            f"{name} is {lengths.dtype} {tuple(lengths.shape)}, not torch.int32 ({count},)"
        )
    return lengths.contiguous()


def ends_of(name: str, ends: Tensor | None) -> Tensor | None:
    """Returns the argument of this name, int32 [batch + 1], or a copy that is contiguous. Raises
    ValueError for others."""
    if ends is None:
        return None
    if ends.dtype != torch.int32 or ends.ndim != 1 or ends.shape[0] == 0:
        raise ValueError(f"{name} is {ends.dtype} {tuple(ends.shape)}, not torch.int32 [batch + 1]")
    return ends.contiguous()


def page_table_of(name: str, table: Tensor | None) -> Tensor | None:
    """Returns the argument of this name, int32 [rows, pages], or a copy where rows overlap or are
    not contiguous. Raises ValueError for others."""
    if table is None:
        return None
    if table.dtype != torch.int32 or table.ndim != 2:
        raise ValueError(
            f"{name} is {table.dtype} {tuple(table.shape)}, not torch.int32 [rows, pages]"
        )
    is_usable = table.stride(1) == 1 and table.stride(0) >= table.shape[1]
    return table if is_usable else table.contiguous()
