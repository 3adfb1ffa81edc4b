"""This module computes torch's scaled_dot_product_attention by this library, where a program asks
for it.

    import flashattn.sdpa
    import torch

    flashattn.sdpa.register()
    torch.nn.attention.activate_flash_attention_impl("flashattn")
    ...
    torch.nn.attention.restore_flash_attention_impl()

While it is active, the library computes what torch would give to its own flash kernels, with
gradients, the same bits in every call. attn_mask is served on the CPU, bool or in numbers; on CUDA
devices torch gives calls with one, or with heads of more than 256 elements, to other kernels than
its flash kernels. torch's kernels stay in use for types, heads and scales that the library does not
serve (a scale is positive and finite in float32), and masks that require a gradient. Dropout is
served on CUDA devices, by a state of torch's generator, and drops other weights than torch's
kernels, so that it must be active in both passes of a call; on the CPU torch has no flash kernel
with it. The module needs torch 2.11 or newer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor

from ._torch.dropout import rng_state_of
from ._torch.forward import is_scale
from ._torch.gradients import has_gradients
from .config import most_d_head_on_cuda
from .torch_ops import flash_attn_func

__all__ = ["NAME", "register"]

NAME = "flashattn"

# Dropout holds a probability, and the state that says which weights are dropped.
Dropout = tuple[float, Optional[Tensor]]

_TYPES = {
    "CPU": (torch.float32, torch.float16, torch.bfloat16),
    "CUDA": (torch.float16, torch.bfloat16),
}
_MASK_TYPES = (torch.bool, *_TYPES["CPU"])
_OPERATORS = {
    "CPU": "_scaled_dot_product_flash_attention_for_cpu",
    "CUDA": "_scaled_dot_product_flash_attention",
}
_BACKWARDS = {key: f"{operator}_backward" for key, operator in _OPERATORS.items()}


def register(name: str = NAME) -> None:
    """Makes the library known to torch.nn.attention.activate_flash_attention_impl by this name.
    Nothing is computed differently before a program calls that function."""
    attention = torch.nn.attention
    if name not in attention.list_flash_attention_impls():
        attention.register_flash_attention_impl(name, register_fn=_Overrides)


class _Overrides:
    """Puts the library in the place of torch's kernels, from construction to remove()."""

    def __init__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        self._own = {key: _kernel(operator, key) for key, operator in _OPERATORS.items()}
        self._own_backward = {key: _kernel(operator, key) for key, operator in _BACKWARDS.items()}
        attention = {"CPU": self._on_cpu, "CUDA": self._on_cuda}
        backwards = {"CPU": self._backward_on_cpu, "CUDA": self._backward_on_cuda}
        with warnings.catch_warnings():  # torch warns that its kernels are overridden
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            for key in _OPERATORS:
                if self._own[key] is not None:
                    self._put(_OPERATORS[key], attention[key], key)
                if self._own_backward[key] is not None:
                    self._put(_BACKWARDS[key], backwards[key], key)

    def _put(self, operator: str, function: Callable[..., Any], key: str) -> None:
        self._library.impl(operator, function, key, allow_override=True)

    def remove(self) -> None:
        self._library = None  # its end gives the operators back to torch's kernels

    def _on_cpu(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        served = _is_served(query, key, value, dropout_p, scale, "CPU")
        if served and _is_mask_served(attn_mask):
            batch, n_heads, seqlen_q, _ = query.shape
            lse = query.new_empty(batch, seqlen_q, n_heads, dtype=torch.float32).transpose(1, 2)
            o = _attend(query, key, value, is_causal, scale, lse, attn_mask)
            if attn_mask is not None:
                # torch's backward pass, which may be back by then, computes P = exp(score - LSE):
                # 0 where a row sees no key.
                lse.masked_fill_(lse == -torch.inf, torch.inf)
            return o, lse
        arguments = query, key, value, dropout_p, is_causal
        return _call(self._own, "CPU", *arguments, attn_mask=attn_mask, scale=scale)

    def _backward_on_cpu(
        self,
        grad_out: Tensor | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        dropout_p: float,
        is_causal: bool,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> tuple[Tensor | None, ...]:
        if grad_out is None:  # as of a function behind attention whose backward() returns None
            return None, None, None
        served = _is_served(query, key, value, dropout_p, scale, "CPU")
        if served and (attn_mask is None or attn_mask.dtype in _MASK_TYPES):
            results = [_as_tokens(x) for x in (query, key, value)]
            tensors = grad_out, query, key, value, out, logsumexp
            return _gradients(*tensors, is_causal, scale, results, attn_mask)
        arguments = grad_out, query, key, value, out, logsumexp, dropout_p, is_causal
        return _call(self._own_backward, "CPU", *arguments, attn_mask=attn_mask, scale=scale)

    def _on_cuda(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        return_debug_mask: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[Any, ...]:
        needs_gradient = any(x.requires_grad for x in (query, key, value))
        is_served = _is_served(query, key, value, dropout_p, scale, "CUDA")
        if not is_served or return_debug_mask or (needs_gradient and not has_gradients(query)):
            arguments = query, key, value, dropout_p, is_causal, return_debug_mask
            return _call(self._own, "CUDA", *arguments, scale=scale)
        lse = query.new_empty(query.shape[:3], dtype=torch.float32)
        state = rng_state_of(dropout_p, None, query)
        o = _attend(query, key, value, is_causal, scale, lse, dropout=(dropout_p, state))
        seed, offset = (query.new_empty(shape, dtype=torch.uint64) for shape in ((2,), ()))
        seed = seed if state is None else state.view(torch.uint64)
        debug_mask = query.new_empty(0)
        return o, lse, None, None, query.shape[2], key.shape[2], seed, offset, debug_mask

    def _backward_on_cuda(
        self,
        grad_out: Tensor | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        cum_seq_q: Tensor | None,
        cum_seq_k: Tensor | None,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        philox_seed: Tensor,
        philox_offset: Tensor,
        *,
        scale: float | None = None,
    ) -> tuple[Tensor | None, ...]:
        if grad_out is None:
            return None, None, None
        tensors = grad_out, query, key, value, out, logsumexp
        if _is_served(query, key, value, dropout_p, scale, "CUDA") and has_gradients(query):
            results = [torch.empty_like(x) for x in (query, key, value)]
            dropout = dropout_p, philox_seed if dropout_p != 0 else None
            return _gradients(*tensors, is_causal, scale, results, dropout=dropout)
        sizes = cum_seq_q, cum_seq_k, max_q, max_k
        random = philox_seed, philox_offset
        arguments = *tensors, *sizes, dropout_p, is_causal, *random
        return _call(self._own_backward, "CUDA", *arguments, scale=scale)


def _call(kernels: dict[str, Any], key: str, *arguments: Any, **options: Any) -> Any:
    """Calls torch's own kernel for a dispatch key."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return kernels[key].call_boxed(keys, *arguments, **options)


def _kernel(operator: str, key: str) -> Any:
    """Returns torch's kernel of an operator; None where torch was built without it."""
    try:
        return torch.library.get_kernel(f"aten::{operator}", key)
    except RuntimeError:
        return None


def _is_served(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, scale: float | None, key: str
) -> bool:
    d_head = q.shape[-1]
    return (
        (dropout_p == 0 or (key == "CUDA" and 0 < dropout_p < 1 and has_gradients(q)))
        and (scale is None or is_scale(scale))
        and q.dtype in _TYPES[key]
        and k.shape[-1] == v.shape[-1] == d_head
        and k.shape[1] == v.shape[1]
        and q.shape[1] % max(k.shape[1], 1) == 0
        and d_head > 0
        and (key == "CPU" or d_head <= most_d_head_on_cuda())
        and all(x.stride(-1) == 1 for x in (q, k, v))
    )


def _is_mask_served(mask: Tensor | None) -> bool:
    return mask is None or (mask.dtype in _MASK_TYPES and not mask.requires_grad)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    scale: float | None,
    lse: Tensor,
    mask: Tensor | None = None,
    dropout: Dropout = (0.0, None),
) -> Tensor:
    """Returns O [batch, n_heads, seqlen_q, d_head], laid out as query is, since torch's compilers
    rely on that; writes LSE to `lse`."""
    q, k, v, window = _in_order(query, key, value, is_causal)
    o = torch.empty_like(query)
    with torch.no_grad():
        flash_attn_func(
            q,
            k,
            v,
            softmax_scale=scale,
            window_size=window,
            attn_mask=mask,
            out=o.transpose(1, 2),
            lse=lse,
            dropout_p=dropout[0],
            rng_state=dropout[1],
        )
    return o


def _gradients(
    d_o: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    o: Tensor,
    lse: Tensor,
    is_causal: bool,
    scale: float | None,
    results: list[Tensor],
    mask: Tensor | None = None,
    dropout: Dropout = (0.0, None),
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of query, key and value, written to `results`, whose layout is that of
    torch's own."""
    q, k, v, (left, right) = _in_order(query, key, value, is_causal)
    if mask is not None:
        lse = lse.masked_fill(lse == torch.inf, -torch.inf)
    dq, dk, dv = (x.transpose(1, 2) for x in results)
    n_seen = k.shape[1]
    for x in (dk, dv):
        x[:, n_seen:] = 0
    torch.ops.flashattn.bwd.out(
        *(d_o.transpose(1, 2), q, k, v, o.transpose(1, 2), lse),
        softmax_scale=scale,
        window_left=left,
        window_right=right,
        attn_mask=mask,
        dropout_p=dropout[0],
        rng_state=dropout[1],
        dq=dq,
        dk=dk[:, :n_seen],
        dv=dv[:, :n_seen],
    )
    return tuple(results)


def _in_order(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor, tuple[int, int]]:
    """Returns q, k and v [batch, seqlen, heads, d_head], without keys that no query sees, and the
    window. In torch's causal mask query i sees keys 0 ... i, while the library's mask is aligned to
    the last key."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    if not is_causal:
        return q, k, v, (-1, -1)
    if seqlen_k > seqlen_q:
        k, v = k[:, :seqlen_q], v[:, :seqlen_q]
    return q, k, v, (-1, max(seqlen_q - seqlen_k, 0))


def _as_tokens(x: Tensor) -> Tensor:
    """Returns a new tensor like x [batch, heads, seqlen, d_head], in the order of tokens."""
    return torch.empty_permuted(x.shape, (0, 2, 1, 3), dtype=x.dtype, device=x.device)
