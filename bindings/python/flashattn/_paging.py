"""This module passes K and V in pages: it fills flash_paging_t of a call, and checks what the C API
cannot see."""

from __future__ import annotations

from . import _abi, _tensor
from ._tensor import View

_INT32_MAX = 2**31 - 1


class Paging:
    """Holds the pages of one call: `struct` points into the caller's arrays, which the views keep
    alive.

    k_shape is [n_pages, page_size, n_heads_kv, d_head]; without a table k is a cache of slots, and
    rows says which one each sequence has.
    """

    def __init__(
        self,
        k_shape: tuple[int, ...],
        batch: int,
        *,
        table: View | None,
        v_table: View | None,
        indptr: View | None,
        rows: View | None,
        on_host: bool,
    ) -> None:
        self.n_pages, self.page_size = k_shape[:2]
        self.table, self.v_table, self.indptr, self.rows = table, v_table, indptr, rows
        self._check_tables(batch)
        if on_host:
            self._check_ends(batch)
        is_wide = rows is not None and rows.dtype == "int64"
        self.struct = _abi.flash_paging_t(
            page_size=self.page_size,
            n_pages=self.n_pages,
            page_table=_tensor.address(table),
            page_table_stride=self._stride(),
            page_indptr=_tensor.address(indptr),
            page_rows=None if is_wide else _tensor.address(rows),
            v_page_table=_tensor.address(v_table),
            page_rows64=_tensor.address(rows) if is_wide else None,
        )

    def longest(self, max_seqlen_k: int | None) -> int:
        """Returns a bound on the keys of a sequence: max_seqlen_k, or what a row of the table can
        hold where that is less or max_seqlen_k is None."""
        n_ids = 1 if self.table is None else self.table.shape[-1]
        room = min(n_ids * self.page_size, _INT32_MAX)
        return room if max_seqlen_k is None else min(max_seqlen_k, room)

    def _stride(self) -> int:
        if self.table is None or self.indptr is not None:
            return 0
        n_rows, n_ids = self.table.shape
        return self.table.strides[0] if n_rows > 1 else n_ids

    def _check_tables(self, batch: int) -> None:
        table, v_table = self.table, self.v_table
        if table is None:
            for name, given in (("page_indptr", self.indptr), ("v_page_table", v_table)):
                if given is not None:
                    raise ValueError(f"{name} is given without page_table")
            return
        if self.indptr is None and self._stride() < table.shape[1]:
            raise ValueError(
                f"page_table has rows of {table.shape[1]} ids, and {self._stride()} from one row "
                "to the next: give page_rows where sequences share a row"
            )
        if self.indptr is None and self.rows is None and table.shape[0] < batch:
            raise ValueError(f"page_table has {table.shape[0]} rows for a batch of {batch}")
        if v_table is not None and (v_table.shape, v_table.strides) != (table.shape, table.strides):
            raise ValueError(
                f"v_page_table has shape {v_table.shape} and strides {v_table.strides}, page_table "
                f"{table.shape} and {table.strides}"
            )

    def _check_ends(self, batch: int) -> None:
        """Raises ValueError where page_indptr or page_rows points beyond the table: the C API knows
        where ids begin, but not how many the table has."""
        if self.table is None:
            return
        if self.indptr is not None:
            end = _tensor.read_integer(self.indptr, batch)
            if end > self.table.shape[0]:
                raise ValueError(
                    f"page_indptr ends at {end}, page_table has {self.table.shape[0]} ids"
                )
        for b in range(batch if self.rows is not None else 0):
            row = _tensor.read_integer(self.rows, b)
            if row >= self.table.shape[0]:
                raise ValueError(
                    f"page_rows[{b}] is {row}, page_table has {self.table.shape[0]} rows"
                )
