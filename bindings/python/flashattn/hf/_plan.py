"""This module decides how attention is computed for a mask's pattern, once for all layers that get
the mask."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..torch_ops import flash_attn_func
from ._packing import Packing, attend_packed
from ._padding import Padding, attend_masked
from ._patterns import Pattern

Options = dict[str, Any]  # keywords of torch_ops.flash_attn_func
Lengths = tuple[Optional[Tensor], Optional[Tensor]]


@dataclass(frozen=True)
class Sizes:
    """Holds what a mask is asked for.

    q_length, kv_length   numbers of queries and of keys that attention() will get
    q_offset, kv_offset   positions of the first of them; that of queries is a tensor where a static
                          cache counts them on the device
    """

    batch: int
    q_length: int
    kv_length: int
    q_offset: int | Tensor
    kv_offset: int
    device: torch.device | str = "cpu"


class Plan:
    """Holds how attention is computed. At most one of padding, packing and lengths is given.

    batch         the number of sequences; None where any number may come
    q_length      the number of queries
    kv_length     the number of keys that come, of which the first n_keys exist
    options       keywords of flash_attn_func: causal, window_size, attention_chunk
    padding       which of the keys are tokens
    packing       where packed sequences begin
    lengths       (seqused_k, leftpad_k), each a tensor [batch] or None: which keys of a sequence
                  its only query sees
    is_traceable  a compiled graph can hold attention: there is one query, and all that changes from
                  one to the next are the contents of tensors
    """

    __slots__ = (
        "batch", "q_length", "kv_length", "n_keys", "options", "padding", "packing", "lengths",
        "is_traceable", "_positions", "_packing_of_positions",
    )  # fmt: skip

    def __init__(
        self,
        sizes: Sizes,
        n_keys: int,
        options: Options,
        *,
        padding: Padding | None = None,
        packing: Packing | None = None,
        lengths: Lengths | None = None,
    ) -> None:
        is_any = padding is packing is lengths is None
        self.batch = None if is_any else sizes.batch
        self.q_length, self.kv_length, self.n_keys = sizes.q_length, sizes.kv_length, n_keys
        self.options, self.padding, self.packing = options, padding, packing
        self.lengths = lengths
        has_more = padding is not None or packing is not None or "attention_chunk" in options
        self.is_traceable = self.q_length == 1 and n_keys == self.kv_length and not has_more
        self._positions: Tensor | None = None
        self._packing_of_positions: Packing | None = None

    def fits(self, q: Tensor, k: Tensor) -> bool:
        """Returns whether q and k [batch, n_heads, seqlen, d_head] are what the mask was made
        for."""
        batch, _, n_queries, _ = q.shape
        return (
            n_queries == self.q_length
            and k.shape[2] == self.kv_length
            and (self.batch is None or self.batch == batch)
        )

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, options: Options, kwargs: dict[str, Any]
    ) -> Tensor:
        """Returns O [batch, seqlen_q, n_heads, d_head] of a plan that is not traceable.

        q, k, v   [batch, seqlen, heads, d_head], with contiguous rows
        options   the call's own keywords of flash_attn_func, without those of the plan
        kwargs    those of attention(), which may say how sequences are packed
        """
        options = {**options, **self.options}
        if self.padding is not None:
            return attend_masked(q, k, v, self.padding, self._are_queries_keys, **options)
        if self.packing is not None:
            return attend_packed(q, k, v, self.packing, self.packing, **options)
        if self.n_keys != self.kv_length:
            k, v = k[:, : self.n_keys], v[:, : self.n_keys]
        elif kwargs:
            of_q, of_k = self._packings(q, k, kwargs)
            if of_q is not None and of_k is not None:
                return attend_packed(q, k, v, of_q, of_k, **options)
        return flash_attn_func(q, k, v, **options)

    @property
    def _are_queries_keys(self) -> bool:
        return self.options["causal"] or self.options["window_size"] != (-1, -1)

    def _packings(
        self, q: Tensor, k: Tensor, kwargs: dict[str, Any]
    ) -> tuple[Packing | None, Packing | None]:
        of_q, of_k = Packing.of_arguments(q, k, kwargs)
        positions = kwargs.get("position_ids")
        if of_q is not None or positions is None:
            return of_q, of_k
        if self._positions is not positions:  # the host waits for the device
            self._positions = positions
            self._packing_of_positions = Packing.of_positions(positions, q, k)
        return self._packing_of_positions, self._packing_of_positions


def plan_of(pattern: Pattern, sizes: Sizes, tokens: Tensor | None) -> Plan | None:
    """Returns the plan of a pattern; None where the library's masks cannot say it.

    sizes    what settled() returns
    tokens   [batch, seqlen] of bool: which positions from 0 on are tokens; None: all of them
    """
    if pattern.chunk and not pattern.is_causal:
        return None
    if isinstance(sizes.q_offset, Tensor):
        return _static_plan(pattern, sizes, sizes.q_offset, tokens)
    n_keys = sizes.kv_length
    if pattern.has_order:
        n_keys = sizes.q_offset + sizes.q_length - sizes.kv_offset
    if n_keys > sizes.kv_length or (n_keys < sizes.kv_length and not pattern.is_causal):
        return None
    if pattern.sequence_ids is not None:
        is_square = n_keys == sizes.kv_length == sizes.q_length
        if tokens is not None or pattern.chunk or not is_square:
            return None
        packing = Packing.of_ids(pattern.sequence_ids)
        return Plan(sizes, n_keys, _options_of(pattern, n_keys), packing=packing)
    keys = _keys(tokens, sizes, n_keys)
    if pattern.chunk:
        return _chunk_plan(pattern, sizes, n_keys, keys)
    padding = None if keys is None or bool(keys.all()) else Padding(keys)
    if sizes.q_length == 1:
        return _plan_of_one_query(pattern, sizes, n_keys, None, padding)
    options = _options_of(pattern, n_keys)
    has_window = options["window_size"] != (-1, -1)
    if padding is not None and padding.has_gaps and has_window:
        return None  # the window would count the tokens alone
    return Plan(sizes, n_keys, options, padding=padding)


def _options_of(pattern: Pattern, n_keys: int) -> Options:
    """Returns the options for n_keys keys: a side of a window that reaches them all is unbounded,
    as is the right one beside a causal mask."""
    left, right = (-1 if side >= n_keys - 1 else side for side in pattern.window)
    window = (left, -1 if pattern.is_causal else right)
    return {"causal": pattern.is_causal, "window_size": window}


def _keys(tokens: Tensor | None, sizes: Sizes, n_keys: int) -> Tensor | None:
    """Returns which keys are tokens, [batch, n_keys]."""
    if tokens is None:
        return None
    missing = sizes.kv_offset + n_keys - tokens.shape[1]
    return pad(tokens, (0, max(missing, 0)))[:, sizes.kv_offset : sizes.kv_offset + n_keys]


# ---- One query ----


def settled(sizes: Sizes, pattern: Pattern | None) -> Sizes:
    """Returns sizes whose q_offset is a tensor only where a plan can do with one: for one query,
    which sees what is in a cache, or the last part of it. The tensor is a copy: a static cache adds
    to its own when it gets the keys."""
    if not isinstance(sizes.q_offset, Tensor):
        return sizes
    has_rest = pattern is None or pattern.chunk > 0 or pattern.sequence_ids is not None
    if not has_rest and pattern.is_causal and sizes.q_length == 1:
        return replace(sizes, q_offset=sizes.q_offset.clone())
    return replace(sizes, q_offset=int(sizes.q_offset))


def _static_plan(
    pattern: Pattern, sizes: Sizes, q_offset: Tensor, tokens: Tensor | None
) -> Plan | None:
    """Returns the plan of a static cache that counts its keys on the device. The host looks at
    them only where there may be padding."""
    used = (q_offset + (1 - sizes.kv_offset)).to(torch.int32).reshape(1).expand(sizes.batch)
    used = used.contiguous()
    padding = None
    n_keys = sizes.kv_length
    if tokens is not None:
        n_keys, has_all = torch.stack((used[0], tokens.all().to(torch.int32))).tolist()
        if not has_all or tokens.shape[1] < sizes.kv_offset + n_keys:
            padding = Padding(_keys(tokens, sizes, n_keys))
    return _plan_of_one_query(pattern, sizes, n_keys, used, padding)


def _plan_of_one_query(
    pattern: Pattern, sizes: Sizes, n_keys: int, used: Tensor | None, padding: Padding | None
) -> Plan | None:
    """Returns a plan that stays the same from query to query but for the contents of tensors, so
    that a compiled step of a model and its CUDA graph can be used again; None for padding between
    tokens, and beside a window for padding to the right.

    used   int32 [batch]: n_keys, where the device has it
    """
    options = _options_of(pattern, sizes.kv_length)
    if padding is None and used is None and n_keys == sizes.kv_length:
        return Plan(sizes, n_keys, options)
    if used is None:
        shape = (sizes.batch,)
        used = torch.full(shape, n_keys, dtype=torch.int32, device=sizes.device)
    if padding is None:
        return Plan(sizes, sizes.kv_length, options, lengths=(used, None))
    has_window = options["window_size"] != (-1, -1)
    if padding.has_gaps or (has_window and not padding.is_left):
        return None
    if not padding.is_left:
        used = padding.device_starts + padding.device_lengths
    leftpad = padding.device_starts if any(padding.starts) else None
    return Plan(sizes, sizes.kv_length, options, lengths=(used, leftpad))


# ---- Chunks ----


def _chunk_plan(pattern: Pattern, sizes: Sizes, n_keys: int, keys: Tensor | None) -> Plan | None:
    """Returns the plan of queries that are the last of n_keys keys; None where it would not be that
    of the pattern.

    The library's chunks begin with the first token of a sequence. A cache drops keys in the middle
    of a chunk: the rest of that chunk counts as padding.
    """
    if pattern.left_padding is None or pattern.window != (-1, -1):
        return None
    first = pattern.left_padding - sizes.kv_offset
    rest = torch.where(first < 0, first % pattern.chunk, 0)
    is_behind = torch.arange(n_keys, device=rest.device) >= rest[:, None]
    padding = Padding(is_behind if keys is None else keys & is_behind)
    is_seen = max(rest.tolist()) > n_keys - sizes.q_length  # the rest of a chunk, by a query
    if is_seen or padding.has_gaps:
        return None
    for start, length, begin in zip(padding.starts, padding.lengths, first.tolist()):
        if length and (start - begin) % pattern.chunk:
            return None
    options = _options_of(pattern, n_keys)
    if pattern.chunk < n_keys:
        options["attention_chunk"] = pattern.chunk
    return Plan(sizes, n_keys, options, padding=None if padding.is_none else padding)
