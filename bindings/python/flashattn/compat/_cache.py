"""This module describes a cache of K and V as flash-attn does: where its tokens lie, and with which
keywords the binding writes to it and reads it in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._arguments import lengths_of


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

    def options(self) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Returns (k, v, keywords) for the binding."""
        if self.table is not None or self.rows is not None:
            return self.k, self.v, {"page_table": self.table, "page_rows": self.rows}
        if self.k.shape[0] == self.batch:
            return self.k, self.v, {}
        return self.k[: self.batch], self.v[: self.batch], {}

    def pages_of_tokens(self, leftpad: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Returns (k, v, keywords) for the binding to read pages from leftpad on, [batch] int32:
        the first key of each sequence. They are pools of pages of one token."""
        n_pages, size, *_ = self.k.shape
        try:
            k, v = (x.view(n_pages * size, 1, *x.shape[2:]) for x in (self.k, self.v))
        except RuntimeError:
            raise NotImplementedError(
                "cache_leftpad is given with pages in a k_cache or v_cache whose first two axes "
                f"cannot be seen as one: shapes {tuple(self.k.shape)}, strides {self.k.stride()} "
                f"and {self.v.stride()}"
            ) from None
        rank = torch.arange(self.capacity, device=leftpad.device)
        position = (leftpad[:, None] + rank).clamp(0, self.capacity - 1)
        row = torch.arange(self.batch, device=leftpad.device) if self.rows is None else self.rows
        page = self.table[row.long()[:, None], position // size].long()
        return k, v, {"page_table": (page * size + position % size).to(torch.int32)}
