"""This module has attention(), the function of transformers' AttentionInterface."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..compat._arguments import contiguous_rows, page_table_of, refuse_gradients
from ..compat._cache import Cache
from ..compat._kvcache import Queries, attend_cache, new_tokens
from ..torch_ops import flash_attn_func
from ._masks import PatternMask
from ._packing import Packing, attend_packed
from ._padding import Padding, attend_masked

# Some models have these arguments, which change the result; the values say what they stand for.
_REFUSED = {
    "sinks": "attention sinks that differ from query to query",
    "position_bias": "a bias added to the scores",
    "indices": "keys chosen for each query",
    "block_indices": "blocks of keys chosen for each query",
    "output_attentions": "attention weights, which are never formed",
}
_NO_LENGTHS = (None, None)
_float32 = torch.float32


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Returns (O [batch, seqlen_q, n_heads, d_head], None) of one layer.

    module          the layer; its is_causal counts where is_causal is None
    query           [batch, n_heads, seqlen_q, d_head]
    key, value      [batch, n_heads_kv, seqlen_k, d_head]
    dropout         the probability by which weights are dropped, by a state of torch's generator of
                    the device; a model in eval() passes 0
    attention_mask  what mask_of() returns; or another mask: [batch, seqlen_k], or [batch, 1 or
                    n_heads, seqlen_q, seqlen_k] of bool or of numbers that join the scores
    scaling         None: 1 / sqrt(d_head)
    sliding_window  how many tokens a query sees to its left, itself included; without a causal mask
                    also to its right
    s_aux           attention sinks [n_heads]: one more logit per head in the softmax, without a
                    value
    kwargs          cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k, or position_ids, of
                    a packed batch; of a paged cache block_table, k_cache and v_cache too

    is_causal and sliding_window count where the mask is None or [batch, seqlen_k], and not what
    mask_of() has returned: the other masks have the order and the window in them.

    torch records gradients of query, key, value and s_aux. Raises NotImplementedError for those of
    a paged cache and on CUDA devices beyond a head dimension of 256, for attention weights, and
    arguments that change the result in a way that the library cannot compute.
    """
    is_traced = torch.compiler.is_compiling()
    if is_traced and not _is_traceable(attention_mask):
        return _outside_of_graphs(
            module, query, key, value, attention_mask, dropout, scaling, sliding_window, softcap,
            is_causal, s_aux, **kwargs,
        )  # fmt: skip
    if is_traced or not _REFUSED.keys().isdisjoint(kwargs):
        _refuse(kwargs)
    if query.dtype is _float32 or key.dtype is _float32 or value.dtype is _float32:
        query, key, value = map(_as_in_autocast, (query, key, value))
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if not q.stride(3) == k.stride(3) == v.stride(3) == 1:
        q, k, v = map(contiguous_rows, (q, k, v))
    if type(attention_mask) is PatternMask:
        plan = attention_mask.plan
        if plan is None or not plan.fits(query, key):
            attention_mask = _elements_of(attention_mask, query, key)
        elif plan.is_traceable:  # most calls, for which every function more would count
            used, leftpad = plan.lengths or _NO_LENGTHS
            out = flash_attn_func(
                q, k, v, softmax_scale=scaling, causal=plan.options["causal"],
                window_size=plan.options["window_size"], softcap=softcap or 0.0, sinks=s_aux,
                seqused_k=used, leftpad_k=leftpad, dropout_p=dropout,
            )  # fmt: skip
            return out, None
    options = {"softmax_scale": scaling, "softcap": softcap or 0.0, "sinks": s_aux}
    if dropout:
        options["dropout_p"] = dropout
    if type(attention_mask) is PatternMask:
        return attention_mask.plan.attend(q, k, v, options, kwargs), None
    if attention_mask is not None and attention_mask.ndim == 4:
        mask = attention_mask[..., : key.shape[2]]
        return flash_attn_func(q, k, v, attn_mask=mask, **options), None
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    side = -1 if sliding_window is None else max(sliding_window - 1, -1)
    options.update(causal=bool(is_causal), window_size=(side, side))
    return _attend(q, k, v, attention_mask, kwargs, options), None


