"""There is one test per reason to refuse a call with K and V of e4m3 or scales. Outputs stay."""

from __future__ import annotations

import ctypes
from typing import Callable

import numpy as np
import pytest
from direct import BATCH, N_HEADS_KV, CombineCall, ForwardCall, assert_refused, tensor
from flashattn import _abi
from flashattn._library import last_error, library
from memory import E4M3, dtype_of

INVALID_ARGUMENT = _abi.FLASH_ERROR_INVALID_ARGUMENT
UNSUPPORTED = _abi.FLASH_ERROR_UNSUPPORTED
Spoiler = Callable[["QuantCall"], None]


class QuantCall(ForwardCall):
    """A valid call with scales by batch entry and head: change `args`, `quant` or `scales`."""

    def __init__(self) -> None:
        super().__init__()
        self.k, self.v = (x.astype(dtype_of(E4M3)) for x in (self.k, self.v))
        self.args.k, self.args.v = tensor(self.k), tensor(self.v)
        self.set_key_dtype(_abi.FLASH_DTYPE_E4M3)
        self.scales = np.full((2, BATCH, N_HEADS_KV), 0.5, np.float32)
        self.quant = _abi.flash_quant_t(
            k_scale=self.scales[0].ctypes.data,
            v_scale=self.scales[1].ctypes.data,
            k_scale_stride_batch=N_HEADS_KV,
            k_scale_stride_head=1,
            v_scale_stride_batch=N_HEADS_KV,
            v_scale_stride_head=1,
        )
        self.args.quant = ctypes.addressof(self.quant)

    def set_key_dtype(self, dtype: int) -> None:
        self.args.k.dtype = self.args.v.dtype = dtype


def _set(name: str, value: object) -> Spoiler:
    return lambda call: setattr(call.quant, name, value)


def _other_keys(call: QuantCall) -> None:
    call.set_key_dtype(_abi.FLASH_DTYPE_BF16)


def _v_scale_of_other_keys(call: QuantCall) -> None:
    _other_keys(call)
    call.quant.k_scale = None
    call.quant.k_scale_stride_batch = call.quant.k_scale_stride_head = 0


def _no_array(call: QuantCall) -> None:
    call.quant.v_scale = None
    call.quant.v_scale_stride_batch = 0


def _own_dtype(call: QuantCall) -> None:
    call.args.dtype = _abi.FLASH_DTYPE_E4M3


def _o_alone(call: QuantCall) -> None:
    _own_dtype(call)
    call.args.q.dtype = _abi.FLASH_DTYPE_FP32


def _q_alone(call: QuantCall) -> None:
    _other_keys(call)
    call.args.q.dtype = _abi.FLASH_DTYPE_E4M3


def _other_v(call: QuantCall) -> None:
    call.args.v.dtype = _abi.FLASH_DTYPE_BF16


def _in_o(call: QuantCall) -> None:
    call.quant.k_scale = call.o.array.ctypes.data


def _in_lse(call: QuantCall) -> None:
    call.quant.v_scale = call.lse.array.ctypes.data + 8


def _reserved(call: QuantCall) -> None:
    call.quant.reserved[0] = 1


# Every call sees these.
SHAPE_REFUSALS = {
    "struct_size": (
        _set("struct_size", 0), INVALID_ARGUMENT, ["flash_quant_t.struct_size is 0"],
    ),
    "reserved32": (_set("reserved32", 1), UNSUPPORTED, ["quant.reserved is not zero"]),
    "reserved": (_reserved, UNSUPPORTED, ["quant.reserved is not zero"]),
    "k_scale": (_other_keys, INVALID_ARGUMENT, ["quant.k_scale is given", "k.dtype is 2"]),
    "v_scale": (_v_scale_of_other_keys, INVALID_ARGUMENT, ["quant.v_scale is given"]),
    "no_array": (
        _no_array, INVALID_ARGUMENT, ["quant.v_scale_stride_head is 1", "quant.v_scale is NULL"],
    ),
    "q": (_q_alone, UNSUPPORTED, ["q.dtype is FLASH_DTYPE_E4M3 (4), and k.dtype is 2"]),
    "q_scale": (_set("q_scale", 8), INVALID_ARGUMENT, ["quant.q_scale is given", "q.dtype is"]),
    "q_token_scale": (
        _set("q_token_scale", 8), INVALID_ARGUMENT, ["quant.q_token_scale is given", "q.dtype is"],
    ),
    "no_q_scale": (
        _set("q_token_scale_stride_seq", 1), INVALID_ARGUMENT,
        ["quant.q_token_scale_stride_seq is 1", "quant.q_token_scale is NULL"],
    ),
    "o": (_o_alone, UNSUPPORTED, ["o.dtype is FLASH_DTYPE_E4M3 (4)"]),
    "v": (_other_v, UNSUPPORTED, ["k.dtype is 4 and v.dtype is 2"]),
    **{
        f"{name}_stride_{axis}": (
            _set(f"{name}_stride_{axis}", -1),
            INVALID_ARGUMENT,
            [f"quant.{name}_stride_{axis} is -1: negative"],
        )
        for name in ("k_scale", "v_scale", "q_scale")
        for axis in ("batch", "head")
    },
    **{
        f"q_token_scale_stride_{axis}": (
            _set(f"q_token_scale_stride_{axis}", -1),
            INVALID_ARGUMENT,
            [f"quant.q_token_scale_stride_{axis} is -1: negative"],
        )
        for axis in ("batch", "seq", "head")
    },
}  # fmt: skip
# Only flash_forward() sees these.
DATA_REFUSALS = {
    "in_o": (_in_o, INVALID_ARGUMENT, ["o overlaps quant.k_scale"]),
    "in_lse": (_in_lse, INVALID_ARGUMENT, ["lse overlaps quant.v_scale"]),
    "far": (
        _set("k_scale_stride_batch", 2**62), INVALID_ARGUMENT, ["quant.k_scale overflows"],
    ),
}  # fmt: skip
REFUSALS = {**SHAPE_REFUSALS, **DATA_REFUSALS}


