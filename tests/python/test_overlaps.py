"""What a call writes must not overlap what else it reads or writes. Every pair of an output and
another array of every call is refused in each way that they can overlap, but for those that the
header allows."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest
from direct import assert_refused
from flashattn import _abi, oracle
from flashattn._library import last_error
from whole_calls import CALLS, N_PARTIALS, Call, members

# Where an output begins, counted in bytes from the other array.
PLACES = {
    "begins in its last byte": lambda output, other: other.nbytes - 1,
    "ends in its first byte": lambda output, other: 1 - output.nbytes,
    "is shifted by one": lambda output, other: output.itemsize,
    "is it": lambda output, other: 0,
}
PAIRS = [
    (name, output, other)
    for name, build in CALLS.items()
    for call in [build()]
    for output in call.outputs
    for other in call.arrays
    if other != output
]
# Outputs that may be computed in place, and pools that may share memory.
IN_PLACE = {("o", "o_partial"), ("lse", "lse_partial"), ("q_out", "q"), ("q", "q_out")}
IN_PLACE |= {("o", f"o_partials[{i}]") for i in range(N_PARTIALS)}
IN_PLACE |= {("lse", f"lse_partials[{i}]") for i in range(N_PARTIALS)}
POOLS = {("k", "v"), ("v", "k")}
# Members that are no memory of the call's own: structs, threads, and memory that it need not tell
# from others.
NO_ARRAYS = {
    "flash_forward_args_t.workspace",
    *(
        f"flash_backward_args_t.{name}"
        for name in ("forward", "workspace", "dq_kernel", "dkv_kernel")
    ),
    *(
        f"flash_forward_args_t.{name}"
        for name in ("executor", "paging", "quant", "mask", "dropout")
    ),
    "flash_combine_args_t.executor",
    "flash_quantise_args_t.executor",
    *(f"flash_kv_append_args_t.{name}" for name in ("executor", "paging", "quant", "rotary")),
    "flash_executor_t.run",
    "flash_executor_t.context",
}


def _moved(name: str, output: str, other: str, place: str) -> Call:
    """Returns a call whose output lies on another array. Only the pointer moves."""
    call = CALLS[name]()
    on, array = call.arrays[other], call.arrays[output]
    call.point(output, on.ctypes.data + PLACES[place](array, on))
    return call


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name, output, other", PAIRS)
def test_an_output_lies_on_another_array(name: str, output: str, other: str, place: str) -> None:
    call = _moved(name, output, other, place)
    in_place = place == "is it" and (output, other) in IN_PLACE
    if in_place or ((output, other) in POOLS and "paging" in call.structs):
        assert call.run() == 0, last_error()
        return
    before = call.memory.copy()
    assert_refused(call.run(), _abi.FLASH_ERROR_INVALID_ARGUMENT, [" overlaps "])
    names = re.match(r"(\S+) overlaps ([^\s:]+): ", last_error()).groups()
    assert set(names) == {_in_messages(output), _in_messages(other)}
    assert (call.memory == before).all()


def _in_messages(array: str) -> str:
    """Returns the name of an array in messages, which tell one of a list by no number."""
    return re.sub(r"s\[\d\]", "", array)


def test_every_array_of_the_header_is_in_a_call() -> None:
    kinds = (ctypes.c_void_p, _abi.flash_tensor_t)
    wanted = {re.sub(r"(\.\w+)\.data$", r"\1", m) for m in members(lambda _, kind: kind in kinds)}
    found = set()
    for build in CALLS.values():
        call = build()
        found |= {call.member_type(array) for array in call.arrays if "[" not in array}
    assert found == wanted - NO_ARRAYS


# ---- Merging in place ----


def _expected(call: Call) -> tuple[np.ndarray, np.ndarray]:
    call.args.sinks = None
    return oracle.combine(call.arrays["o_partial"].copy(), call.arrays["lse_partial"].copy())


@pytest.mark.parametrize("i", range(N_PARTIALS))
def test_a_partial_result_is_merged_in_place(i: int) -> None:
    call = CALLS["combined"]()
    o, lse = _expected(call)
    call.point("o", call.arrays["o_partial"][i].ctypes.data)
    call.point("lse", call.arrays["lse_partial"][i].ctypes.data)
    assert call.run() == 0, last_error()
    np.testing.assert_allclose(call.arrays["o_partial"][i], o, atol=1e-5)
    np.testing.assert_allclose(call.arrays["lse_partial"][i], lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("output, of", [("o", "o_partial"), ("lse", "lse_partial")])
@pytest.mark.parametrize("i", range(N_PARTIALS))
def test_a_partial_result_beside_its_place_is_refused(output: str, of: str, i: int) -> None:
    """By one element, and by other strides."""
    for shift in (4, -4):
        call = CALLS["combined"]()
        call.point(output, call.arrays[of][i].ctypes.data + shift)
        status = call.run()
        assert_refused(status, _abi.FLASH_ERROR_INVALID_ARGUMENT, [f"{output} overlaps {of}"])
    call = CALLS["combined"]()
    call.point(output, call.arrays[of][i].ctypes.data)
    stride = "lse_stride_batch" if output == "lse" else "o.stride_batch"
    call.set(stride, call.get(stride) + 1)
    status = call.run()
    assert_refused(status, _abi.FLASH_ERROR_INVALID_ARGUMENT, [f"{output} overlaps {of}"])


def test_strides_of_axes_of_length_1_do_not_matter_in_place() -> None:
    call = CALLS["combined"]()
    call.args.batch = 1
    call.args.o.stride_batch, call.args.lse_stride_batch = 7, 9
    for output in ("o", "lse"):
        call.point(output, call.arrays[f"{output}_partial"][1].ctypes.data)
    assert call.run() == 0, last_error()


# ---- Tensors with gaps ----


def test_an_array_in_a_gap_of_an_output_is_apart_from_it() -> None:
    """O has gaps of 8 elements between its heads. Sinks fill a gap, or reach into a row."""
    call = CALLS["padded"]()
    o = call.arrays["o"]
    for axis, stride in (("batch", 320), ("seq", 64), ("head", 16)):
        call.set(f"o.stride_{axis}", stride)
    wide = np.zeros(640, np.float32)
    call.point("o", wide.ctypes.data)
    assert wide.size == 2 * o.size
    for first, is_apart in ((40, True), (44, True), (45, False), (37, False), (39, False)):
        call.point("sinks", wide[first:].ctypes.data)
        assert (call.run() == 0) == is_apart, (first, last_error())


def test_an_array_that_spans_a_row_of_an_output_is_refused() -> None:
    """It begins and ends in gaps of O."""
    call = CALLS["combined"]()
    call.args.batch = 1
    for axis, stride in (("seq", 4 * 12), ("head", 12)):
        call.set(f"o.stride_{axis}", stride)
    wide = np.zeros(5 * 4 * 12, np.float32)
    call.point("o", wide.ctypes.data)
    call.args.n_partials = 1
    call.args.d_head = 2
    call.point("sinks", wide[12 - 1 :].ctypes.data)
    assert_refused(call.run(), _abi.FLASH_ERROR_INVALID_ARGUMENT, ["o overlaps sinks"])


@pytest.mark.parametrize("n_keys, is_apart", [(1, True), (32, True), (33, False), (64, False)])
def test_the_last_word_of_bits_counts_whole(n_keys: int, is_apart: bool) -> None:
    """O begins one word behind the first of the mask."""
    call = CALLS["padded"]()
    mask = call.structs["mask"]
    mask.kind, mask.n_keys = _abi.FLASH_MASK_BITS, n_keys
    mask.stride_batch = mask.stride_head = mask.stride_query = mask.stride_key = 0
    mask.head_scale = None
    call.point("mask.data", call.arrays["o"].ctypes.data - 4)
    assert (call.run() == 0) == is_apart, last_error()


def test_positions_of_queries_alone_are_apart_from_what_is_written() -> None:
    call = CALLS["appended_to_slots"]()
    positions = call.arrays["rotary.positions"]
    call.args.seqlen_new = 0
    assert call.run() == 0, last_error()
    call.point("q_out", positions.ctypes.data + positions.nbytes - 4)
    words = ["q_out overlaps rotary.positions"]
    assert_refused(call.run(), _abi.FLASH_ERROR_INVALID_ARGUMENT, words)
