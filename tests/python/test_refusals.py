"""There is one test per reason for which the library refuses a call. It checks the status that the
header promises, a message with the values, and that outputs are untouched.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, sizeof
from typing import Callable

import absent_device
import flashattn
import numpy as np
import pytest
from direct import CombineCall, ForwardCall, assert_refused
from flashattn import _abi
from flashattn._library import last_error, library
from flashattn.config import row, to_c
from problems import runnable_kernels

INVALID_ARGUMENT = _abi.FLASH_ERROR_INVALID_ARGUMENT
INVALID_CONFIG = _abi.FLASH_ERROR_INVALID_CONFIG
UNSUPPORTED = _abi.FLASH_ERROR_UNSUPPORTED
NOT_BUILT = _abi.FLASH_ERROR_NOT_BUILT
TOO_SMALL = _abi.FLASH_ERROR_WORKSPACE_TOO_SMALL
INT64_MAX = 2**63 - 1
NAN, INFINITY = float("nan"), float("inf")


def _set(path: str, value: object) -> Callable[[_abi.flash_forward_args_t], None]:
    """Sets a member, such as "q.stride_seq"."""

    def spoil(args: _abi.flash_forward_args_t) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            args = getattr(args, parent)
        setattr(args, name, value)

    return spoil


def _reserved(name: str) -> Callable[[_abi.flash_forward_args_t], None]:
    def spoil(args: _abi.flash_forward_args_t) -> None:
        getattr(args, name).reserved[1] = 1

    return spoil


def _copy(path: str, source: str) -> Callable[[_abi.flash_forward_args_t], None]:
    """Copies one member to another."""

    def spoil(args: _abi.flash_forward_args_t) -> None:
        value = args
        for name in source.split("."):
            value = getattr(value, name)
        _set(path, value)(args)

    return spoil


def _both(*spoilers: Callable) -> Callable[[_abi.flash_forward_args_t], None]:
    def spoil(args: _abi.flash_forward_args_t) -> None:
        for one in spoilers:
            one(args)

    return spoil


# flash_forward(), flash_workspace_size(), flash_prepare(), flash_select_kernel() and
# flash_query_support() all see these: (name, change, status, parts of the message).
SHAPE_REFUSALS = [
    ("struct_size_0", _set("struct_size", 0), INVALID_ARGUMENT, ["struct_size is 0"]),
    ("struct_size_odd", _set("struct_size", 9), INVALID_ARGUMENT, ["struct_size is 9"]),
    ("struct_size_huge", _set("struct_size", 1 << 30), INVALID_ARGUMENT, ["1073741824"]),
    ("device_negative", _set("device", -1), INVALID_ARGUMENT, ["device is 0xffffffff"]),
    ("device_1", _set("device", 1), INVALID_ARGUMENT, ["device is 0x1"]),
    ("device_of_no_kind", _set("device", 0x20000), INVALID_ARGUMENT, ["device is 0x20000"]),
    ("device_absent", _set("device", absent_device.NUMBER), absent_device.STATUS, ["CUDA device"]),
    ("dtype_0", _set("dtype", 0), INVALID_ARGUMENT, ["dtype is 0"]),
    ("dtype_unknown", _set("dtype", 77), INVALID_ARGUMENT, ["dtype is 77"]),
    ("dtype_negative", _set("dtype", -2), INVALID_ARGUMENT, ["dtype is -2"]),
    ("k_dtype_unknown", _set("k.dtype", 77), INVALID_ARGUMENT, ["k.dtype is 77"]),
    ("v_dtype_of_its_own", _set("v.dtype", 4), UNSUPPORTED, ["v.dtype is 4", "dtype is 3"]),
    ("flags_unknown", _set("flags", 0x81), INVALID_ARGUMENT, ["flags", "0x81", "0x80"]),
    ("batch_negative", _set("batch", -1), INVALID_ARGUMENT, ["batch is -1"]),
    ("batch_over_31_bits", _set("batch", 2**31), INVALID_ARGUMENT, ["batch", "2147483648"]),
    ("seqlen_q_negative", _set("seqlen_q", -4), INVALID_ARGUMENT, ["seqlen_q is -4"]),
    ("seqlen_q_huge", _set("seqlen_q", INT64_MAX), INVALID_ARGUMENT, ["seqlen_q", str(INT64_MAX)]),
    ("seqlen_k_negative", _set("seqlen_k", -7), INVALID_ARGUMENT, ["seqlen_k is -7"]),
    ("seqlen_k_huge", _set("seqlen_k", 2**40), INVALID_ARGUMENT, ["seqlen_k", str(2**40)]),
    ("n_heads_negative", _set("n_heads", -2), INVALID_ARGUMENT, ["n_heads is -2"]),
    ("n_heads_huge", _set("n_heads", 2**33), INVALID_ARGUMENT, ["n_heads", str(2**33)]),
    ("n_heads_kv_negative", _set("n_heads_kv", -2), INVALID_ARGUMENT, ["n_heads_kv is -2"]),
    ("n_heads_zero", _set("n_heads", 0), INVALID_ARGUMENT, ["n_heads is 0"]),
    ("n_heads_kv_zero", _set("n_heads_kv", 0), INVALID_ARGUMENT, ["n_heads_kv is 0"]),
    ("heads_not_divisible", _set("n_heads", 5), INVALID_ARGUMENT, ["n_heads is 5", "2"]),
    ("more_heads_kv", _set("n_heads_kv", 8), INVALID_ARGUMENT, ["n_heads is 4", "8"]),
    ("d_head_zero", _set("d_head", 0), INVALID_ARGUMENT, ["d_head is 0"]),
    ("d_head_negative", _set("d_head", -8), INVALID_ARGUMENT, ["d_head is -8"]),
    ("d_head_huge", _set("d_head", 2**31), INVALID_ARGUMENT, ["d_head", "2147483648"]),
    ("scale_negative", _set("softmax_scale", -0.5), INVALID_ARGUMENT, ["softmax_scale is -0.5"]),
    ("scale_nan", _set("softmax_scale", NAN), INVALID_ARGUMENT, ["softmax_scale", "nan"]),
    ("scale_infinite", _set("softmax_scale", INFINITY), INVALID_ARGUMENT, ["softmax_scale", "inf"]),
    ("softcap_negative", _set("softcap", -2.0), INVALID_ARGUMENT, ["softcap is -2"]),
    ("softcap_nan", _set("softcap", NAN), INVALID_ARGUMENT, ["softcap", "nan"]),
    ("softcap_infinite", _set("softcap", INFINITY), INVALID_ARGUMENT, ["softcap", "inf"]),
    (
        "window_left_below_minus_1",
        _both(_set("flags", 2), _set("window_left", -2)),
        INVALID_ARGUMENT,
        ["window_left is -2"],
    ),
    (
        "window_right_below_minus_1",
        _both(_set("flags", 2), _set("window_right", -9)),
        INVALID_ARGUMENT,
        ["window_right is -9"],
    ),
    (
        "window_without_bounds",
        _both(_set("flags", 2), _set("window_left", -1), _set("window_right", -1)),
        INVALID_ARGUMENT,
        ["window_left", "window_right", "-1"],
    ),
    (
        "window_without_its_flag",
        _set("window_left", 16),
        INVALID_ARGUMENT,
        ["window_left is 16", "FLASH_FLAG_WINDOW"],
    ),
]

# Only flash_forward() sees these.
DATA_REFUSALS = [
    ("q_null", _set("q.data", None), INVALID_ARGUMENT, ["q.data is NULL"]),
    ("k_null", _set("k.data", None), INVALID_ARGUMENT, ["k.data is NULL"]),
    ("v_null", _set("v.data", None), INVALID_ARGUMENT, ["v.data is NULL"]),
    ("o_null", _set("o.data", None), INVALID_ARGUMENT, ["o.data is NULL"]),
    ("q_stride", _set("q.stride_batch", -1), INVALID_ARGUMENT, ["q.stride_batch is -1"]),
    ("k_stride", _set("k.stride_seq", -16), INVALID_ARGUMENT, ["k.stride_seq is -16"]),
    ("v_stride", _set("v.stride_head", -8), INVALID_ARGUMENT, ["v.stride_head is -8"]),
    ("o_stride", _set("o.stride_seq", -32), INVALID_ARGUMENT, ["o.stride_seq is -32"]),
    ("q_overflow", _set("q.stride_batch", INT64_MAX), INVALID_ARGUMENT, ["q", str(INT64_MAX)]),
    ("k_overflow", _set("k.stride_seq", 2**61), INVALID_ARGUMENT, ["k", str(2**61)]),
    ("v_overflow", _set("v.stride_head", 2**62), INVALID_ARGUMENT, ["v", str(2**62)]),
    ("o_overflow", _set("o.stride_batch", 2**62), INVALID_ARGUMENT, ["o", str(2**62)]),
    ("q_forgotten", _set("q.stride_seq", 0), INVALID_ARGUMENT, ["q.stride_seq is 0", "BROADCAST"]),
    ("k_forgotten", _set("k.stride_head", 0), INVALID_ARGUMENT, ["k.stride_head is 0"]),
    ("v_forgotten", _set("v.stride_batch", 0), INVALID_ARGUMENT, ["v.stride_batch is 0"]),
    ("o_forgotten", _set("o.stride_batch", 0), INVALID_ARGUMENT, ["o.stride_batch is 0"]),
    (
        "o_repeats",
        _both(_set("flags", 8), _set("o.stride_batch", 0)),
        INVALID_ARGUMENT,
        ["o.stride_batch is 0", "no place of an output may repeat"],
    ),
    ("lse_forgotten", _set("lse_stride_seq", 1), INVALID_ARGUMENT, ["lse_stride_batch is 0"]),
    (
        "lse_negative",
        _both(_set("lse_stride_batch", 20), _set("lse_stride_head", -5), _set("lse_stride_seq", 1)),
        INVALID_ARGUMENT,
        ["lse_stride_head is -5"],
    ),
    (
        "lse_overlaps",
        _both(_set("lse_stride_batch", 20), _set("lse_stride_head", 4), _set("lse_stride_seq", 1)),
        INVALID_ARGUMENT,
        ["lse overlaps itself", "stride_head is 4"],
    ),
    ("lse_in_q", _copy("lse", "q.data"), INVALID_ARGUMENT, ["lse overlaps q"]),
    ("lse_in_o", _copy("lse", "o.data"), INVALID_ARGUMENT, ["lse overlaps o"]),
    ("o_overlaps", _set("o.stride_head", 7), INVALID_ARGUMENT, ["o overlaps", "stride_head is 7"]),
    ("o_heads_overlap", _set("o.stride_seq", 31), INVALID_ARGUMENT, ["o overlaps", "is 31"]),
    ("o_batches_overlap", _set("o.stride_batch", 159), INVALID_ARGUMENT, ["o overlaps", "is 159"]),
    ("q_reserved", _reserved("q"), UNSUPPORTED, ["q.reserved"]),
    ("k_reserved32", _set("k.reserved32", 1), UNSUPPORTED, ["k.reserved"]),
    ("o_reserved", _reserved("o"), UNSUPPORTED, ["o.reserved"]),
    (
        "workspace_null",
        _set("workspace", None),
        INVALID_ARGUMENT,
        ["workspace is NULL"],
    ),
]


def _ids(refusals: list) -> list[str]:
    return [refusal[0] for refusal in refusals]


def test_the_call_that_is_spoiled_below_is_valid() -> None:
    for call in (ForwardCall(), CombineCall()):
        assert call.run() == 0
        assert np.isfinite(call.o.take()).all() and np.isfinite(call.lse.take()).all()


@pytest.mark.parametrize(
    "name, spoil, status, parts",
    SHAPE_REFUSALS + DATA_REFUSALS,
    ids=_ids(SHAPE_REFUSALS + DATA_REFUSALS),
)
def test_forward_refuses(name: str, spoil: Callable, status: int, parts: list[str]) -> None:
    call = ForwardCall()
    spoil(call.args)
    assert_refused(call.run(), status, parts)
    call.assert_untouched()


@pytest.mark.parametrize("name, spoil, status, parts", SHAPE_REFUSALS, ids=_ids(SHAPE_REFUSALS))
def test_other_calls_refuse_the_same(
    name: str, spoil: Callable, status: int, parts: list[str]
) -> None:
    args = ForwardCall().args
    spoil(args)
    size = ctypes.c_uint64(12345)
    assert_refused(library().flash_workspace_size(args, None, size), status, parts)
    assert size.value == 12345
    assert_refused(library().flash_prepare(args, None), status, parts)
    selected = ctypes.c_void_p(7)
    reason = ctypes.create_string_buffer(b"untouched", 300)
    refused = library().flash_select_kernel(args, selected, reason, 300)
    assert_refused(refused, status, parts)
    assert selected.value == 7 and reason.value == b"untouched"
    assert_refused(library().flash_query_support(args, None, reason, 300), status, parts)
    assert all(part in reason.value.decode() for part in parts)


@pytest.mark.parametrize("name, spoil, status, parts", DATA_REFUSALS, ids=_ids(DATA_REFUSALS))
def test_sizes_and_support_do_not_look_at_data(
    name: str, spoil: Callable, status: int, parts: list[str]
) -> None:
    call = ForwardCall()
    expected = call.needed_workspace()
    spoil(call.args)
    assert call.needed_workspace() == expected
    assert library().flash_query_support(call.args, None, None, 0) == 0
    assert library().flash_prepare(call.args, None) == 0


def test_null_arguments() -> None:
    args, size, config = ForwardCall().args, ctypes.c_uint64(), _abi.flash_config_t()
    kernel = ctypes.c_void_p()
    calls = {
        "flash_forward": (None, None, None),
        "flash_workspace_size": (None, None, size),
        "flash_prepare": (None, None),
        "flash_select_kernel": (None, kernel, None, 0),
        "flash_query_support": (None, None, None, 0),
        "flash_combine": (None, None),
        "flash_kv_append": (None, None),
    }
    for name, arguments in calls.items():
        assert_refused(getattr(library(), name)(*arguments), INVALID_ARGUMENT, ["NULL"])
    null_results = [
        library().flash_workspace_size(args, None, None),
        library().flash_select_kernel(args, None, None, 0),
        library().flash_tuning_format(args, None, 1.0, ctypes.create_string_buffer(512), 512),
        library().flash_device_info(0, None),
        library().flash_kernel_config(None, config),
        library().flash_kernel_config(library().flash_kernel_at(0), None),
        library().flash_config_parse(None, config),
        library().flash_config_parse(b"REFERENCE (FP32, any, 16, 1)", None),
        library().flash_config_format(None, ctypes.create_string_buffer(256), 256),
    ]
    for status in null_results:
        assert status == INVALID_ARGUMENT
        assert "NULL" in last_error()
    assert not library().flash_lookup_kernel(None) and "NULL" in last_error()
    assert library().flash_last_status() == INVALID_ARGUMENT
    assert library().flash_kernel_name(None) is None


# ---- Lengths ----

LENGTH_REFUSALS = [
    ("cu_seqlens_q", [1, 3, 5], ["cu_seqlens_q[0] is 1"]),
    ("cu_seqlens_q", [0, 4, 3], ["cu_seqlens_q[2] is 3", "4"]),
    ("cu_seqlens_q", [0, -1, 3], ["cu_seqlens_q[1] is -1"]),
    ("cu_seqlens_q", [0, 6, 7], ["cu_seqlens_q[1]", "6", "5"]),
    ("cu_seqlens_k", [2, 3, 5], ["cu_seqlens_k[0] is 2"]),
    ("cu_seqlens_k", [0, 5, 4], ["cu_seqlens_k[2] is 4", "5"]),
    ("cu_seqlens_k", [0, 1, 9], ["cu_seqlens_k[2]", "8", "7"]),
    ("seqused_k", [7, 8], ["seqused_k[1] is 8", "7"]),
    ("seqused_k", [-1, 7], ["seqused_k[0] is -1"]),
]


@pytest.mark.parametrize("name, values, parts", LENGTH_REFUSALS, ids=str)
def test_forward_refuses_lengths(name: str, values: list[int], parts: list[str]) -> None:
    call = ForwardCall()
    call.set_lengths(name, values)
    assert_refused(call.run(), INVALID_ARGUMENT, parts)
    call.assert_untouched()


def test_seqused_k_is_held_against_the_ragged_length() -> None:
    call = ForwardCall()
    call.set_lengths("cu_seqlens_k", [0, 3, 7])
    call.set_lengths("seqused_k", [3, 5])
    assert_refused(call.run(), INVALID_ARGUMENT, ["seqused_k[1] is 5", "4"])
    call.assert_untouched()


# ---- Workspace ----


def test_workspace_too_small_names_both_sizes() -> None:
    call = ForwardCall()
    needed = call.needed_workspace()
    for size in (0, 1, 100):
        call.args.workspace_size = size
        status = call.run()
        assert_refused(status, TOO_SMALL, [f"workspace_size is {size}", str(needed)])
        call.assert_untouched()


def test_one_threads_share_is_the_least_that_is_accepted() -> None:
    call = ForwardCall()
    assert library().flash_set_num_threads(1) == 0
    least = call.needed_workspace()
    assert library().flash_set_num_threads(8) == 0
    call.args.workspace_size = least
    assert call.run() == 0
    call.args.workspace_size = least - 1
    assert call.run() == TOO_SMALL


# ---- Kernels and configurations ----


def _runnable_config(dtype: int = _abi.FLASH_DTYPE_FP32) -> _abi.flash_config_t:
    return next(to_c(k.config) for k in runnable_kernels() if k.config.dtype == dtype)


def _assert_kernel_refused(kernel: int, status: int, parts: list[str]) -> None:
    """Asserts that every call that takes a kernel refuses it."""
    call = ForwardCall()
    assert_refused(call.run(kernel), status, parts)
    call.assert_untouched()
    size = ctypes.c_uint64(12345)
    assert_refused(library().flash_workspace_size(call.args, kernel, size), status, parts)
    assert size.value == 12345
    assert_refused(library().flash_prepare(call.args, kernel), status, parts)
    reason = ctypes.create_string_buffer(300)
    assert_refused(library().flash_query_support(call.args, kernel, reason, 300), status, parts)
    assert all(part in reason.value.decode() for part in parts)


@pytest.mark.parametrize("offset", [-1, 1, 8, 1 << 20])
def test_a_pointer_that_is_no_row_of_the_table(offset: int) -> None:
    pointer = library().flash_kernel_at(0) + offset
    _assert_kernel_refused(pointer, INVALID_ARGUMENT, [hex(pointer), "no row"])
    assert library().flash_kernel_name(pointer) is None
    assert library().flash_last_status() == INVALID_ARGUMENT


CONFIG_REFUSALS = [
    ("unknown_arch", {"arch": 55}, INVALID_CONFIG, ["arch is 55"]),
    ("arch_zero", {"arch": 0}, INVALID_CONFIG, ["arch is 0"]),
    ("unknown_dtype", {"dtype": 9}, INVALID_CONFIG, ["dtype is 9"]),
    ("d_head_negative", {"d_head": -1}, INVALID_CONFIG, ["d_head is -1"]),
    ("B_r_zero", {"B_r": 0}, INVALID_CONFIG, ["B_r is 0"]),
    ("B_r_large", {"B_r": 1025}, INVALID_CONFIG, ["B_r is 1025"]),
    ("B_c_large", {"B_c": 4097}, INVALID_CONFIG, ["B_c is 4097"]),
    ("warps_on_cpu", {"n_warps": 4}, INVALID_CONFIG, ["n_warps is 4"]),
    ("async_on_cpu", {"async_copy": 1}, INVALID_CONFIG, ["async_copy is 1"]),
    ("fragments_on_cpu", {"Q_mma_load_K_fragments": 2}, INVALID_CONFIG, ["Q_mma_load_K_fr"]),
    ("features_unknown", {"features": 0x100}, INVALID_CONFIG, ["features", "0x100"]),
    ("not_built", {"B_r": 17, "B_c": 19}, NOT_BUILT, ["17, 19", "legal"]),
    ("unknown_op", {"op": 5}, INVALID_CONFIG, ["op is 5"]),
    ("struct_size_0", {"struct_size": 0}, INVALID_ARGUMENT, ["struct_size is 0"]),
]


@pytest.mark.parametrize("name, fields, status, parts", CONFIG_REFUSALS, ids=_ids(CONFIG_REFUSALS))
def test_look_up_refuses_configuration(
    name: str, fields: dict[str, int], status: int, parts: list[str]
) -> None:
    config = _runnable_config()
    assert ForwardCall().run(library().flash_lookup_kernel(config)) == 0
    for field, value in fields.items():
        setattr(config, field, value)
    assert not library().flash_lookup_kernel(config)
    assert_refused(library().flash_last_status(), status, parts)


def test_the_last_status_is_that_of_the_last_failed_call() -> None:
    runnable = _runnable_config()
    assert not library().flash_kernel_at(-1)
    assert library().flash_last_status() == INVALID_ARGUMENT
    assert not library().flash_lookup_kernel(_abi.flash_config_t())
    assert library().flash_last_status() == INVALID_CONFIG
    assert library().flash_lookup_kernel(runnable)
    assert library().flash_last_status() == INVALID_CONFIG


def test_kernel_of_another_type() -> None:
    kernel = library().flash_lookup_kernel(_runnable_config(_abi.FLASH_DTYPE_BF16))
    _assert_kernel_refused(kernel, UNSUPPORTED, ["dtype", "BF16", "FP32"])


def test_cuda_kernels_do_not_serve_the_cpu_device() -> None:
    """These rows of the table cannot run on this machine, or belong to another device."""
    for kernel in flashattn.kernels():
        if kernel.config.arch >= flashattn.Arch.SM80:
            _assert_kernel_refused(row(kernel.config), UNSUPPORTED, [kernel.name])


def test_illegal_sm80_configuration() -> None:
    config = _abi.flash_config_t()
    text = b"(FP16, 128, 64, 64, 4): eager+load_0_2_2_tiles"
    assert library().flash_config_parse(text, config) == 0
    assert not library().flash_lookup_kernel(config)
    status = library().flash_last_status()
    assert_refused(status, INVALID_CONFIG, ["eager_load_blocks", "async_copy"])


# ---- Struct sizes ----


class _NewerArgs(ctypes.Structure):
    _fields_ = [("known", _abi.flash_forward_args_t), ("unknown", ctypes.c_uint64)]


def test_a_newer_callers_unknown_field_is_refused_unless_zero() -> None:
    call = ForwardCall()
    newer = _NewerArgs(call.args, 0)
    newer.known.struct_size = sizeof(_NewerArgs)
    pointer = ctypes.cast(byref(newer), ctypes.POINTER(_abi.flash_forward_args_t))
    assert library().flash_forward(pointer, None, None) == 0
    call = ForwardCall()
    newer = _NewerArgs(call.args, 1)
    newer.known.struct_size = sizeof(_NewerArgs)
    pointer = ctypes.cast(byref(newer), ctypes.POINTER(_abi.flash_forward_args_t))
    status = library().flash_forward(pointer, None, None)
    assert_refused(status, UNSUPPORTED, [str(sizeof(_NewerArgs)), str(sizeof(call.args))])
    call.assert_untouched()


def test_an_older_callers_missing_fields_read_as_zero() -> None:
    """A struct ends before softmax_scale, and the softcap behind that is not read."""
    call = ForwardCall()
    assert call.run() == 0
    expected = call.o.take()
    older = ForwardCall()
    older.args.softcap = 0.01
    older.args.struct_size = _abi.flash_forward_args_t.softmax_scale.offset
    assert older.run() == TOO_SMALL  # the workspace lies behind it too
    older.assert_untouched()
    older.args.struct_size = sizeof(older.args)
    assert older.run() == 0
    assert (older.o.take() != expected).any()


def test_a_struct_to_fill_that_is_too_short_for_a_value() -> None:
    config = _abi.flash_config_t(B_c=77)
    config.struct_size = _abi.flash_config_t.B_c.offset
    status = library().flash_kernel_config(library().flash_kernel_at(0), config)
    assert_refused(status, UNSUPPORTED, [f"flash_config_t.struct_size is {config.struct_size}"])
    assert config.arch == 0 and config.B_c == 77


# ---- Combine ----

COMBINE_REFUSALS = [
    ("struct_size_0", _set("struct_size", 0), INVALID_ARGUMENT, ["struct_size is 0"]),
    ("device_negative", _set("device", -5), INVALID_ARGUMENT, ["device is 0xfffffffb"]),
    ("device_absent", _set("device", absent_device.NUMBER), absent_device.STATUS, ["CUDA device"]),
    ("dtype", _set("dtype", 8), INVALID_ARGUMENT, ["dtype is 8"]),
    ("dtype_partial", _set("o_partial.dtype", 8), INVALID_ARGUMENT, ["o_partial.dtype is 8"]),
    ("dtype_o", _set("o.dtype", 9), INVALID_ARGUMENT, ["o.dtype is 9"]),
    ("flags", _set("flags", 9), INVALID_ARGUMENT, ["flags is 0x9"]),
    ("n_partials", _set("n_partials", -3), INVALID_ARGUMENT, ["n_partials is -3"]),
    ("batch", _set("batch", -2), INVALID_ARGUMENT, ["batch is -2"]),
    ("seqlen_q", _set("seqlen_q", 2**31), INVALID_ARGUMENT, ["seqlen_q", "2147483648"]),
    ("n_heads", _set("n_heads", -1), INVALID_ARGUMENT, ["n_heads is -1"]),
    ("n_heads_zero", _set("n_heads", 0), INVALID_ARGUMENT, ["n_heads is 0"]),
    ("d_head", _set("d_head", 0), INVALID_ARGUMENT, ["d_head is 0"]),
    ("o_partial_null", _set("o_partial.data", None), INVALID_ARGUMENT, ["o_partial.data is NULL"]),
    ("lse_partial_null", _set("lse_partial", None), INVALID_ARGUMENT, ["lse_partial is NULL"]),
    ("o_null", _set("o.data", None), INVALID_ARGUMENT, ["o.data is NULL"]),
    ("stride", _set("o_partial.stride_seq", -1), INVALID_ARGUMENT, ["stride_seq is -1"]),
    ("stride_partial", _set("stride_partial", -9), INVALID_ARGUMENT, ["-9"]),
    ("overflow", _set("stride_partial", 2**62), INVALID_ARGUMENT, ["o_partial", "overflows"]),
    ("forgotten", _set("o_partial.stride_seq", 0), INVALID_ARGUMENT, ["stride_seq is 0"]),
    (
        "o_repeats",
        _both(_set("flags", 8), _set("o.stride_head", 0)),
        INVALID_ARGUMENT,
        ["o.stride_head is 0", "no place of an output may repeat"],
    ),
    ("reserved", _reserved("o_partial"), UNSUPPORTED, ["o_partial.reserved"]),
]


@pytest.mark.parametrize("name, spoil, status, parts", COMBINE_REFUSALS, ids=_ids(COMBINE_REFUSALS))
def test_combine_refuses(name: str, spoil: Callable, status: int, parts: list[str]) -> None:
    call = CombineCall()
    spoil(call.args)
    assert_refused(call.run(), status, parts)
    call.assert_untouched()


# ---- Texts and the table ----


@pytest.mark.parametrize("size", [0, 1, 20])
def test_short_form_that_does_not_fit(size: int) -> None:
    text = ctypes.create_string_buffer(b"untouched text", 64)
    status = library().flash_config_format(_runnable_config(), text, size)
    assert_refused(status, _abi.FLASH_ERROR_BUFFER_TOO_SMALL, [str(size)])
    assert text.value == b"untouched text"


@pytest.mark.parametrize(
    "text",
    ["", "AVX9 (FP32, any, 16, 1)", "REFERENCE (FP32, any, 16)", "REFERENCE (FP32, any, 16, 1): x",
     "REFERENCE (FP64, any, 16, 1)", "REFERENCE (FP32, any, 16, 99999999999)",
     "REFERENCE (FP32, any, 16, 1) causal", "(FP16, 128, 64, 64, 4): async"],
)  # fmt: skip
def test_text_that_is_no_short_form(text: str) -> None:
    config = _abi.flash_config_t(B_r=7)
    status = library().flash_config_parse(text.encode(), config)
    assert_refused(status, INVALID_ARGUMENT, ["position"])
    assert config.B_r == 7 and config.arch == 0


@pytest.mark.parametrize("index", [-1, 2**31 - 1])
def test_index_outside_the_table(index: int) -> None:
    assert not library().flash_kernel_at(index)
    assert str(index) in last_error()


def test_reason_is_cut_to_fit() -> None:
    args = ForwardCall().args
    args.batch = -1
    reason = ctypes.create_string_buffer(b"\xa5" * 16, 16)
    assert library().flash_query_support(args, None, reason, 8) == INVALID_ARGUMENT
    assert reason.raw == b"batch i\0" + b"\xa5" * 8


def test_every_status_has_a_name() -> None:
    values = {name: value for name, value in vars(_abi).items() if name.startswith("FLASH_ERROR_")}
    for name, value in {**values, "FLASH_SUCCESS": 0}.items():
        assert library().flash_status_string(value).decode() == name
    assert library().flash_status_string(12345)