_outside_of_graphs = torch.compiler.disable(attention)


def _is_traceable(mask: Tensor | None) -> bool:
    """Returns whether attention with this mask can be part of a compiled graph: the host need not
    look at what is on the device."""
    if type(mask) is PatternMask:
        return mask.plan is not None and mask.plan.is_traceable
    return mask is not None and mask.ndim == 4


def _elements_of(mask: PatternMask, query: Tensor, key: Tensor) -> Tensor:
    """Returns the array of a mask that a model has written to, or that is for other sizes than
    those of query and key. Raises ValueError where torch would not add it to the scores, either."""
    if mask.plan is None:
        return mask.elements
    shape = query.shape[0], 1, query.shape[2], key.shape[2]
    try:
        return mask.elements.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"attention_mask is for {list(mask.shape)}, and the scores of this layer are "
            f"{list(shape)}: [batch, heads, queries, keys]"
        ) from None


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    kwargs: dict[str, Any],
    options: dict[str, Any],
) -> Tensor:
    if mask is not None:
        return _attend_masked(q, k, v, mask, options)
    if kwargs.get("block_table") is not None:
        return _attend_paged(q, k, v, kwargs, options)
    of_q, of_k = Packing.of_arguments(q, k, kwargs)
    if of_q is None:
        of_q = of_k = Packing.of_positions(kwargs.get("position_ids"), q, k)
    if of_q is None or of_k is None:
        return flash_attn_func(q, k, v, **options)
    return attend_packed(q, k, v, of_q, of_k, **options)


def _attend_masked(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: dict[str, Any]
) -> Tensor:
    if mask.ndim != 2:
        raise ValueError(f"attention_mask has shape {tuple(mask.shape)}: it must have 2 or 4 axes")
    padding = Padding(mask)
    has_window = options["window_size"] != (-1, -1)
    if has_window and padding.has_gaps:
        raise NotImplementedError(
            "attention_mask has padding between the tokens of a sequence, and there is a sliding "
            "window: use attn_implementation='sdpa' or 'eager'"
        )
    are_queries_keys = has_window or options["causal"]
    return attend_masked(q, k, v, padding, are_queries_keys, **options)


def _attend_paged(
    q: Tensor, k: Tensor, v: Tensor, kwargs: dict[str, Any], options: dict[str, Any]
) -> Tensor:
    """Returns O of one new token per sequence, which is written into its page of the cache.

    q, k, v         [1, sequences, heads, d_head]; v may be narrower than the cache, whose heads are
                    as wide for V as for K
    cu_seq_lens_k   int32 [sequences + 1] or more: lengths with the new tokens
    """
    refuse_gradients(query=q, key=k, value=v)
    n_sequences = q.shape[1]
    lengths = kwargs["cu_seq_lens_k"][: n_sequences + 1].diff().to(torch.int32)
    table = page_table_of("block_table", kwargs["block_table"])
    cache = Cache(kwargs["k_cache"], kwargs["v_cache"], table, None, n_sequences)
    d_head_v = v.shape[-1]
    v = pad(v, (0, max(cache.v.shape[-1] - d_head_v, 0)))
    out = attend_cache(
        Queries(q.transpose(0, 1)),
        cache,
        new=new_tokens(k.transpose(0, 1), v.transpose(0, 1), cache),
        rotary=None,
        lengths=lengths - 1,
        leftpad=None,
        **options,
    )
    return out[..., :d_head_v].transpose(0, 1)


def _as_in_autocast(x: Tensor) -> Tensor:
    """Returns x in the type of autocast where it is float32 and autocast is on: there norms leave q
    and k in float32 beside a v of 16 bits."""
    device = x.device.type
    if x.dtype == torch.float32 and torch.is_autocast_enabled(device):
        return x.to(torch.get_autocast_dtype(device))
    return x


def _refuse(kwargs: dict[str, Any]) -> None:
    for name, meaning in _REFUSED.items():
        value = kwargs.get(name)
        if value is not None and value is not False:
            raise NotImplementedError(
                f"{name} is given: libflashattn has not {meaning}; use attn_implementation='eager'"
            )
