"""This module computes attention over batches with padding, by calls that leave the padding out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._torch import gradients
from ..compat._arguments import contiguous_rows
from ..compat._call import attend_ragged
from ..torch_ops import flash_attn_func


class Padding:
    """Holds what a mask [batch, n_keys] says, in numbers that the host knows.

    mask            bool: which keys are tokens
    starts          the first token of each sequence, 0 where there is none
    lengths         the number of tokens of each sequence
    device_starts, device_lengths   the same as int32 [batch], on the mask's device
    has_gaps        a sequence has padding between its tokens
    is_left         no token of a sequence has padding after it
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask.bool()
        n_keys = self.mask.shape[1]
        ints = self.mask.to(torch.int32)
        first, last = ints.argmax(1), n_keys - 1 - ints.flip(1).argmax(1)
        self.device_starts = first.to(torch.int32)
        self.device_lengths = ints.sum(1, dtype=torch.int32)
        gaps = (self.device_lengths > 0) & (last - first + 1 != self.device_lengths)
        facts = torch.stack((first, self.device_lengths.long(), gaps.long())).tolist()
        self.starts, self.lengths = facts[0], facts[1]
        self.has_gaps = any(facts[2])
        bounds = zip(self.starts, self.lengths)
        self.is_left = not self.has_gaps and all(n in (0, n_keys - start) for start, n in bounds)
        self._ragged: dict[tuple[int, bool], Ragged] = {}

    @property
    def n_keys(self) -> int:
        return self.mask.shape[1]

    @property
    def is_none(self) -> bool:
        return min(self.lengths) == self.n_keys

    def runs(self, behind: int) -> list[slice]:
        """Returns the tokens of each sequence among the keys from `behind` on, counted from there.
        The mask must have no gaps."""
        bounds = zip(self.starts, self.lengths)
        return [
            slice(max(start - behind, 0), max(start + length - behind, 0))
            for start, length in bounds
        ]

    def ragged(self, n: int, are_keys: bool) -> Ragged:
        """Returns the tokens among the last n keys, or all of n queries that are no keys."""
        if (n, are_keys) not in self._ragged:
            batch, n_keys = self.mask.shape
            mask = self.mask[:, n_keys - n :] if are_keys else self.mask.new_ones((batch, n))
            lengths = mask.sum(1, dtype=torch.int32)
            cu_seqlens = pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
            self._ragged[n, are_keys] = Ragged(mask.nonzero(as_tuple=True), cu_seqlens)
        return self._ragged[n, are_keys]


@dataclass(frozen=True)
class Ragged:
    """Holds the tokens of a padded batch, one sequence after the other: the row and the column of
    each, and cu_seqlens int32 [batch + 1]."""

    indices: tuple[Tensor, Tensor]
    cu_seqlens: Tensor


def attend_masked(
    q: Tensor, k: Tensor, v: Tensor, padding: Padding, are_queries_keys: bool, **options: Any
) -> Tensor:
    """Returns O [batch, seqlen_q, n_heads, d_head], 0 for queries that are padding.

    q                 [batch, seqlen_q, n_heads, d_head]
    k, v              [batch, n_keys or more, n_heads_kv, d_head]
    are_queries_keys  the queries are the last seqlen_q of the n_keys tokens, and padding as those
                      are; otherwise all of them count
    options           keywords of torch_ops.flash_attn_func
    """
    k, v = k[:, : padding.n_keys], v[:, : padding.n_keys]
    q, k, v = map(contiguous_rows, (q, k, v))
    if padding.is_none:
        return flash_attn_func(q, k, v, **options)
    out = q.new_zeros((*q.shape[:-1], v.shape[-1]))
    records = gradients.are_wanted((q, k, v, options.get("sinks")), {})
    if records or options.get("dropout_p"):
        # Calls that write to a given O record none. Which weights are dropped must not depend on
        # whether gradients are recorded: reentrant checkpoints do so only as they compute again.
        return _attend_gathered(q, k, v, out, padding, are_queries_keys, **options)
    has_run = not padding.has_gaps
    if has_run and not any(padding.starts) and (q.shape[1] == k.shape[1] or not are_queries_keys):
        used = padding.device_lengths
        lengths = {"seqused_k": used, "seqused_q": used if are_queries_keys else None}
        return flash_attn_func(q, k, v, out=out, **lengths, **options)
    is_cpu, is_one = q.device.type == "cpu", q.shape[0] == 1
    skips_queries = are_queries_keys and max(padding.starts) > padding.n_keys - q.shape[1]
    if padding.is_left and not is_one and not (is_cpu and skips_queries):
        leftpad = padding.n_keys - padding.device_lengths
        return flash_attn_func(q, k, v, out=out, leftpad_k=leftpad, **options)
    if has_run and (is_cpu or is_one):
        return _attend_each(q, k, v, out, padding, are_queries_keys, **options)
    return _attend_gathered(q, k, v, out, padding, are_queries_keys, **options)


def _attend_each(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    padding: Padding,
    are_queries_keys: bool,
    **options: Any,
) -> Tensor:
    """Calls the library for each sequence, and reads its tokens where they are. On a CPU one
    sequence is enough to keep all threads busy, and queries that are padding take no time."""
    every_query = [slice(0, q.shape[1])] * q.shape[0]
    queries = padding.runs(padding.n_keys - q.shape[1]) if are_queries_keys else every_query
    for b, (of_q, of_k) in enumerate(zip(queries, padding.runs(0))):
        if of_q.start < of_q.stop:
            one = slice(b, b + 1)
            flash_attn_func(q[one, of_q], k[one, of_k], v[one, of_k], out=out[one, of_q], **options)
    return out


def _attend_gathered(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    padding: Padding,
    are_queries_keys: bool,
    **options: Any,
) -> Tensor:
    """Calls the library once, with copies of the tokens, one sequence after the other."""
    keys = padding.ragged(padding.n_keys, True)
    queries = padding.ragged(q.shape[1], are_queries_keys)
    out[queries.indices] = attend_ragged(
        q[queries.indices],
        k[keys.indices],
        v[keys.indices],
        cu_seqlens_q=queries.cu_seqlens,
        cu_seqlens_k=keys.cu_seqlens,
        max_seqlen_q=q.shape[1],
        max_seqlen_k=max(padding.lengths),
        **options,
    )
    return out