def test_the_call_that_is_spoiled_below_is_valid() -> None:
    call = QuantCall()
    assert call.run() == 0, last_error()
    assert np.isfinite(call.o.take()).all()


@pytest.mark.parametrize("name", REFUSALS)
def test_forward_refuses(name: str) -> None:
    spoil, status, parts = REFUSALS[name]
    call = QuantCall()
    spoil(call)
    assert_refused(call.run(), status, parts)
    call.assert_untouched()


@pytest.mark.parametrize("name", SHAPE_REFUSALS)
def test_other_calls_refuse_the_same(name: str) -> None:
    spoil, status, parts = SHAPE_REFUSALS[name]
    call = QuantCall()
    spoil(call)
    size = ctypes.c_uint64()
    assert_refused(library().flash_workspace_size(call.args, None, size), status, parts)
    assert_refused(library().flash_query_support(call.args, None, None, 0), status, parts)


@pytest.mark.parametrize("name", DATA_REFUSALS)
def test_sizes_and_support_do_not_look_at_data(name: str) -> None:
    spoil, _, _ = DATA_REFUSALS[name]
    call = QuantCall()
    spoil(call)
    assert library().flash_query_support(call.args, None, None, 0) == 0
    assert call.needed_workspace() > 0


def test_a_newer_struct_is_refused() -> None:
    call = QuantCall()
    known = bytes(call.quant)
    newer = (ctypes.c_char * 128).from_buffer_copy(known + b"\x01" * (128 - len(known)))
    ctypes.c_uint32.from_buffer(newer).value = 128
    call.args.quant = ctypes.addressof(newer)
    assert_refused(call.run(), UNSUPPORTED, ["flash_quant_t.struct_size is 128"])
    call.assert_untouched()


def test_scales_without_arrays_are_1_and_go_with_every_type() -> None:
    call = ForwardCall()
    assert call.run() == 0
    expected = call.o.take().tobytes()
    quant = _abi.flash_quant_t()
    call.args.quant = ctypes.addressof(quant)
    assert call.run() == 0, last_error()
    assert call.o.take().tobytes() == expected


def test_strides_along_one_place_mean_nothing_and_any_alignment_does() -> None:
    expected = QuantCall()
    assert expected.run() == 0
    call = QuantCall()
    memory = np.zeros(call.scales.nbytes + 1, np.uint8)
    memory[1:] = call.scales.view(np.uint8).ravel()
    call.quant.k_scale = memory.ctypes.data + 1
    call.quant.v_scale = memory.ctypes.data + 1 + call.scales[0].nbytes
    assert call.run() == 0, last_error()
    assert call.o.take().tobytes() == expected.o.take().tobytes()
    call.args.batch = 1
    call.quant.k_scale_stride_batch = 2**62
    assert call.run() == 0, last_error()


@pytest.mark.parametrize("member", ["o_partial", "o"])
def test_partial_results_are_of_other_types(member: str) -> None:
    call = CombineCall()
    getattr(call.args, member).dtype = _abi.FLASH_DTYPE_E4M3
    assert_refused(call.run(), UNSUPPORTED, [f"{member}.dtype is FLASH_DTYPE_E4M3 (4)"])
    call.assert_untouched()
