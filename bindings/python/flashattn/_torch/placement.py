"""This module checks the arrays of a call beside Q, K, V and O (lengths, pages, scales, sinks,
slopes, masks) against what the C API cannot see, and returns their addresses or packs them into the
frame.

Whatever does not fit raises Unsound. `index` is the number of the call's CUDA device, negative for
the CPU, as Tensor.get_device() returns it.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from .. import _abi
from .._bias import Mask, Sizes, slopes_view
from .._stream import DEFAULT
from . import structs
from .arguments import Bias, Pages, Scales, Unsound
from .frame import CacheFrame

_INT32_MAX = 2**31 - 1
_SINK_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

# An array without elements gets this address: torch's address of it is 0, which the C API takes for
# an array that is not given.
_nothing = ctypes.c_int32()
_EMPTY = ctypes.addressof(_nothing)
_int32_of = ctypes.c_int32.from_address


def is_at(array: Tensor, index: int) -> bool:
    """Returns whether an array is in the memory of the call's device. The CPU's number is that of
    tensors without data, too."""
    return array.is_cpu if index < 0 else array.is_cuda and array.get_device() == index


def lengths(array: Tensor | None, count: int, index: int) -> int:
    """Returns the address of `count` contiguous int32 values, 0 for None."""
    if array is None:
        return 0
    if (
        array.dtype is not torch.int32
        or array.shape != (count,)
        or not array.is_contiguous()
        or not is_at(array, index)
    ):
        raise Unsound
    return _address(array)


def int64s(array: Tensor | None, count: int, index: int) -> int:
    """Returns the address of `count` contiguous int64 values, 0 for None."""
    if array is None:
        return 0
    if (
        array.dtype is not torch.int64
        or array.shape != (count,)
        or not array.is_contiguous()
        or not is_at(array, index)
    ):
        raise Unsound
    return _address(array)


def cu_seqlens(array: Tensor, batch: int, n_tokens: int, index: int, *, exact: bool) -> int:
    """Returns the address of batch + 1 values. On the CPU the last one must be n_tokens, or at most
    n_tokens if not `exact`: the C API does not know n_tokens, and would read beyond them."""
    address = lengths(array, batch + 1, index)
    if index < 0:
        end = _int32_at(address, batch)
        if end > n_tokens or (exact and end != n_tokens):
            raise Unsound
    return address


def pages(frame: CacheFrame, k: Tensor, where: Pages, batch: int, index: int) -> int:
    """Packs flash_paging_t into the frame, for K in pages: [n_pages, page_size, n_heads_kv,
    d_head]. Returns how many keys a sequence can have."""
    table, v_table, indptr, rows = where
    is_wide = rows is not None and rows.dtype is torch.int64
    n_pages, page_size = k.shape[0], k.shape[1]
    if table is None:
        if indptr is not None or v_table is not None:
            raise Unsound
        n_ids, stride = 1, 0
    else:
        n_ids, stride = _rows_of(table, where, batch, index)
    structs.PAGING.pack_into(
        frame.paging,
        0,
        structs.PAGING.size,
        page_size,
        n_pages,
        0 if table is None else _address(table),
        stride,
        lengths(indptr, batch + 1, index),
        0 if is_wide else lengths(rows, batch, index),
        0 if v_table is None else _address(v_table),
        int64s(rows, batch, index) if is_wide else 0,
    )
    if index < 0 and table is not None:
        _check_ends(table, indptr, rows, batch)
    return min(n_ids * page_size, _INT32_MAX)


def _rows_of(table: Tensor, where: Pages, batch: int, index: int) -> tuple[int, int]:
    """Returns (ids per row of page_table, ids from one row to the next); with page_indptr, which
    makes the table flat, (all ids, 0)."""
    _, v_table, indptr, rows = where
    _check_table(table, index)
    if v_table is not None:
        _check_table(v_table, index)
        if v_table.shape != table.shape or _used_strides(v_table) != _used_strides(table):
            raise Unsound
    if indptr is not None:
        (n_ids,) = table.shape
        return n_ids, 0
    n_rows, n_ids = table.shape
    stride = table.stride(0) if n_rows > 1 else n_ids
    if stride < n_ids or (rows is None and n_rows < batch):
        raise Unsound
    return n_ids, stride


def _check_table(table: Tensor, index: int) -> None:
    if table.dtype is not torch.int32 or not is_at(table, index):
        raise Unsound
    if table.stride(-1) != 1 and table.shape[-1] > 1 and table.numel():
        raise Unsound


def _check_ends(table: Tensor, indptr: Tensor | None, rows: Tensor | None, batch: int) -> None:
    """Raises Unsound where page_indptr or page_rows points beyond the table: the C API knows where
    ids begin, but not how many the table has."""
    n_rows = table.shape[0]
    if indptr is not None and _int32_at(indptr.data_ptr(), batch) > n_rows:
        raise Unsound
    if rows is not None and batch and int(rows.max()) >= n_rows:
        raise Unsound


def scales(
    frame: CacheFrame,
    of: Scales,
    of_keys: tuple[int, int],
    of_heads: tuple[int, ...],
    q_shape: tuple[int, ...],
    index: int,
) -> None:
    """Packs flash_quant_t into the frame. of_keys is the shape of scales of K and V, of_heads that
    of one scale of Q for each batch entry and K/V head."""
    k_scale, v_scale, q_scale = of
    of_k, of_v = _scale(k_scale, of_keys, index), _scale(v_scale, of_keys, index)
    of_q, of_tokens = (0, 0, 0), (0, 0, 0, 0)
    if q_scale is not None and q_scale.dim() == len(q_shape):
        address, *strides = _scale(q_scale, (*q_shape[:-1], 1), index)
        of_tokens = (address, *(0, *strides[:-1])[-3:])
    else:
        of_q = _scale(q_scale, of_heads, index)
    members = of_k[0], of_v[0], *of_k[1:], *of_v[1:], *of_q, *of_tokens
    structs.QUANT.pack_into(frame.quant, 0, structs.QUANT.size, *members)


def _scale(scale: Tensor | None, shape: tuple[int, ...], index: int) -> tuple[int, ...]:
    """Returns the address and the strides of scales of this shape, all 0 without them."""
    if scale is None:
        return 0, 0, 0
    if (
        scale.dtype is not torch.float32
        or scale.shape != shape
        or not is_at(scale, index)
        or (scale.requires_grad and torch.is_grad_enabled())
    ):
        raise Unsound
    return _address(scale), *_used_strides(scale)


def sinks(array: Tensor, n_heads: int, index: int) -> Tensor:
    """Returns sinks as contiguous float32 [n_heads], for the caller to keep until the call is made.
    Those of other floating-point types or strides are copied."""
    if (
        array.shape != (n_heads,)
        or array.dtype not in _SINK_DTYPES
        or not is_at(array, index)
        or (array.requires_grad and torch.is_grad_enabled())
    ):
        raise Unsound
    if array.dtype is torch.float32 and array.is_contiguous() and not array.is_neg():
        return array
    return array.resolve_neg().to(torch.float32).contiguous()


def bias(of: Bias, sizes: Sizes, index: int) -> tuple[tuple[int, int, int], object]:
    """Returns (address of slopes, their stride from one sequence to the next, address of
    flash_mask_t), 0 for what the call does not have, and what the caller must keep until the call
    is made."""
    slopes, attn_mask, mask_bits, mask_keys, head_scale = of
    of_slopes = mask = None
    slopes_at, stride, mask_at = 0, 0, 0
    if slopes is not None:
        of_slopes = slopes_view(slopes.resolve_neg(), sizes, DEFAULT)
        _check_place(of_slopes.device, index)
        slopes_at = of_slopes.data or _EMPTY
        stride = of_slopes.strides[0] if len(of_slopes.shape) == 2 else 0
    if attn_mask is not None or mask_bits is not None:
        if attn_mask is not None:
            attn_mask = attn_mask.resolve_neg()
        if head_scale is not None:
            head_scale = head_scale.resolve_neg()
        mask = Mask(attn_mask, mask_bits, mask_keys, head_scale, sizes, DEFAULT)
        for array in mask.arrays.values():
            _check_place(array.device, index)
        mask_at = mask.address or 0
    elif mask_keys is not None or head_scale is not None:
        raise Unsound
    return (slopes_at, stride, mask_at), (of_slopes, mask)


def _check_place(device: int, index: int) -> None:
    if device != (_abi.FLASH_DEVICE_CPU if index < 0 else _abi.FLASH_DEVICE_CUDA + index):
        raise Unsound


def _address(array: Tensor) -> int:
    return array.data_ptr() or _EMPTY


def _used_strides(array: Tensor) -> tuple[int, ...]:
    """Returns the strides, with 0 along axes of at most one element: those mean nothing, and torch
    may have any number there."""
    return tuple(stride if length > 1 else 0 for stride, length in zip(array.stride(), array.shape))


def _int32_at(address: int, i: int) -> int:
    return _int32_of(address + 4 * i).value
