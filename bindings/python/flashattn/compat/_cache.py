"""This module describes a cache of K and V as flash-attn does: where its tokens lie, how new ones
are written into it, and with which keywords the binding reads it in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._arguments import has_values, lengths_of
from ._tokens import Tokens


class Cache:
    """Holds K and V of some sequences.

    k, v      [entries, size, n_heads_kv, d_head]: an entry is a sequence's place in the cache, or a
              page where there is a table
    table     [rows, pages] int32, from page_table_of(): the pages of a sequence, in order
    rows      [batch] int32: the row of the table, or the entry, of each sequence; None: b of
              sequence b
    """

    def __init__(
        self, k: Tensor, v: Tensor, table: Tensor | None, rows: Tensor | None, batch: int
    ) -> None:
        for name, cache in (("k_cache", k), ("v_cache", v)):
            if cache.ndim != 4:
                raise ValueError(f"{name} has {cache.ndim} axes, not 4: {tuple(cache.shape)}")
            if cache.stride(-1) != 1:
                raise ValueError(f"{name} is not contiguous along its innermost axis")
        self.k, self.v, self.batch = k, v, batch
        self.rows = lengths_of("cache_batch_idx", rows, batch)
        self.table = table
        n_entries = 1 if table is None else table.shape[1]
        self.capacity = n_entries * k.shape[1]

    def options(self, leftpad: Tensor | None) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Returns (k, v, keywords) for the binding. leftpad [batch] int32 is the first key of each
        sequence; None: 0."""
        if leftpad is not None:
            k, v, table = self._pages_of_one_token(leftpad)
            return k, v, {"page_table": table}
        if self.table is None and self.rows is None:
            return self.k[: self.batch], self.v[: self.batch], {}
        return self.k, self.v, {"page_table": self.table, "page_rows": self.rows}

    def append(self, k: Tensor, v: Tensor, tokens: Tokens, starts: Tensor) -> None:
        """Writes tokens k, v [n_tokens, n_heads_kv, d_head] behind the first starts[b] tokens of
        each sequence b.

        In eager code on the CPU a token without room raises ValueError before anything is written.
        On a CUDA device and in compiled graphs, which do not look at lengths, it is dropped.
        """
        if not k.shape[0] or not self.batch:
            return
        position = tokens.positions(starts)
        nearest = position.clamp(0, self.capacity - 1)
        entry, offset = self._place(tokens, nearest)
        nearest_entry = entry.clamp(0, self.k.shape[0] - 1)
        has_room = (nearest == position) & (nearest_entry == entry)
        if has_values(position):
            self._check_room(tokens, starts, has_room)
        # Every token must be written somewhere, since the number of those to keep is not known
        # here. So each of the others repeats what the first one to keep does. If none is to be
        # kept, they write back what is there.
        kept = (has_room if tokens.exists is None else tokens.exists & has_room).flatten()
        row = torch.arange(k.shape[0], device=kept.device)
        row = torch.where(kept, row, kept.to(torch.uint8).argmax())
        is_any_kept = kept.any()
        at = nearest_entry.expand_as(offset).flatten()[row], offset.flatten()[row]
        for cache, new in ((self.k, k), (self.v, v)):
            cache, new = _as_bytes(cache), _as_bytes(new)
            cache.index_put_(at, torch.where(is_any_kept, new[row], cache[at]))

    def _place(self, tokens: Tokens, position: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (entry, offset) of the tokens at these positions, which must be less than the
        capacity."""
        row = tokens.sequence if self.rows is None else tokens.of_sequences(self.rows).long()
        if self.table is None:
            return row, position
        size = self.k.shape[1]
        return self.table[row, position // size].long(), position % size

    def _check_room(self, tokens: Tokens, starts: Tensor, has_room: Tensor) -> None:
        without = ~has_room if tokens.exists is None else tokens.exists & ~has_room
        if without.any():
            b = int(tokens.sequence.expand_as(without)[without][0])
            raise ValueError(
                f"cache_seqlens[{b}] is {int(starts[b])}, and k has {tokens.length(b)} new "
                f"tokens of that sequence: the cache has no place for them (capacity "
                f"{self.capacity}, and every page must be one of {self.k.shape[0]})"
            )

    def _pages_of_one_token(self, leftpad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns K and V as pools of pages of one token, and a page table of them that begins at
        leftpad."""
        n_entries, size, *_ = self.k.shape
        try:
            k, v = (x.view(n_entries * size, 1, *x.shape[2:]) for x in (self.k, self.v))
        except RuntimeError:
            raise NotImplementedError(
                "cache_leftpad is given with a k_cache or v_cache whose first two axes cannot be "
                f"seen as one: shapes {tuple(self.k.shape)}, strides {self.k.stride()} and "
                f"{self.v.stride()}"
            ) from None
        tokens = Tokens.padded(self.batch, self.capacity, leftpad.device)
        position = tokens.positions(leftpad).clamp(0, self.capacity - 1)
        entry, offset = self._place(tokens, position)
        return k, v, (entry * size + offset).to(torch.int32)


def _as_bytes(x: Tensor) -> Tensor:
    """Returns elements of 8 bits as integers, for which torch has all operations; others as they
    are."""
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x
