"""This module decides how attention is computed for a mask's pattern, once for all layers that get
the mask."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..torch_ops import flash_attn_func
from ._packing import Packing, attend_packed
from ._padding import Padding, attend_masked
from ._patterns import Pattern

Options = dict[str, Any]  # keywords of torch_ops.flash_attn_func


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


class Plan:
    """Holds how attention is computed. At most one of padding, packing and lengths is given.

    batch      the number of sequences; None where any number may come
    q_length   the number of queries
    kv_length  the number of keys that come, of which the first n_keys exist
    options    keywords of flash_attn_func: causal, window_size, attention_chunk
    padding    which of the keys are tokens
    packing    where packed sequences begin
    lengths    (seqused_k, leftpad_k or None): a static cache's keys, known to the device alone
    """

    __slots__ = (
        "batch", "q_length", "kv_length", "n_keys", "options", "padding", "packing", "lengths",
        "_positions", "_packing_of_positions",
    )  # fmt: skip

    def __init__(
        self,
        sizes: Sizes,
        n_keys: int,
        options: Options,
        *,
        padding: Padding | None = None,
        packing: Packing | None = None,
        lengths: tuple[Tensor, Tensor | None] | None = None,
    ) -> None:
        is_any = padding is packing is lengths is None
        self.batch = None if is_any else sizes.batch
        self.q_length, self.kv_length, self.n_keys = sizes.q_length, sizes.kv_length, n_keys
        self.options, self.padding, self.packing = options, padding, packing
        self.lengths = lengths
        self._positions: Tensor | None = None
        self._packing_of_positions: Packing | None = None

    def fits(self, q: Tensor, k: Tensor) -> bool:
        """Returns whether q and k [batch, n_heads, seqlen, d_head] are what the mask was made
        for."""
        return (
            q.shape[2] == self.q_length
            and k.shape[2] == self.kv_length
            and (self.batch is None or self.batch == q.shape[0])
        )

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, options: Options, kwargs: dict[str, Any]
    ) -> Tensor:
        """Returns O [batch, seqlen_q, n_heads, d_head].

        q, k, v   [batch, seqlen, heads, d_head], with contiguous rows
        options   the call's own keywords of flash_attn_func, without those of the plan
        kwargs    those of attention(), which may say how sequences are packed
        """
        options = {**options, **self.options}
        if self.lengths is not None:
            used, leftpad = self.lengths
            return flash_attn_func(q, k, v, seqused_k=used, leftpad_k=leftpad, **options)
        if self.padding is not None:
            return attend_masked(q, k, v, self.padding, self._are_queries_keys, **options)
        if self.packing is not None:
            return attend_packed(q, k, v, self.packing, self.packing, **options)
        if self.n_keys != self.kv_length:
            k, v = k[:, : self.n_keys], v[:, : self.n_keys]
        elif self.q_length > 1 and kwargs:
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
    options = _options_of(pattern, n_keys)
    if keys is None or bool(keys.all()):
        return Plan(sizes, n_keys, options)
    padding = Padding(keys)
    has_window = options["window_size"] != (-1, -1)
    if padding.has_gaps and has_window:  # which would count the tokens alone
        return None
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


# ---- Static caches ----


def settled(sizes: Sizes, pattern: Pattern | None) -> Sizes:
    """Returns sizes whose q_offset is a tensor only where a plan can do with one: for one query,
    which sees what is in a cache, or the last part of it."""
    if not isinstance(sizes.q_offset, Tensor):
        return sizes
    has_rest = pattern is None or pattern.chunk > 0 or pattern.sequence_ids is not None
    if not has_rest and pattern.is_causal and sizes.q_length == 1:
        return sizes
    return replace(sizes, q_offset=int(sizes.q_offset))


def _static_plan(
    pattern: Pattern, sizes: Sizes, q_offset: Tensor, tokens: Tensor | None
) -> Plan | None:
    """Returns a plan that stays the same from token to token but for the contents of tensors, so
    that a compiled step of a model and its CUDA graph can be used again."""
    used = (q_offset + (1 - sizes.kv_offset)).to(torch.int32).reshape(1).expand(sizes.batch)
    leftpad = None
    if tokens is not None:
        n_keys, has_all = torch.stack((used[0], tokens.all().to(torch.int32))).tolist()
        if not has_all or tokens.shape[1] < sizes.kv_offset + n_keys:
            keys = _keys(tokens, sizes, n_keys)
            padding = Padding(keys)
            if not padding.is_left or min(padding.lengths) == 0:
                return None
            leftpad = n_keys - padding.device_lengths
    options = _options_of(pattern, sizes.kv_length)
    return Plan(sizes, sizes.kv_length, options, lengths=(used.contiguous(), leftpad))


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
