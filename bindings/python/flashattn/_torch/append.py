"""This module appends new tokens, which are torch tensors, to a cache of K and V."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from .. import _abi
from .._library import check
from . import explain, placement, structs
from .arguments import Unsound, require_flags
from .call import Call
from .forward import DTYPES, tensor_members
from .frame import AppendFrame, raw_stream

_NO_TENSOR = (0, 0, 0, 0, 0)
_SIZE = structs.APPEND.size
_pack = structs.APPEND.pack_into
_records_gradients = torch.is_grad_enabled
_frames: list[AppendFrame] = []


def append(call: Call) -> None:
    """Does what flashattn.flash_kv_append does, and raises as it does; queries go to the caller's
    q_out. The call has all arguments of the operator kv_append, in their order.

    On the CPU the call returns when everything is written. On a CUDA device it is enqueued on
    torch's current stream of that device, and allocates nothing.
    """
    try:
        try:
            frame = _frames.pop()
        except IndexError:
            frame = AppendFrame()
        try:
            _append(frame, call)
        finally:
            _frames.append(frame)
        return
    except Exception:
        pass  # nothing was written, and explain.append() does it, or raises what a caller can use
    explain.append(call)


def _append(frame: AppendFrame, call: Call) -> None:
    """Does what append() does, with a frame that no other call uses."""
    (
        k_new, v_new, k, v, used, used_after, slots, cu_new, page_table, v_page_table, page_indptr,
        page_rows, k_descale, v_descale, q, q_out, cu_seqlens_q, cos, sin, *of_rotary,
        page_scales,
    ) = call  # fmt: skip
    index = k_new.get_device()
    is_flat = cu_new is not None or (slots is not None and k_new.dim() == 3)
    if is_flat:
        seqlen_new, n_heads_kv, d_head = k_new.shape
        batch = 1 if cu_new is None else cu_new.shape[0] - 1
        n_tokens = seqlen_new
    else:
        batch, seqlen_new, n_heads_kv, d_head = k_new.shape
        n_tokens = batch * seqlen_new
    cache_batch, seqlen_k, *rows = k.shape
    if rows != [n_heads_kv, d_head]:
        raise Unsound
    if _records_gradients() and (k_new.requires_grad or k.requires_grad):
        raise Unsound
    if not placement.is_at(k, index):
        raise Unsound
    of_v_new = of_v = _NO_TENSOR
    d_head_v = 0
    if v_new is not None or v is not None:
        d_head_v = _check_v(v_new, v, k_new, k, index)
        of_v_new, of_v = tensor_members(v_new, is_flat), tensor_members(v, 0)
    paging = 0
    if not slots is page_table is v_page_table is page_indptr is page_rows is None:
        pages = page_table, v_page_table, page_indptr, page_rows
        seqlen_k = placement.pages(frame, k, pages, batch, index)
        paging = frame.paging_address
    elif cache_batch != batch:
        raise Unsound
    of_q = of_q_out = _NO_TENSOR
    seqlen_q = n_heads = 0
    if cu_seqlens_q is not None and is_flat and cu_new is None:
        raise Unsound
    if not q is q_out is None:
        is_flat_q = cu_seqlens_q is not None or (is_flat and cu_new is None)
        _check_queries(q, q_out, is_flat_q, batch, d_head, index)
        of_q, of_q_out = tensor_members(q, is_flat_q), tensor_members(q_out, is_flat_q)
        seqlen_q, n_heads = q.shape[-3], q.shape[-2]
    turns = quant = 0
    require_flags(page_scales)
    if not cos is sin is None:
        _pack_rotary(frame, cos, sin, of_rotary, batch, n_tokens, index)
        turns = frame.rotary_address
    elif any(x is not None and x is not False for x in of_rotary):
        raise Unsound
    if k_descale is not None or v_descale is not None:
        of_keys = cache_batch if page_scales else batch, n_heads_kv
        placement.scales(frame, (k_descale, v_descale, None), of_keys, (), (), index)
        quant = frame.quant_address
    flags = _abi.FLASH_FLAG_BROADCAST
    if page_scales:
        flags |= _abi.FLASH_FLAG_PAGE_SCALES
    _pack(
        frame.memory,
        0,
        _SIZE,
        _abi.FLASH_DEVICE_CPU if index < 0 else _abi.FLASH_DEVICE_CUDA + index,
        DTYPES[k_new.dtype],
        flags,
        *tensor_members(k_new, is_flat),
        *of_v_new,
        *tensor_members(k, 0),
        *of_v,
        *of_q,
        *of_q_out,
        placement.lengths(cu_new, batch + 1, index),
        placement.lengths(cu_seqlens_q, batch + 1, index),
        placement.lengths(used, batch, index),
        placement.lengths(used_after, batch, index),
        placement.int64s(slots, n_tokens, index),
        batch,
        seqlen_new,
        seqlen_k,
        seqlen_q,
        n_heads,
        n_heads_kv,
        d_head,
        paging,
        turns,
        quant,
        d_head_v,
    )
    status = frame.function(frame.args, None if index < 0 else ctypes.c_void_p(raw_stream(index)))
    if status:
        check(status)


def _check_v(v_new: Tensor | None, v: Tensor | None, k_new: Tensor, k: Tensor, index: int) -> int:
    """Returns V's head dimension, which may differ from that of K."""
    if v_new is None or v is None:
        raise Unsound
    *tokens, d_head_v = v_new.shape
    if tokens != list(k_new.shape[:-1]) or v.shape != (*k.shape[:-1], d_head_v) or d_head_v == 0:
        raise Unsound
    if not (placement.is_at(v_new, index) and placement.is_at(v, index)):
        raise Unsound
    if _records_gradients() and (v_new.requires_grad or v.requires_grad):
        raise Unsound
    return d_head_v


def _check_queries(
    q: Tensor, q_out: Tensor, is_flat: bool, batch: int, d_head: int, index: int
) -> None:
    shape = q.shape
    if q_out.shape != shape or shape[-1] != d_head or (not is_flat and shape[0] != batch):
        raise Unsound
    if not (placement.is_at(q, index) and placement.is_at(q_out, index)):
        raise Unsound
    if _records_gradients() and (q.requires_grad or q_out.requires_grad):
        raise Unsound


def _pack_rotary(
    frame: AppendFrame,
    cos: Tensor,
    sin: Tensor,
    options: list[Any],
    batch: int,
    n_tokens: int,
    index: int,
) -> None:
    """Packs flash_rotary_t into the frame. options: is_interleaved, positions, start,
    q_at_start."""
    is_interleaved, positions, start, q_at_start = options
    require_flags(is_interleaved, q_at_start)
    n_positions, n_pairs = cos.shape
    stride, inner = cos.stride()
    if sin.shape != cos.shape or sin.stride() != cos.stride() or sin.dtype is not cos.dtype:
        raise Unsound
    if inner != 1 and n_pairs > 1:
        raise Unsound
    if not (placement.is_at(cos, index) and placement.is_at(sin, index)):
        raise Unsound
    if _records_gradients() and (cos.requires_grad or sin.requires_grad):
        raise Unsound
    structs.ROTARY.pack_into(
        frame.rotary,
        0,
        structs.ROTARY.size,
        DTYPES[cos.dtype],
        (_abi.FLASH_ROTARY_INTERLEAVED if is_interleaved else 0)
        | (_abi.FLASH_ROTARY_Q_AT_START if q_at_start else 0),
        cos.data_ptr(),
        sin.data_ptr(),
        stride,
        n_positions,
        2 * n_pairs,
        placement.int64s(positions, n_tokens, index),
        placement.lengths(start, batch, index),
    )
