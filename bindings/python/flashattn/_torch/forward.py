"""This module computes attention on torch tensors: it passes their addresses and strides to the C
call without views.

A sound call is fast: conditions are tested without a message, and whatever is wrong raises Unsound
or another exception. Only then explain.py finds the message.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import _abi
from .._argument_list import FLAG, LENGTHS, MEMBERS
from .._bias import Sizes
from . import dropout, explain, placement, structs
from .arguments import Outputs, Pages, Unsound, require_flags
from .call import N_FIRST, PLACES, Call
from .frame import ForwardFrame

DTYPES = {
    torch.float16: _abi.FLASH_DTYPE_FP16,
    torch.bfloat16: _abi.FLASH_DTYPE_BF16,
    torch.float32: _abi.FLASH_DTYPE_FP32,
    torch.float8_e4m3fn: _abi.FLASH_DTYPE_E4M3,
}
_ROUNDS_TO_ZERO = 2.0**-150  # float32 rounds this and smaller values to 0
_FLOAT32_MAX = 3.4028234663852886e38
_float32 = torch.float32
_records_gradients = torch.is_grad_enabled
_empty_like = torch.empty_like
_SIZE = structs.FORWARD.size
_pack = structs.FORWARD.pack_into
_E4M3 = _abi.FLASH_DTYPE_E4M3
_CPU, _CUDA = _abi.FLASH_DEVICE_CPU, _abi.FLASH_DEVICE_CUDA
_CAUSAL, _WINDOW = _abi.FLASH_FLAG_CAUSAL, _abi.FLASH_FLAG_WINDOW
_BATCH_INVARIANT, _BROADCAST = _abi.FLASH_FLAG_BATCH_INVARIANT, _abi.FLASH_FLAG_BROADCAST
_NO_LSE = (0, 0, 0, 0)
_NO_WORKSPACE = (0, 0)
_NO_BIAS = (0, 0, 0)
# The last arguments of a call are read alike, by their kinds: those whose members follow d_head_v,
# in the order of the members, and flags.
_LAST = [argument for argument in MEMBERS if PLACES[argument.name] >= N_FIRST]
_AT_LAST = [PLACES[argument.name] - N_FIRST for argument in _LAST]
_AT_Q_DESCALE = PLACES["q_descale"] - N_FIRST
_AT_DROPOUT = PLACES["dropout_p"] - N_FIRST
_AT_PAGE_SCALES = PLACES["page_scales"] - N_FIRST  # the last one
_NO_MEMBERS = [argument.default or 0 for argument in _LAST if argument.kind is not FLAG]
_frames: list[ForwardFrame] = []


def forward(call: Call) -> tuple[Tensor, Tensor | None]:
    """Returns (O, LSE) of a call as flashattn.flash_attn_varlen_func does, or as flash_attn_func
    where q is padded; LSE is None unless the call wants it. A new O is contiguous. Raises as those
    functions do.

    On the CPU the call returns when O is complete. On a CUDA device it is enqueued on torch's
    current stream of that device, and allocates by torch alone.
    """
    try:
        try:
            frame = _frames.pop()
        except IndexError:
            frame = ForwardFrame()
        try:
            return _forward(frame, call)
        finally:
            _frames.append(frame)
    except Exception as error:
        raise explain.forward(error, call) from None


def _forward(frame: ForwardFrame, call: Call) -> tuple[Tensor, Tensor | None]:
    """Does what forward() does, with a frame that no other call uses. Most calls are padded and
    have a new O alone: what these need is written out here, since each function would add some
    hundredths to the call's time."""
    last = call[N_FIRST:]
    (
        q, k, v, out, lse, return_lse, out_dtype, ragged, pages, bias, softmax_scale, causal, left,
        right, softcap, batch_invariant, k_descale, v_descale, sinks, seqused_q, seqused_k,
    ) = call[:N_FIRST] if last else call  # fmt: skip
    require_flags(causal, batch_invariant, return_lse)
    index = q.get_device()
    if not k.get_device() == v.get_device() == index < 0:
        check_devices(q, k, v)
    if ragged is pages is None:
        cu_q = cu_k = paging = 0
        batch, seqlen_q, n_heads, d_head = q.shape
        shape = k.shape
        batch_k, seqlen_k, n_heads_kv, d_head_k = shape
        if batch_k != batch or d_head_k != d_head:
            raise Unsound
    else:
        sizes, cu_q, cu_k, paging = _placed(frame, q, k, ragged, pages, index)
        batch, seqlen_q, seqlen_k, n_heads, n_heads_kv, d_head = sizes
        shape = k.shape
    d_head_v = d_head if v.shape == shape else _d_head_v(k, v)
    if cu_q:
        q_batch, (q_seq, q_head, q_inner) = 0, q.stride()
    else:
        q_batch, q_seq, q_head, q_inner = q.stride()
    if cu_k and not paging:
        k_batch, (k_seq, k_head, k_inner) = 0, k.stride()
        v_batch, (v_seq, v_head, v_inner) = 0, v.stride()
    else:
        k_batch, k_seq, k_head, k_inner = k.stride()
        v_batch, v_seq, v_head, v_inner = v.stride()
    if not q_inner == k_inner == v_inner == 1:
        _check_rows(q, k, v)
    q_dtype = DTYPES[q.dtype]
    is_compact = q_head == d_head and q_seq == n_heads * d_head and q_inner == 1
    if (
        out is lse is out_dtype is None
        and is_compact
        and d_head_v == d_head
        and (cu_q or q_batch == seqlen_q * q_seq)
        and q_dtype != _E4M3
    ):
        out = _empty_like(q)  # this is the fastest way to a contiguous tensor
        of_out = out.data_ptr(), q_batch, q_seq, q_head, q_dtype
        lse, of_lse = _new_lse(q, cu_q) if return_lse else (None, _NO_LSE)
    else:
        out, lse = _outputs(q, d_head_v, (out, lse, return_lse, out_dtype), index)
        of_out, of_lse = tensor_members(out, cu_q), _of_lse(lse, cu_q)
    used_q = used_k = quant = of_sinks = 0
    if seqused_q is not None:
        used_q = placement.lengths(seqused_q, batch, index)
    if seqused_k is not None:
        used_k = placement.lengths(seqused_k, batch, index)
    q_descale = last[_AT_Q_DESCALE] if last else None
    if not k_descale is v_descale is q_descale is None:
        scales = k_descale, v_descale, q_descale
        of_pages = pages is not None and any(last[_AT_PAGE_SCALES:])
        of_keys = (k.shape[0] if of_pages else batch, n_heads_kv)
        placement.scales(frame, scales, of_keys, (batch, n_heads_kv), q.shape, index)
        quant = frame.quant_address
    if sinks is not None:
        sinks = placement.sinks(sinks, n_heads, index)
        of_sinks = sinks.data_ptr()
    of_bias = _NO_BIAS
    if bias is not None:
        keys = seqlen_k if pages is None and not cu_k else None
        score_sizes = Sizes(batch, n_heads, q.shape[-3], keys, bool(cu_q))
        of_bias, _kept = placement.bias(bias, score_sizes, index)
    flags = _BROADCAST  # in torch strides of 0 are always meant
    if causal:
        flags |= _CAUSAL
    if batch_invariant:
        flags |= _BATCH_INVARIANT
    if left == right == -1:
        left = right = 0
    else:
        flags |= _WINDOW
    if softmax_scale is None:
        softmax_scale = 0.0  # the C API takes 0 for 1 / sqrt(d_head)
    else:
        softmax_scale = _number(softmax_scale)
    if softcap:
        softcap = _number(softcap)
    members, of_dropout = _NO_MEMBERS, 0
    if last:
        more_flags, members = _last(last, batch, index)
        flags |= more_flags
        of_dropout = dropout.member(frame, last[_AT_DROPOUT:_AT_PAGE_SCALES], index)
    device, workspace = (_CPU, frame.workspace) if index < 0 else (_CUDA + index, _NO_WORKSPACE)
    _pack(
        frame.memory,
        0,
        _SIZE,
        device,
        q_dtype,
        flags,
        q.data_ptr(),
        q_batch,
        q_seq,
        q_head,
        q_dtype,
        k.data_ptr(),
        k_batch,
        k_seq,
        k_head,
        DTYPES[k.dtype],
        v.data_ptr(),
        v_batch,
        v_seq,
        v_head,
        DTYPES[v.dtype],
        *of_out,
        *of_lse,
        cu_q,
        cu_k,
        used_k,
        batch,
        seqlen_q,
        seqlen_k,
        n_heads,
        n_heads_kv,
        d_head,
        left,
        right,
        softmax_scale,
        softcap,
        *workspace,
        paging,
        used_q,
        quant,
        of_sinks,
        *of_bias,
        d_head_v,
        *members,
        of_dropout,
    )
    if index < 0:
        frame.run_on_cpu()
    else:
        frame.run_on_cuda(index, q.device)
    return out, lse


