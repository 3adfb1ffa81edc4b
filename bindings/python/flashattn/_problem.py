"""This module turns the arguments of a Python call into flash_forward_args_t, with Python's checks.

It checks only what the C API cannot see (shapes against each other, types, devices, the memory
behind ragged lengths); the library checks values, with its own messages.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from . import _abi, _argument_list, _numbers, _stream, _tensor, latent
from ._bias import Mask, Sizes, slopes_view
from ._dropout import Dropout
from ._paging import Paging
from ._quant import Quant
from ._sinks import sinks_view
from ._tensor import View
from .device import device_info

_PAGES = _argument_list.names_of("pages")
_SCALES = _argument_list.names_of("scales", "q_scales")
# O has this type where q has one that O cannot have.
_OF_NARROW = {"float8_e4m3fn": "bfloat16"}
_MASK = tuple(name for name in _argument_list.names_of("bias") if name != "alibi_slopes")


class Problem:
    """Holds one attention problem: args is filled but for o, lse and the workspace.

    o_shape and lse_shape are the shapes of the outputs, o_dtype the name of O's element type,
    stream the CUDA stream of the call. The views keep the caller's arrays alive.
    """

    def __init__(self, q: Any, k: Any, v: Any, options: Mapping[str, Any]) -> None:
        """Takes those keywords of flash_attn_func and flash_attn_varlen_func that describe a
        problem, any of them. Raises TypeError for others."""
        given = _argument_list.complete(options)
        _tensor.check_dtype_name("out_dtype", given["out_dtype"])
        kv_dtype = _tensor.parts_of_kv_dtype(given["kv_dtype"])
        self.ragged_q = given["cu_seqlens_q"] is not None
        arrays = {name: given[name] for name in _argument_list.ARRAYS if given[name] is not None}
        self.stream = _stream.of_call(q=q, k=k, v=v, **arrays)
        where = [given[name] for name in _PAGES]
        self._is_paged = any(array is not None for array in where)
        ragged_k = given["cu_seqlens_k"] is not None and not self._is_paged
        self.q = _tensor.query_view(q, 3 if self.ragged_q else 4, self.stream)
        self.k, self.v = self._keys(k, v, 3 if ragged_k else 4, kv_dtype)
        self._check_shapes()
        self.out_dtype = given["out_dtype"]

        self.args = _abi.flash_forward_args_t(
            device=self.q.device,
            dtype=_tensor.DTYPES[self.o_dtype],
            q=_tensor.c_tensor(self.q, ragged=self.ragged_q),
            k=_tensor.c_tensor(self.k, ragged=ragged_k),
            v=_tensor.c_tensor(self.v, ragged=ragged_k),
            n_heads=self.q.shape[-2],
            n_heads_kv=self.k.shape[-2],
            d_head=self.q.shape[-1],
            d_head_v=self.v.shape[-1],
        )
        self._set_numbers(given)
        self._set_window(given["window_size"])
        if self.q.repeats or self.k.repeats or self.v.repeats:
            self.args.flags |= _abi.FLASH_FLAG_BROADCAST
        self.args.batch = self._batch_size(given["cu_seqlens_q"], given["cu_seqlens_k"])
        self._set_pages(*where)
        self._set_ragged(given)
        self._set_lengths(given)
        scales = {name: given[name] for name in _SCALES if given[name] is not None}
        if scales:
            self._set_scales(q, **scales)
        self._set_sinks(given["sinks"])
        self._set_slopes(given["alibi_slopes"])
        self._set_bias_mask(*(given[name] for name in _MASK))
        self._set_dropout(given["dropout_p"], given["rng_state"])

    @property
    def o_dtype(self) -> str:
        """Gives the name of O's type, unless set_output() brings an array of another type."""
        return self.out_dtype or _OF_NARROW.get(self.q.dtype, self.q.dtype)

    @property
    def device(self) -> int:
        return self.q.device

    @property
    def o_shape(self) -> tuple[int, ...]:
        """Gives the shape of O: that of Q, with heads as wide as those of V."""
        return (*self.q.shape[:-1], self.v.shape[-1])

    @property
    def lse_shape(self) -> tuple[int, ...]:
        """Gives the shape of LSE: [batch, n_heads, seqlen_q], ragged: [n_heads, total_q]."""
        *batch, seqlen, n_heads, _ = self.q.shape
        return (*batch, n_heads, seqlen)

    @property
    def mask_columns(self) -> int:
        """Gives the number of keys that the call's mask covers."""
        return self._bias_mask.struct.n_keys

    def set_output(self, out: Any, lse: Any) -> None:
        """Points args at the arrays of O and, unless None, LSE."""
        _stream.check(self.stream, out=out, lse=lse)
        o = _tensor.tensor_view(out, "out", len(self.q.shape), self.stream)
        if o.shape != self.o_shape:
            raise ValueError(f"out has shape {o.shape}, not {self.o_shape}")
        if self.out_dtype is not None and o.dtype != self.out_dtype:
            raise ValueError(f"out is {o.dtype}, and out_dtype {self.out_dtype}")
        found = None
        if lse is not None:
            found = _tensor.lse_view(lse, "lse", self.lse_shape, self.stream)
        _tensor.check_same_device("q", self.q, out=o, lse=found)
        _tensor.check_outputs(out=o, lse=found)
        self.args.o = _tensor.c_tensor(o, ragged=self.ragged_q)
        if found is not None:
            self.args.lse = found.data
            for member, stride in _tensor.lse_strides(found, ragged=self.ragged_q).items():
                setattr(self.args, member, stride)

    def _keys(
        self, k: Any, v: Any, n_axes: int, kv_dtype: tuple[str | None, str | None]
    ) -> tuple[View, View]:
        """Returns views of the columns of k and v, also where an array has bytes."""
        of_k, of_v = kv_dtype
        return (
            _tensor.named_view(k, "k", n_axes, of_k, latent.COLUMNS, self.stream),
            _tensor.named_view(v, "v", n_axes, of_v, latent.CODES, self.stream),
        )

    def _check_shapes(self) -> None:
        q, k, v = self.q, self.k, self.v
        _tensor.check_same_device("q", q, k=k, v=v)
        if v.shape[:-1] != k.shape[:-1]:
            raise ValueError(
                f"v has shape {v.shape}, k has {k.shape}: only the last axis may differ"
            )
        _same("d_head (last axis)", "k", k.shape[-1], "q", q.shape[-1])
        if v.shape[-1] == 0 and q.shape[-1] != 0:  # the C API takes a d_head_v of 0 for d_head
            raise ValueError("v has d_head_v (last axis) 0: it must be at least 1")
        if len(q.shape) == 4 and len(k.shape) == 4 and not self._is_paged:
            _same("batch (first axis)", "k", k.shape[0], "q", q.shape[0])
        if q.device != _abi.FLASH_DEVICE_CPU:
            device_info(q.device)  # this refuses what the library cannot reach, in its own words

    def _set_numbers(self, given: dict[str, Any]) -> None:
        """Sets the members and flags that an argument gives by itself. Members of the defaults are
        0."""
        for name, flag in _FLAGS:
            if given[name] is not False and _numbers.is_true(name, given[name]):
                self.args.flags |= flag
        for name, default, number in _NUMBERS:
            if given[name] is not default:
                setattr(self.args, name, number(name, given[name]))

    def _set_window(self, window_size: tuple[int, int]) -> None:
        left, right = _numbers.window(window_size)
        if (left, right) != (-1, -1):
            self.args.flags |= _abi.FLASH_FLAG_WINDOW
            self.args.window_left = _numbers.int64("window_size[0]", left)
            self.args.window_right = _numbers.int64("window_size[1]", right)

    def _set_ragged(self, given: dict[str, Any]) -> None:
        args = self.args
        self.cu_seqlens_q = self._lengths(given["cu_seqlens_q"], "cu_seqlens_q", args.batch + 1)
        self.cu_seqlens_k = self._lengths(given["cu_seqlens_k"], "cu_seqlens_k", args.batch + 1)
        args.cu_seqlens_q = _tensor.address(self.cu_seqlens_q)
        args.cu_seqlens_k = _tensor.address(self.cu_seqlens_k)
        args.seqlen_q = self._seqlen("q", self.q, self.cu_seqlens_q, given["max_seqlen_q"])
        if self._paging is not None:
            longest = _numbers.bound("max_seqlen_k", given["max_seqlen_k"])
            args.seqlen_k = self._paging.longest(longest)
        else:
            args.seqlen_k = self._seqlen("k", self.k, self.cu_seqlens_k, given["max_seqlen_k"])
        self._check_totals()

    def _set_lengths(self, given: dict[str, Any]) -> None:
        """Sets the members that point to a length of each sequence."""
        self.lengths = {}
        for name in _LENGTHS:
            if given[name] is not None:
                self.lengths[name] = self._lengths(given[name], name, self.args.batch)
                setattr(self.args, name, _tensor.address(self.lengths[name]))

    def _set_pages(
        self, page_table: Any, v_page_table: Any, page_indptr: Any, page_rows: Any
    ) -> None:
        self._paging = None
        if not self._is_paged:
            return
        batch = self.args.batch
        self._paging = Paging(
            self.k.shape,
            batch,
            table=self._table(page_table, "page_table", page_indptr),
            v_table=self._table(v_page_table, "v_page_table", page_indptr),
            indptr=self._lengths(page_indptr, "page_indptr", batch + 1),
            rows=self._lengths(page_rows, "page_rows", batch, _tensor.rows_view),
            on_host=self.q.device == _abi.FLASH_DEVICE_CPU,
        )
        self.args.paging = ctypes.addressof(self._paging.struct)

    def _set_scales(
        self,
        q: Any,
        k_descale: Any = None,
        v_descale: Any = None,
        q_descale: Any = None,
        page_scales: bool = False,
    ) -> None:
        shape = (self.args.batch, self.args.n_heads_kv)
        of_keys = (self.k.shape[0], shape[1]) if page_scales and self._is_paged else shape
        self._quant = Quant(q, self.q, shape, self.stream)
        self._quant.set("k_descale", "k_scale", k_descale, of_keys)
        self._quant.set("v_descale", "v_scale", v_descale, of_keys)
        self._quant.set_query(q_descale, self.q.shape)
        self.args.quant = ctypes.addressof(self._quant.struct)

    def _set_sinks(self, sinks: Any) -> None:
        if sinks is None:
            return
        self._sinks = sinks_view(sinks, self.q.shape[-2], self.stream)
        _tensor.check_same_device("q", self.q, sinks=self._sinks)
        self.args.sinks = self._sinks.data

    def _set_slopes(self, alibi_slopes: Any) -> None:
        if alibi_slopes is None:
            return
        self._slopes = slopes_view(alibi_slopes, self._score_sizes(), self.stream)
        _tensor.check_same_device("q", self.q, alibi_slopes=self._slopes)
        self.args.alibi_slopes = self._slopes.data
        if len(self._slopes.shape) == 2:
            self.args.alibi_stride_batch = self._slopes.strides[0]

    def _set_bias_mask(
        self, attn_mask: Any, mask_bits: Any, mask_keys: int | None, head_scale: Any
    ) -> None:
        if attn_mask is None and mask_bits is None:
            for name, value in (("mask_keys", mask_keys), ("mask_head_scale", head_scale)):
                if value is not None:
                    raise ValueError(f"{name} is given without attn_mask or mask_bits")
            return
        sizes = self._score_sizes()
        self._bias_mask = Mask(attn_mask, mask_bits, mask_keys, head_scale, sizes, self.stream)
        _tensor.check_same_device("q", self.q, **self._bias_mask.arrays)
        self.args.mask = self._bias_mask.address
        if self._bias_mask.repeats_column:
            self.args.flags |= _abi.FLASH_FLAG_BROADCAST

    def _set_dropout(self, dropout_p: float, rng_state: Any) -> None:
        drops = _numbers.real("dropout_p", dropout_p) != 0
        if not drops and rng_state is None:
            return
        self._dropout = Dropout(dropout_p, rng_state, self.stream)
        if self._dropout.view is not None:
            _tensor.check_same_device("q", self.q, rng_state=self._dropout.view)
        if drops:
            self.args.dropout = self._dropout.address

    def _score_sizes(self) -> Sizes:
        keys_differ = self._is_paged or self.cu_seqlens_k is not None
        return Sizes(
            batch=self.args.batch,
            n_heads=self.q.shape[-2],
            queries=self.q.shape[-3],
            keys=None if keys_differ else self.k.shape[1],
            ragged=self.ragged_q,
            longest=self.args.seqlen_q,
        )

    def _table(self, array: Any, name: str, page_indptr: Any) -> View | None:
        """Returns a view of page ids: [rows, pages], or flat where page_indptr cuts the table."""
        if array is None:
            return None
        n_axes = 2 if page_indptr is None else 1
        table = _tensor.table_view(array, name, n_axes, self.stream)
        _tensor.check_same_device("q", self.q, **{name: table})
        return table

    def _batch_size(self, cu_seqlens_q: Any, cu_seqlens_k: Any) -> int:
        """Returns the number of sequences of a padded tensor, or of a ragged one's cu_seqlens."""
        if cu_seqlens_q is None:
            return self.q.shape[0]
        if cu_seqlens_k is None and not self._is_paged:
            return self.k.shape[0]
        count = self._lengths(cu_seqlens_q, "cu_seqlens_q", None).shape[0]
        if count == 0:
            raise ValueError("cu_seqlens_q is empty: batch + 1 values, from 0 on")
        return count - 1

    def _lengths(
        self,
        array: Any,
        name: str,
        count: int | None,
        view: Callable[..., View] = _tensor.lengths_view,
    ) -> View | None:
        if array is None:
            return None
        if self.q.device != _abi.FLASH_DEVICE_CPU and isinstance(array, (list, tuple)):
            raise ValueError(
                f"{name} is of type {type(array).__name__}, and q is in CUDA memory: "
                "lengths must be an int32 array on q's device"
            )
        lengths = view(array, name, count, self.stream)
        _tensor.check_same_device("q", self.q, **{name: lengths})
        return lengths

    def _seqlen(self, side: str, tensor: View, cu_seqlens: View | None, longest: Any) -> int:
        """Returns the length of every sequence of a padded tensor, or a bound on those of a ragged
        one."""
        name = f"max_seqlen_{side}"
        longest = _numbers.bound(name, longest)
        if cu_seqlens is None:
            if longest is not None:
                _same("length", name, longest, side, tensor.shape[1])
            return tensor.shape[1]
        if longest is None:
            raise ValueError(f"cu_seqlens_{side} is given without {name}")
        # No sequence is longer than all together, which the C API cannot see in CUDA memory.
        return min(longest, tensor.shape[0])

    def _check_totals(self) -> None:
        """Raises ValueError where cu_seqlens does not fit the tokens of q or k: the C API knows the
        lengths but not how much memory is behind them."""
        if self.q.device != _abi.FLASH_DEVICE_CPU:
            return
        batch = self.args.batch
        if self.cu_seqlens_q is not None:
            end = _tensor.read_integer(self.cu_seqlens_q, batch)
            if end != self.q.shape[0]:
                raise ValueError(f"cu_seqlens_q ends at {end}, q has {self.q.shape[0]} tokens")
        if self.cu_seqlens_k is not None and not self._is_paged:
            end = _tensor.read_integer(self.cu_seqlens_k, batch)
            if end > self.k.shape[0]:
                raise ValueError(f"cu_seqlens_k ends at {end}, k has {self.k.shape[0]} tokens")


