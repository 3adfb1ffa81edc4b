"""This module merges partial results that are torch tensors."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from .. import _abi
from .._library import check
from . import explain, placement, structs
from .arguments import Outputs, Unsound, require_flags
from .forward import DTYPES, check_devices, check_lse, check_output
from .frame import Frame, combine_frame, raw_stream

_frames: list[Frame] = []


def combine(
    o_partial: Tensor,
    lse_partial: Tensor,
    sinks: Tensor | None = None,
    outputs: Outputs = (None, None, False, None),
) -> tuple[Tensor, Tensor | None]:
    """Returns (O, LSE) as flashattn.flash_combine does; LSE is None unless `outputs` wants it.
    lse_partial and the caller's LSE may have any strides. Raises and runs as forward() does."""
    try:
        return _combine(o_partial, lse_partial, sinks, outputs)
    except Exception as error:
        raise explain.combine(error, o_partial, lse_partial, sinks, outputs) from None


def _combine(
    o_partial: Tensor, lse_partial: Tensor, sinks: Tensor | None, outputs: Outputs
) -> tuple[Tensor, Tensor | None]:
    if torch.is_grad_enabled() and (o_partial.requires_grad or lse_partial.requires_grad):
        raise Unsound
    check_devices(o_partial, lse_partial, lse_partial)
    index = o_partial.get_device()
    n_partials, batch, seqlen_q, n_heads, d_head = o_partial.shape
    if lse_partial.shape != (n_partials, batch, n_heads, seqlen_q):
        raise Unsound
    check_lse(lse_partial)
    if not any(lse_partial.stride()[1:]):
        lse_partial = lse_partial.contiguous()  # the C API takes such strides for contiguous ones
    if sinks is not None:
        sinks = placement.sinks(sinks, n_heads, index)
    out, lse = _outputs(o_partial, outputs, index)
    try:
        frame = _frames.pop()
    except IndexError:
        frame = combine_frame()
    try:
        stride_partial, *o_strides, inner = o_partial.stride()
        *out_strides, out_inner = out.stride()
        if d_head > 1 and o_partial.numel() and not inner == out_inner == 1:
            raise Unsound
        structs.COMBINE.pack_into(
            frame.memory,
            0,
            structs.COMBINE.size,
            _abi.FLASH_DEVICE_CPU if index < 0 else _abi.FLASH_DEVICE_CUDA + index,
            DTYPES[out.dtype],
            _abi.FLASH_FLAG_BROADCAST,
            o_partial.data_ptr(),
            *o_strides,
            DTYPES[o_partial.dtype],
            stride_partial,
            lse_partial.data_ptr(),
            *lse_partial.stride(),
            out.data_ptr(),
            *out_strides,
            DTYPES[out.dtype],
            *((0, 0, 0, 0) if lse is None else (lse.data_ptr(), *lse.stride())),
            n_partials,
            batch,
            seqlen_q,
            n_heads,
            d_head,
            0 if sinks is None else sinks.data_ptr(),
        )
        stream = None if index < 0 else ctypes.c_void_p(raw_stream(index))
        check(frame.function(frame.args, stream))
    finally:
        _frames.append(frame)
    return out, lse


def _outputs(o_partial: Tensor, outputs: Outputs, index: int) -> tuple[Tensor, Tensor | None]:
    out, lse, return_lse, dtype = outputs
    require_flags(return_lse)
    shape = o_partial.shape[1:]
    batch, seqlen_q, n_heads, _ = shape
    lse_shape = (batch, n_heads, seqlen_q)
    if out is None:
        out = torch.empty(*shape, dtype=dtype or o_partial.dtype, device=o_partial.device)
    else:
        check_output(out, shape, index)
        if dtype is not None and out.dtype is not dtype:
            raise Unsound
    if lse is not None:
        check_output(lse, lse_shape, index)
        check_lse(lse)
    elif return_lse:
        lse = torch.empty(*lse_shape, dtype=torch.float32, device=o_partial.device)
    return out, lse
