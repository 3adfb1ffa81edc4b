"""This module has the call that writes new tokens into a cache of K and V, and turns them and Q to
their positions on the way."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from . import _abi, _numbers, _stream, _tensor, latent
from ._library import check, library
from ._paging import Paging
from ._quant import Quant
from ._tensor import View
from .device import device_info


def flash_kv_append(
    k_new: Any,
    v_new: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    seqused_k: Any = None,
    seqused_k_out: Any = None,
    slot_mapping: Any = None,
    cu_seqlens_new: Any = None,
    page_table: Any = None,
    v_page_table: Any = None,
    page_indptr: Any = None,
    page_rows: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    kv_dtype: str | tuple[str | None, str | None] | None = None,
    q: Any = None,
    q_out: Any = None,
    cu_seqlens_q: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    rotary_interleaved: bool = False,
    rotary_positions: Any = None,
    rotary_start: Any = None,
    rotary_q_at_start: bool = False,
    page_scales: bool = False,
) -> Any:
    """Writes new tokens into a cache: token i of sequence b becomes its key seqused_k[b] + i.

    k_new, v_new       [batch, seqlen_new, n_heads_kv, d_head], or ragged [total_new, n_heads_kv,
                       d_head]; the d_head of v_new and v_cache may differ from that of k_new and
                       k_cache. v_new and v_cache None: the cache has no V of its own
    k_cache, v_cache   [batch, seqlen_k, n_heads_kv, d_head], or [n_pages, page_size, n_heads_kv,
                       d_head], which are written: of float32, float16 or bfloat16, or of
                       float8_e4m3fn, each whatever the new tokens are
    seqused_k          [batch] int32: keys that each sequence has so far
    seqused_k_out      [batch] int32, written: keys that each sequence has then, which is seqused_k
                       of the attention call that follows
    slot_mapping       [tokens] int64, instead of seqused_k: the place of each token, page *
                       page_size + place in the page; negative: the token is padding, and is not
                       written. k_new may be [tokens, n_heads_kv, d_head] without cu_seqlens_new
    cu_seqlens_new     [batch + 1] int32: sequence b has the tokens cu_seqlens_new[b] up to
                       cu_seqlens_new[b + 1] of k_new and v_new
    page_table, v_page_table, page_indptr, page_rows, k_descale, v_descale
                       as in flash_attn_func; scales belong to a cache of float8_e4m3fn
    kv_dtype           "latent_e4m3": k_cache has latent tokens, uint8 [..., 656], and k_new 576
                       columns, without v_new, v_cache and rotary embedding; each 128 columns get
                       the scale that makes the largest of them 448. "q8_0" or "q4_0": k_cache and
                       v_cache have rows of ggml's blocks, uint8 [..., d_head / 32 * 34] or 18
                       instead of 34, which get the bits of ggml's reference. A pair is the type of
                       k_cache and that of v_cache. None: the arrays say it
    q                  [batch, seqlen_q, n_heads, d_head], ragged [total_q, n_heads, d_head]:
                       queries to turn
    q_out              array for them, of any type; q itself: in place; None: a new one like q
    cu_seqlens_q       [batch + 1] int32: as cu_seqlens_new, for q
    rotary_cos, rotary_sin
                       [n_positions, rotary_dim / 2]: turn the first rotary_dim elements of each
                       head of k_new and q; None: nothing turns
    rotary_interleaved element 2 i turns with element 2 i + 1; otherwise i with i + rotary_dim / 2
    rotary_positions   [tokens] int64: the position of each token of k_new, and of q
    rotary_start       [batch] int32: the position of a sequence's first new token and first query,
                       the others follow it; None: seqused_k
    rotary_q_at_start  all queries of a sequence have the position of the first
    page_scales        k_descale and v_descale are [n_pages, n_heads_kv], or numbers: a token is
                       divided by the scale of the page, or slot, that it goes to

    Returns the turned queries, None without q. No two tokens may have the same place. CUDA arrays
    are written on the caller's current stream. A token without a place raises ValueError before
    anything is written; in CUDA memory, where the call cannot look, it is not written. Raises as
    flash_attn_func.
    """
    rotary_interleaved = _numbers.is_true("rotary_interleaved", rotary_interleaved)
    rotary_q_at_start = _numbers.is_true("rotary_q_at_start", rotary_q_at_start)
    page_scales = _numbers.is_true("page_scales", page_scales)
    stream = _stream.of_call(k_new=k_new, v_new=v_new, k_cache=k_cache, v_cache=v_cache, q=q)
    if q is not None and q_out is None:
        q_view = _tensor.view(q, "q", stream)
        q_out = _tensor.empty(q, q_view.device, q_view.shape, q_view.dtype, "q_out")
    append = _Append(k_new, slot_mapping is not None, cu_seqlens_new, cu_seqlens_q, stream)
    append.set_cache(v_new, k_cache, v_cache, kv_dtype)
    append.set_queries(q, q_out)
    append.set_places(seqused_k, seqused_k_out, slot_mapping)
    if any(x is not None for x in (slot_mapping, page_table, v_page_table, page_indptr, page_rows)):
        append.set_pages(page_table, v_page_table, page_indptr, page_rows)
    else:
        append.check_entries()
    if rotary_cos is None and rotary_sin is None:
        _refuse_rotary(
            rotary_interleaved=rotary_interleaved,
            rotary_positions=rotary_positions is not None,
            rotary_start=rotary_start is not None,
            rotary_q_at_start=rotary_q_at_start,
        )
    else:
        append.set_rotary(rotary_cos, rotary_sin, rotary_positions, rotary_start)
        if rotary_interleaved:
            append.rotary.flags |= _abi.FLASH_ROTARY_INTERLEAVED
        if rotary_q_at_start:
            append.rotary.flags |= _abi.FLASH_ROTARY_Q_AT_START
    if page_scales:
        append.args.flags |= _abi.FLASH_FLAG_PAGE_SCALES
    if k_descale is not None or v_descale is not None:
        append.set_scales(k_descale, v_descale, page_scales)
    check(library().flash_kv_append(append.args, stream))
    return q_out


def _refuse_rotary(**is_given: bool) -> None:
    """Raises ValueError for options of an embedding whose tables are missing."""
    for name, given in is_given.items():
        if given:
            raise ValueError(f"{name} is given without rotary_cos and rotary_sin")


class _Append:
    """Holds the arguments of one call; the views keep the caller's arrays alive."""

    def __init__(
        self, k_new: Any, has_slots: bool, cu_seqlens_new: Any, cu_seqlens_q: Any, stream: int
    ) -> None:
        self._like, self._stream = k_new, stream
        self._kept: list[Any] = []
        # Tokens in slots need no sequences: a tensor of them alone is a batch of one.
        n_axes = len(k_new.shape) if has_slots and cu_seqlens_new is None else 4
        self._is_flat = cu_seqlens_new is not None or n_axes == 3
        self._ragged_q = cu_seqlens_q is not None
        self.k_new = _tensor.key_view(k_new, "k_new", 3 if self._is_flat else 4, stream)
        if self.k_new.device != _abi.FLASH_DEVICE_CPU:
            device_info(self.k_new.device)  # this refuses what the library cannot reach
        self.args = _abi.flash_kv_append_args_t(
            device=self.k_new.device,
            dtype=_tensor.KEY_DTYPES[self.k_new.dtype],
            k_new=_tensor.c_tensor(self.k_new, ragged=self._is_flat),
            seqlen_new=self.k_new.shape[-3],
            n_heads_kv=self.k_new.shape[-2],
            d_head=self.k_new.shape[-1],
        )
        if self.k_new.repeats:
            self.args.flags |= _abi.FLASH_FLAG_BROADCAST
        self.args.batch = self._batch(cu_seqlens_new)
        self.args.cu_seqlens_new = self._int32(cu_seqlens_new, "cu_seqlens_new", 1)
        self.args.cu_seqlens_q = self._int32(cu_seqlens_q, "cu_seqlens_q", 1)
        if cu_seqlens_new is None and self._is_flat and self._ragged_q:
            raise ValueError("cu_seqlens_q is given, and cu_seqlens_new is not")

    def set_cache(self, v_new: Any, k_cache: Any, v_cache: Any, kv_dtype: _tensor.KvDtype) -> None:
        new_axes = 3 if self._is_flat else 4
        of_k, of_v = _tensor.parts_of_kv_dtype(kv_dtype)
        self.k = _tensor.named_view(
            k_cache, "k_cache", 4, of_k, latent.COLUMNS, self._stream
        )
        self._check_cache("k_cache", self.k, "k_new", self.k_new)
        self.args.k = _tensor.c_tensor(self.k)
        self.args.seqlen_k = self.k.shape[1]
        if v_new is None and v_cache is None:
            return
        if v_new is None or v_cache is None:
            raise ValueError("v_new is given without v_cache, or v_cache without v_new")
        v = _tensor.key_view(v_new, "v_new", new_axes, self._stream)
        v_to = _tensor.named_view(v_cache, "v_cache", 4, of_v, latent.CODES, self._stream)
        for name, shape, other_name, other in (
            ("v_new", v.shape, "k_new", self.k_new.shape),
            ("v_cache", v_to.shape, "k_cache", self.k.shape),
        ):
            if shape[:-1] != other[:-1]:
                raise ValueError(
                    f"{name} has shape {shape}, {other_name} has {other}: only the last axis may "
                    "differ"
                )
        self._check_cache("v_cache", v_to, "v_new", v)
        if v.shape[-1] == 0:  # to the C API 0 is d_head
            raise ValueError("v_new has d_head_v (last axis) 0: it must be at least 1")
        self._same_device(v_new=v)
        self._kept += [v, v_to]
        self.args.v_new = _tensor.c_tensor(v, ragged=self._is_flat)
        self.args.v = _tensor.c_tensor(v_to)
        self.args.d_head_v = v.shape[-1]
        if v.repeats:
            self.args.flags |= _abi.FLASH_FLAG_BROADCAST

    def set_queries(self, q: Any, q_out: Any) -> None:
        if q is None:
            if q_out is not None:
                raise ValueError("q_out is given without q")
            return
        is_flat = self._ragged_q or (self._is_flat and not self.args.cu_seqlens_new)
        n_axes = 3 if is_flat else 4
        view = _tensor.key_view(q, "q", n_axes, self._stream)
        to = _tensor.key_view(q_out, "q_out", n_axes, self._stream)
        if to.shape != view.shape:
            raise ValueError(f"q_out has shape {to.shape}, q has {view.shape}")
        if view.shape[-1] != self.args.d_head:
            raise ValueError(
                f"q has d_head (last axis) {view.shape[-1]}, k_new has {self.args.d_head}"
            )
        if not is_flat and view.shape[0] != self.args.batch:
            raise ValueError(f"q has batch (first axis) {view.shape[0]}, not {self.args.batch}")
        self._same_device(q=view, q_out=to)
        _tensor.check_outputs(q_out=to)
        self._kept += [view, to]
        self.args.q = _tensor.c_tensor(view, ragged=is_flat)
        self.args.q_out = _tensor.c_tensor(to, ragged=is_flat)
        self.args.seqlen_q, self.args.n_heads = view.shape[-3:-1]
        if view.repeats:
            self.args.flags |= _abi.FLASH_FLAG_BROADCAST

    def set_places(self, seqused_k: Any, seqused_k_out: Any, slot_mapping: Any) -> None:
        self.args.seqused_k = self._int32(seqused_k, "seqused_k")
        if seqused_k_out is not None:
            after = _tensor.lengths_view(
                seqused_k_out, "seqused_k_out", self.args.batch, self._stream
            )
            _tensor.check_outputs(seqused_k_out=after)
            self._same_device(seqused_k_out=after)
            self.args.seqused_k_out = after.data
        self.args.slot_mapping = self._int64(slot_mapping, "slot_mapping")

    def set_pages(
        self, page_table: Any, v_page_table: Any, page_indptr: Any, page_rows: Any
    ) -> None:
        batch = self.args.batch
        self._paging = Paging(
            self.k.shape,
            batch,
            table=self._table(page_table, "page_table", page_indptr),
            v_table=self._table(v_page_table, "v_page_table", page_indptr),
            indptr=self._lengths(page_indptr, "page_indptr", batch + 1),
            rows=self._lengths(page_rows, "page_rows", batch, _tensor.rows_view),
            on_host=self.args.device == _abi.FLASH_DEVICE_CPU,
        )
        self.args.seqlen_k = self._paging.longest(None)
        self.args.paging = ctypes.addressof(self._paging.struct)

    def check_entries(self) -> None:
        """Raises ValueError unless a contiguous cache has an entry for each sequence."""
        if self.k.shape[0] != self.args.batch:
            raise ValueError(
                f"k_cache has batch (first axis) {self.k.shape[0]}, not {self.args.batch}"
            )

    def set_rotary(self, cos: Any, sin: Any, positions: Any, start: Any) -> None:
        if cos is None or sin is None:
            raise ValueError("rotary_cos is given without rotary_sin, or rotary_sin without it")
        tables = [
            _tensor.tensor_view(table, name, 2, self._stream)
            for name, table in (("rotary_cos", cos), ("rotary_sin", sin))
        ]
        self._same_device(rotary_cos=tables[0], rotary_sin=tables[1])
        first, second = ((x.shape, x.dtype, x.strides) for x in tables)
        if first != second:
            raise ValueError(
                f"rotary_sin has shape {second[0]}, type {second[1]} and strides {second[2]}, "
                f"rotary_cos {first[0]}, {first[1]} and {first[2]}"
            )
        self._kept += tables
        n_positions, n_pairs = tables[0].shape
        self.rotary = _abi.flash_rotary_t(
            dtype=_tensor.DTYPES[tables[0].dtype],
            cos=tables[0].data,
            sin=tables[1].data,
            stride_position=tables[0].strides[0],
            n_positions=n_positions,
            rotary_dim=2 * n_pairs,
            positions=self._int64(positions, "rotary_positions"),
            start=self._int32(start, "rotary_start"),
        )
        self.args.rotary = ctypes.addressof(self.rotary)

    def set_scales(self, k_descale: Any, v_descale: Any, are_of_pages: bool) -> None:
        n = self.k.shape[0] if are_of_pages else self.args.batch
        shape = (n, self.args.n_heads_kv)
        self._quant = Quant(self._like, self.k_new, shape, self._stream, "k_new")
        self._quant.set("k_descale", "k_scale", k_descale)
        self._quant.set("v_descale", "v_scale", v_descale)
        self.args.quant = ctypes.addressof(self._quant.struct)

    def _batch(self, cu_seqlens: Any) -> int:
        if cu_seqlens is None:
            return 1 if self._is_flat else self.k_new.shape[0]
        count = self._lengths(cu_seqlens, "cu_seqlens_new", None).shape[0]
        if count == 0:
            raise ValueError("cu_seqlens_new is empty: batch + 1 values, from 0 on")
        return count - 1

    def _check_cache(self, name: str, cache: View, new_name: str, new: View) -> None:
        if cache.shape[-2:] != new.shape[-2:]:
            raise ValueError(
                f"{name} has heads and d_head {cache.shape[-2:]}, {new_name} has {new.shape[-2:]}"
            )
        self._same_device(**{name: cache})
        _tensor.check_outputs(**{name: cache})

    def _same_device(self, **views: View) -> None:
        _tensor.check_same_device("k_new", self.k_new, **views)

    def _lengths(
        self,
        array: Any,
        name: str,
        count: int | None,
        view: Callable[..., View] = _tensor.lengths_view,
    ) -> View | None:
        if array is None:
            return None
        found = view(array, name, count, self._stream)
        self._same_device(**{name: found})
        self._kept.append(found)
        return found

    def _int32(self, array: Any, name: str, more: int = 0) -> int | None:
        """Returns the address of batch + `more` values."""
        return _tensor.address(self._lengths(array, name, self.args.batch + more))

    def _int64(self, array: Any, name: str) -> int | None:
        """Returns the address of a value per token of k_new."""
        if array is None:
            return None
        n_tokens = self.args.seqlen_new * (1 if self._is_flat else self.args.batch)
        view = _tensor.int64_view(array, name, n_tokens, self._stream)
        self._same_device(**{name: view})
        self._kept.append(view)
        return _tensor.address(view)

    def _table(self, array: Any, name: str, page_indptr: Any) -> View | None:
        if array is None:
            return None
        n_axes = 2 if page_indptr is None else 1
        table = _tensor.table_view(array, name, n_axes, self._stream)
        self._same_device(**{name: table})
        return table