def _same(what: str, name: str, value: object, other_name: str, other: object) -> None:
    if value != other:
        raise ValueError(f"{name} has {what} {value}, {other_name} has {other}")


def _count(name: str, value: Any) -> int:
    number = _numbers.integer(name, value)
    if not 0 <= number < 2**31:
        raise ValueError(f"{name} is {number}: not within 0 ... {2**31 - 1}")
    return number


def _positive(name: str, value: float | None) -> float:
    """Returns the C API's number, in which 0 means the default: None becomes 0, and a value that is
    0 in float32 raises ValueError."""
    if value is None:
        return 0.0
    if _numbers.float32(name, value) == 0:
        raise ValueError(
            f"{name} is {value}, which is 0 in float32: it must be positive, or None for "
            "1 / sqrt(d_head)"
        )
    return value


def _float32(name: str, value: float) -> float:
    if _numbers.float32(name, value) == 0 and value != 0:
        raise ValueError(f"{name} is {value}, which is 0 in float32")
    return value


_READERS = {
    _argument_list.INTEGER: _numbers.int64,
    _argument_list.COUNT: _count,
    _argument_list.POSITIVE: _positive,
    _argument_list.CAP: _float32,
}
_NUMBERS = [
    (argument.name, argument.default, _READERS[argument.kind])
    for argument in _argument_list.MEMBERS
    if argument.kind in _READERS
]
_FLAGS = [
    (argument.name, argument.flag)
    for argument in _argument_list.MEMBERS
    if argument.kind is _argument_list.FLAG
]
_LENGTHS = [
    argument.name for argument in _argument_list.MEMBERS if argument.kind is _argument_list.LENGTHS
]
