"""This module says which axes of a call's arrays are the batch and the heads: those along which
the call falls into calls that know nothing of each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import _argument_list
from .._argument_list import LENGTHS
from .call import Call

BATCH, HEADS, KV_HEADS = "batch", "heads", "kv_heads"

_PAGES = _argument_list.names_of("pages")
_TABLES = ("page_table", "v_page_table")
_MASKS = ("attn_mask", "mask_bits")
_OF_PAGES = ("k_descale", "v_descale")  # with page_scales
_OF_HEADS = {
    "sinks": HEADS,
    "mask_head_scale": HEADS,
    "alibi_slopes": HEADS,
    "k_descale": KV_HEADS,
    "v_descale": KV_HEADS,
}
_OF_A_SEQUENCE = (
    "page_rows",
    *(argument.name for argument in _argument_list.ATTENTION if argument.kind is LENGTHS),
)


class Axes(NamedTuple):
    """Names the axes of each array, None for one that is no batch and no heads.

    batch  the number of sequences, or None where the batch has no axis of its own: ragged batches,
           and page tables that are flat
    """

    batch: int | None
    n_heads: int
    n_heads_kv: int
    operands: tuple[tuple[str | None, ...], ...]
    results: tuple[tuple[str | None, ...], ...]


def axes_of(call: Call, arrays: Sequence[Any]) -> Axes:
    """Returns the axes of a call's arrays and results, from the arrays' shapes."""
    shapes = dict(zip(call.operands, (array.shape for array in arrays)))
    ragged = [name for name in ("cu_seqlens_q", "cu_seqlens_k", "page_indptr") if name in shapes]
    batch = None if ragged else shapes["q"][0]
    n_heads, n_heads_kv = shapes["q"][-2], shapes["k"][-2]
    names = _Names(shapes, batch, n_heads, dict(call.numbers).get("page_scales", False))
    found = (names.of(name) for name in call.operands)
    results = names.results[: 2 if call.return_lse else 1]
    return Axes(batch, n_heads, n_heads_kv, tuple(found), results)


class _Names:
    def __init__(
        self,
        shapes: dict[str, tuple[int, ...]],
        batch: int | None,
        n_heads: int,
        has_page_scales: bool,
    ) -> None:
        self._shapes, self._batch, self._n_heads = shapes, batch, n_heads
        self._has_page_scales = has_page_scales
        self._along = BATCH if batch is not None else None

    def of(self, name: str) -> tuple[str | None, ...]:
        n_axes = len(self._shapes[name])
        if name in _MASKS:
            return self._of_mask(self._shapes[name])
        if name in ("k", "v"):
            is_paged = any(page in self._shapes for page in _PAGES)
            return (None if is_paged else self._along, None, KV_HEADS, None)[4 - n_axes :]
        if name in _TABLES:
            return (None if "page_rows" in self._shapes else self._along, None)[:n_axes]
        if name in _OF_A_SEQUENCE:
            return (self._along,)
        if name == "q_descale":
            return self._of_q if n_axes > 2 else (self._along, KV_HEADS)[2 - n_axes :]
        if name in _OF_PAGES and self._has_page_scales:
            return (None, KV_HEADS)[2 - n_axes :]
        if name in _OF_HEADS:
            return (self._along, _OF_HEADS[name])[2 - n_axes :]
        return (None,) * n_axes if name != "q" else self._of_q

    @property
    def _of_q(self) -> tuple[str | None, ...]:
        return (self._along, None, HEADS, None)[4 - len(self._shapes["q"]) :]

    @property
    def results(self) -> tuple[tuple[str | None, ...], ...]:
        return self._of_q, (*self._of_q[:-3], HEADS, None)

    def _of_mask(self, shape: tuple[int, ...]) -> tuple[str | None, ...]:
        """Names no axis of length 1: the mask repeats along it."""
        along = self._along if shape[0] == self._batch != 1 else None
        heads = HEADS if shape[-3] == self._n_heads != 1 else None
        return (along, heads, None, None) if len(shape) == 4 else (heads, None, None)