def check_devices(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises Unsound unless all three are on the CPU, or on one CUDA device."""
    if not q.get_device() == k.get_device() == v.get_device():
        raise Unsound
    if not (q.is_cpu and k.is_cpu and v.is_cpu) and not (q.is_cuda and k.is_cuda and v.is_cuda):
        raise Unsound


# ---- Q, K and V ----


def _check_rows(*tensors: Tensor) -> None:
    """Raises Unsound unless the innermost axis of each tensor is contiguous."""
    for x in tensors:
        if x.stride(-1) != 1 and x.shape[-1] > 1 and x.numel():
            raise Unsound


def _d_head_v(k: Tensor, v: Tensor) -> int:
    """Returns the last axis of v, the only one by which it may differ from k."""
    *tokens, d_head_v = v.shape
    if tokens != list(k.shape[:-1]) or d_head_v == 0:
        raise Unsound
    return d_head_v


# _Sizes holds batch, seqlen_q, seqlen_k, n_heads, n_heads_kv, d_head.
_Sizes = tuple[int, int, int, int, int, int]


def _placed(
    frame: ForwardFrame,
    q: Tensor,
    k: Tensor,
    ragged: tuple[Tensor | None, Tensor | None, int | None, int | None] | None,
    pages: Pages | None,
    index: int,
) -> tuple[_Sizes, int, int, int]:
    """Returns (sizes, cu_seqlens_q, cu_seqlens_k, paging) of a ragged batch, or with K and V in
    pages. The last three are addresses, 0 for what the call does not have."""
    cu_q, cu_k, longest_q, longest_k = ragged or (None, None, None, None)
    q_shape, k_shape = q.shape, k.shape
    n_heads, d_head = q_shape[-2], q_shape[-1]
    if k_shape[-1] != d_head:
        raise Unsound
    batch = _batch(q_shape, k_shape, cu_q, cu_k, pages)
    cu_q_address = cu_k_address = paging = 0
    if cu_q is not None:
        cu_q_address = placement.cu_seqlens(cu_q, batch, q_shape[0], index, exact=True)
    seqlen_q = _longest(q_shape, cu_q, longest_q)
    if pages is not None:
        room = placement.pages(frame, k, pages, batch, index)
        seqlen_k = room if longest_k is None else min(longest_k, room)
        paging = frame.paging_address
    else:
        seqlen_k = _longest(k_shape, cu_k, longest_k)
        if cu_k is None and k_shape[0] != batch:
            raise Unsound
    if cu_k is not None and pages is None:
        cu_k_address = placement.cu_seqlens(cu_k, batch, k_shape[0], index, exact=False)
    elif cu_k is not None:
        cu_k_address = placement.lengths(cu_k, batch + 1, index)
    sizes = batch, seqlen_q, seqlen_k, n_heads, k_shape[-2], d_head
    return sizes, cu_q_address, cu_k_address, paging


def _batch(
    q_shape: torch.Size,
    k_shape: torch.Size,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    pages: Pages | None,
) -> int:
    if cu_q is None:
        return q_shape[0]
    batch = k_shape[0] if cu_k is None and pages is None else cu_q.shape[0] - 1
    if batch < 0:
        raise Unsound
    return batch


def _longest(shape: torch.Size, cu_seqlens: Tensor | None, longest: int | None) -> int:
    """Returns the length of every sequence of a padded tensor, or a bound on those of a ragged one:
    `longest`, but at most the number of tokens, which the C API cannot see in CUDA memory."""
    if cu_seqlens is not None:
        n_tokens = shape[0]
        return longest if longest < n_tokens else n_tokens
    if longest is not None and longest != shape[1]:
        raise Unsound
    return shape[1]


# ---- Numbers ----


def _last(values: tuple, batch: int, index: int) -> tuple[int, list]:
    """Returns the flags and the members of flash_forward_args_t that the last arguments are."""
    flags, members = 0, []
    for place, argument in zip(_AT_LAST, _LAST):
        if place >= len(values):
            continue  # it has its default
        value = values[place]
        if argument.kind is LENGTHS:
            members.append(placement.lengths(value, batch, index))
        elif argument.kind is not FLAG:
            members.append(value)
        else:
            require_flags(value)
            flags |= argument.flag if value else 0
    return flags, members


def is_scale(softmax_scale: float) -> bool:
    """Returns whether the C API can say this softmax_scale: as a float32 it is positive and
    finite."""
    return _ROUNDS_TO_ZERO < softmax_scale <= _FLOAT32_MAX


def _number(value: float) -> float:
    """Returns what stands for this number, which is not 0, in the C API. Raises Unsound for one
    that is 0 there, and for tensors that require gradients, which would be lost."""
    if isinstance(value, Tensor) and value.requires_grad and _records_gradients():
        raise Unsound
    return value if _ROUNDS_TO_ZERO < value <= _FLOAT32_MAX else _beyond_float32(value)


def _beyond_float32(value: float) -> float:
    """Returns a value that the library refuses by name: this one, or an infinity of its sign.
    Raises Unsound for one that float32 rounds to 0, since 0 means something else."""
    magnitude = abs(value)
    if magnitude <= _ROUNDS_TO_ZERO:
        raise Unsound
    return math.copysign(math.inf, value) if magnitude > _FLOAT32_MAX else value


# ---- Outputs ----


def _outputs(
    q: Tensor, d_head_v: int, outputs: Outputs, index: int
) -> tuple[Tensor, Tensor | None]:
    out, lse, return_lse, dtype = outputs
    o_shape = (*q.shape[:-1], d_head_v)
    if out is None:
        # torch.empty takes half as long for lengths one by one as for a tuple of them.
        of_o = type_of_o(q.dtype) if dtype is None else dtype
        out = torch.empty(*o_shape, dtype=of_o, device=q.device)
    else:
        check_output(out, o_shape, index)
        if dtype is not None and out.dtype is not dtype:
            raise Unsound
    if lse is not None:
        check_output(lse, lse_shape(q), index)
        check_lse(lse)
    elif return_lse:
        lse = torch.empty(*lse_shape(q), dtype=_float32, device=q.device)
    return out, lse


def _new_lse(q: Tensor, ragged: int) -> tuple[Tensor, tuple[int, int, int, int]]:
    """Returns a new LSE, and what _of_lse() returns for it."""
    if ragged:
        n_tokens, n_heads, _ = q.shape
        lse = torch.empty(n_heads, n_tokens, dtype=_float32, device=q.device)
        return lse, (lse.data_ptr(), 0, n_tokens, 1)
    batch, seqlen, n_heads, _ = q.shape
    lse = torch.empty(batch, n_heads, seqlen, dtype=_float32, device=q.device)
    return lse, (lse.data_ptr(), n_heads * seqlen, seqlen, 1)


def check_output(output: Tensor, shape: tuple[int, ...], index: int) -> None:
    """Raises Unsound unless the caller's output has this shape, lies on the call's device and
    requires no gradient while gradients are recorded."""
    if output.shape != shape or not placement.is_at(output, index):
        raise Unsound
    if _records_gradients() and output.requires_grad:
        raise Unsound


def check_lse(lse: Tensor) -> None:
    """Raises Unsound unless `lse` is float32, and where it has several elements not all of its
    strides are 0: the C API takes such strides for those of a contiguous tensor."""
    if lse.dtype is not torch.float32 or (not any(lse.stride()) and lse.numel() > 1):
        raise Unsound


def type_of_o(dtype: torch.dtype) -> torch.dtype:
    """Returns the type of an O that nobody names, beside a q of this one."""
    return torch.bfloat16 if dtype is torch.float8_e4m3fn else dtype


def lse_shape(q: Tensor) -> tuple[int, ...]:
    """Returns the shape of the LSE for this q: [batch, n_heads, seqlen_q], ragged [n_heads,
    total_q]."""
    *batch, seqlen, n_heads, _ = q.shape
    return (*batch, n_heads, seqlen)


def tensor_members(x: Tensor, ragged: int) -> tuple[int, int, int, int, int]:
    """Returns the members of flash_tensor_t for a tensor, which is [token, head, d_head] where
    `ragged` is set."""
    if ragged:
        batch, (seq, head, inner) = 0, x.stride()
    else:
        batch, seq, head, inner = x.stride()
    if inner != 1:
        _check_rows(x)
    return x.data_ptr(), batch, seq, head, DTYPES[x.dtype]


def _of_lse(lse: Tensor | None, ragged: int) -> tuple[int, int, int, int]:
    """Returns the address of LSE and its strides of batch, head and token, all 0 without LSE."""
    if lse is None:
        return _NO_LSE
    strides = lse.stride()
    return (lse.data_ptr(), 0, *strides) if ragged else (lse.data_ptr(), *strides)
