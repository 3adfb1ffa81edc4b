"""There is one test per reason for which a call with pages is refused: by the library, with outputs
untouched, or by the package, which knows the sizes of the caller's arrays.
"""

from __future__ import annotations

import ctypes
from typing import Callable

import flashattn
import numpy as np
import pytest
from direct import BATCH, D_HEAD, N_HEADS, N_HEADS_KV, SEQLEN_Q, ForwardCall, assert_refused, tensor
from flashattn import _abi
from flashattn._library import last_error, library

INVALID_ARGUMENT = _abi.FLASH_ERROR_INVALID_ARGUMENT
UNSUPPORTED = _abi.FLASH_ERROR_UNSUPPORTED
PAGE_SIZE, N_PAGES, STRIDE = 3, 5, 3


class PagedCall(ForwardCall):
    """A valid call of two sequences of 7 and 2 keys: change `args`, `paging` or `arrays`."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        shape = (N_PAGES, PAGE_SIZE, N_HEADS_KV, D_HEAD)
        self.k, self.v = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
        self.args.k, self.args.v = tensor(self.k), tensor(self.v)
        self.arrays = {
            "seqused_k": np.array([7, 2], np.int32),
            "page_table": np.array([[4, 0, 2], [1, -1, 9]], np.int32),
            "page_rows": np.array([0, 1], np.int32),
            "page_indptr": np.array([0, 3, 4], np.int32),
            "page_rows64": np.array([0, 1], np.int64),
        }
        self.args.seqused_k = self.address("seqused_k")
        self.paging = _abi.flash_paging_t(
            page_size=PAGE_SIZE,
            n_pages=N_PAGES,
            page_table=self.address("page_table"),
            page_table_stride=STRIDE,
        )
        self.args.paging = ctypes.addressof(self.paging)

    def address(self, name: str) -> int:
        return self.arrays[name].ctypes.data

    def use_indptr(self) -> None:
        self.paging.page_indptr = self.address("page_indptr")
        self.paging.page_table_stride = 0

    def use_slots(self) -> None:
        self.paging.page_rows = self.address("page_rows")
        self.paging.page_table = None
        self.paging.page_table_stride = 0
        self.arrays["seqused_k"][:] = 2

    def use_slots64(self) -> None:
        self.use_slots()
        self.paging.page_rows = None
        self.paging.page_rows64 = self.address("page_rows64")


def _set(name: str, value: object) -> Callable[[PagedCall], None]:
    return lambda call: setattr(call.paging, name, value)


def _point(name: str, array: str) -> Callable[[PagedCall], None]:
    return lambda call: setattr(call.paging, name, call.address(array))


def _put(name: str, index: int, value: int) -> Callable[[PagedCall], None]:
    return lambda call: call.arrays[name].flat.__setitem__(index, value)


def _all(*spoilers: Callable[[PagedCall], None]) -> Callable[[PagedCall], None]:
    def spoil(call: PagedCall) -> None:
        for one in spoilers:
            one(call)

    return spoil


def _no_lengths(call: PagedCall) -> None:
    call.args.seqused_k = None


def _ends(*values: int, used: bool = False) -> Callable[[PagedCall], None]:
    """Gives cu_seqlens_k, in place of seqused_k unless that is used too."""

    def give(call: PagedCall) -> None:
        call.set_lengths("cu_seqlens_k", values)
        if not used:
            call.args.seqused_k = None

    return give


# Every call sees these.
SHAPE_REFUSALS = {
    "struct_size": (_set("struct_size", 0), ["flash_paging_t.struct_size is 0"]),
    "page_size_0": (_set("page_size", 0), ["page_size is 0"]),
    "page_size_negative": (_set("page_size", -1), ["page_size is -1"]),
    "page_size_huge": (_set("page_size", 2**31), ["page_size is 2147483648"]),
    "n_pages": (_set("n_pages", -2), ["n_pages is -2"]),
    "n_pages_huge": (_set("n_pages", 2**31), ["n_pages is 2147483648"]),
    "stride": (_set("page_table_stride", -3), ["page_table_stride is -3"]),
    "no_lengths": (_no_lengths, ["seqused_k and cu_seqlens_k are NULL with paging"]),
    "nothing": (_set("page_table", None), ["page_table and paging.page_rows are NULL"]),
    "both": (
        _all(PagedCall.use_indptr, _point("page_rows", "page_rows")),
        ["page_indptr and paging.page_rows"],
    ),
    "both_rows": (
        _all(_point("page_rows", "page_rows"), _point("page_rows64", "page_rows64")),
        ["paging.page_rows and paging.page_rows64 are given"],
    ),
    "indptr_and_rows64": (
        _all(PagedCall.use_indptr, _point("page_rows64", "page_rows64")),
        ["page_indptr and paging.page_rows are given"],
    ),
    "indptr_stride": (_point("page_indptr", "page_indptr"), ["page_table_stride is 3", "0"]),
    "slots_indptr": (
        _all(PagedCall.use_slots, _point("page_indptr", "page_indptr")),
        ["page_indptr is given without a page_table"],
    ),
    "slots_v": (
        _all(PagedCall.use_slots, _point("v_page_table", "page_table")),
        ["v_page_table is given without a page_table"],
    ),
    "slots_stride": (
        _all(PagedCall.use_slots, _set("page_table_stride", 3)),
        ["page_table_stride is 3 without a page_table"],
    ),
}

# Only flash_forward() sees these.
DATA_REFUSALS = {
    "used_negative": (_put("seqused_k", 1, -1), ["seqused_k[1] is -1"]),
    "used_beyond_seqlen_k": (_put("seqused_k", 0, 8), ["seqused_k[0] is 8", "7"]),
    "used_beyond_row": (_set("page_table_stride", 2), ["seqused_k[0] is 7", "6 keys"]),
    "used_beyond_ids": (
        _all(PagedCall.use_indptr, _put("seqused_k", 1, 4)),
        ["seqused_k[1] is 4", "3 keys"],
    ),
    "used_beyond_slot": (
        _all(PagedCall.use_slots, _put("seqused_k", 1, 4)),
        ["seqused_k[1] is 4", "3 keys"],
    ),
    "ends_begin": (_ends(1, 8, 10), ["cu_seqlens_k[0] is 1: not 0"]),
    "ends_descend": (_ends(0, 7, 6), ["cu_seqlens_k[2] is 6: below the 7"]),
    "ends_beyond_seqlen_k": (
        _ends(0, 8, 8),
        ["cu_seqlens_k[1] - cu_seqlens_k[0] is 8: longer than 7"],
    ),
    "ends_beyond_row": (
        _all(_set("page_table_stride", 2), _ends(0, 7, 9)),
        ["cu_seqlens_k[1] - cu_seqlens_k[0] is 7: its pages hold 6 keys"],
    ),
    "ends_beyond_slot": (
        _all(PagedCall.use_slots, _ends(0, 2, 6)),
        ["cu_seqlens_k[2] - cu_seqlens_k[1] is 4: its pages hold 3 keys"],
    ),
    "used_beyond_ends": (
        _ends(0, 7, 8, used=True),
        ["seqused_k[1] is 2: not within 0 ... 1, the keys of that sequence"],
    ),
    "id_of_ends": (_all(_ends(0, 7, 9), _put("page_table", 3, 5)), ["page 0 of sequence 1", "5"]),
    "id_negative": (
        _put("page_table", 2, -1),
        ["page_table", "page 2 of sequence 0", "place 2", "is -1", "0 ... 4"],
    ),
    "id_past_the_pool": (
        _put("page_table", 3, 5),
        ["page_table", "page 0 of sequence 1", "place 3", "is 5"],
    ),
    "id_of_no_pages": (_set("n_pages", 0), ["page 0 of sequence 0", "is 4"]),
    "v_id": (
        _point("v_page_table", "page_indptr"),
        ["v_page_table", "page 2 of sequence 0", "is 4", "0 ... 3"],
    ),
    "rows_negative": (
        _all(_point("page_rows", "page_rows"), _put("page_rows", 1, -1)),
        ["page_rows[1] is -1"],
    ),
    "rows64_negative": (
        _all(_point("page_rows64", "page_rows64"), _put("page_rows64", 1, -(2**40))),
        ["page_rows64[1] is -1099511627776", "0 ... 2147483647"],
    ),
    "rows64_of_no_32_bits": (
        _all(_point("page_rows64", "page_rows64"), _put("page_rows64", 0, 2**32)),
        ["page_rows64[0] is 4294967296", "0 ... 2147483647"],
    ),
    "slot64_past_the_pool": (
        _all(PagedCall.use_slots64, _put("page_rows64", 1, 2**32 + 1)),
        ["page_rows64[1] is 4294967297", "0 ... 4"],
    ),
    "slot_past_the_pool": (
        _all(PagedCall.use_slots, _put("page_rows", 0, 5)),
        ["page_rows[0] is 5", "0 ... 4"],
    ),
    "indptr_descends": (
        _all(PagedCall.use_indptr, _put("page_indptr", 2, 2)),
        ["page_indptr[2] is 2", "3"],
    ),
    "indptr_negative": (
        _all(PagedCall.use_indptr, _put("page_indptr", 0, -1)),
        ["page_indptr[0] is -1"],
    ),
    "page_stride": (lambda call: setattr(call.args.k, "stride_batch", 0), ["k.stride_batch is 0"]),
}


def _make_v_table_short(call: PagedCall) -> None:
    """The pool has pages 0 to 4. With one page less only V's table names page 4."""
    call.arrays["page_table"][0] = [3, 0, 2]
    call.arrays["page_indptr"][:] = [0, 1, 4]
    call.paging.n_pages = 4


def test_the_calls_that_are_spoiled_below_are_valid() -> None:
    for prepare in (
        lambda call: None, PagedCall.use_indptr, PagedCall.use_slots, PagedCall.use_slots64,
        _ends(0, 7, 9), _ends(0, 7, 14, used=True),
    ):  # fmt: skip
        call = PagedCall()
        prepare(call)
        assert call.run() == 0, last_error()
        assert np.isfinite(call.o.take()).all() and np.isfinite(call.lse.take()).all()


@pytest.mark.parametrize("name", {**SHAPE_REFUSALS, **DATA_REFUSALS})
def test_forward_refuses(name: str) -> None:
    spoil, parts = {**SHAPE_REFUSALS, **DATA_REFUSALS}[name]
    call = PagedCall()
    if name == "v_id":
        _make_v_table_short(call)
    spoil(call)
    assert_refused(call.run(), INVALID_ARGUMENT, parts)
    call.assert_untouched()


@pytest.mark.parametrize("name", SHAPE_REFUSALS)
def test_other_calls_refuse_the_same(name: str) -> None:
    spoil, parts = SHAPE_REFUSALS[name]
    call = PagedCall()
    spoil(call)
    size = ctypes.c_uint64()
    refused = library().flash_workspace_size(call.args, None, size)
    assert_refused(refused, INVALID_ARGUMENT, parts)
    refused = library().flash_query_support(call.args, None, None, 0)
    assert_refused(refused, INVALID_ARGUMENT, parts)


@pytest.mark.parametrize("name", DATA_REFUSALS)
def test_sizes_and_support_do_not_look_at_data(name: str) -> None:
    spoil, _ = DATA_REFUSALS[name]
    call = PagedCall()
    spoil(call)
    assert library().flash_query_support(call.args, None, None, 0) == 0
    assert call.needed_workspace() > 0


def test_reserved_and_newer_fields() -> None:
    call = PagedCall()
    call.paging.reserved32 = 1
    assert_refused(call.run(), UNSUPPORTED, ["paging.reserved32"])
    call = PagedCall()
    known = bytes(call.paging)
    newer = (ctypes.c_char * 128).from_buffer_copy(known + b"\x01" * (128 - len(known)))
    ctypes.c_uint32.from_buffer(newer).value = 128
    call.args.paging = ctypes.addressof(newer)
    assert_refused(call.run(), UNSUPPORTED, ["flash_paging_t.struct_size is 128"])
    call.assert_untouched()


@pytest.mark.parametrize(
    "values, parts",
    [([6, 1], ["seqused_q[0] is 6", "5"]), ([5, -1], ["seqused_q[1] is -1"])],
    ids=str,
)
def test_seqused_q_is_held_against_the_queries(values: list[int], parts: list[str]) -> None:
    call = ForwardCall()
    call.set_lengths("seqused_q", values)
    assert_refused(call.run(), INVALID_ARGUMENT, parts)
    call.assert_untouched()


def test_seqused_q_is_held_against_the_ragged_length() -> None:
    call = ForwardCall()
    call.set_lengths("cu_seqlens_q", [0, 2, 5])
    call.set_lengths("seqused_q", [2, 4])
    assert_refused(call.run(), INVALID_ARGUMENT, ["seqused_q[1] is 4", "3"])
    call.assert_untouched()


def test_ids_beyond_a_length_and_rows_of_no_keys_may_be_anything() -> None:
    call = PagedCall()
    call.paging.page_rows = call.address("page_rows")
    call.arrays["seqused_k"][:] = [3, 0]
    call.arrays["page_table"][0, 1:] = [-7, 99]
    call.arrays["page_rows"][1] = -1
    assert call.run() == 0, last_error()
    assert (call.o.take()[1] == 0).all()


# ---- The package ----

Q = np.zeros((BATCH, SEQLEN_Q, N_HEADS, D_HEAD), np.float32)
KV = np.zeros((N_PAGES, PAGE_SIZE, N_HEADS_KV, D_HEAD), np.float32)
TABLE = np.zeros((BATCH, STRIDE), np.int32)
LENGTHS = np.array([7, 2], np.int32)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"page_table": TABLE[:1]}, "page_table has 1 rows for a batch of 2"),
        ({"page_table": TABLE[0]}, "page_table has 1 axes, not 2"),
        ({"page_table": TABLE.astype(np.int64)}, "page_table is int64, not int32"),
        ({"page_table": TABLE.T}, "page_table is not contiguous"),
        ({"page_table": np.broadcast_to(TABLE[0], (2, 3))}, "give page_rows"),
        ({"page_table": TABLE, "v_page_table": TABLE[:, :2]}, "v_page_table has shape"),
        ({"v_page_table": TABLE}, "v_page_table is given without page_table"),
        ({"page_indptr": [0, 1, 2]}, "without page_table"),
        ({"page_table": TABLE[0], "page_indptr": [0, 1, 4]}, "page_indptr ends at 4"),
        ({"page_table": TABLE[0], "page_indptr": [0, 1]}, "page_indptr has 2 values, not 3"),
        ({"page_table": TABLE, "page_rows": [0, 2]}, r"page_rows\[1\] is 2"),
        ({"page_table": TABLE, "page_rows": np.array([0, 2**32])}, r"\[1\] is 4294967296, page_"),
        ({"page_table": TABLE, "page_rows": np.array([0])}, "page_rows has 1 values, not 2"),
        (
            {"page_table": TABLE, "page_rows": np.array([0, 1], np.int16)},
            "page_rows is int16, not int32 or int64",
        ),
        ({"page_table": TABLE, "seqused_k": None}, "seqused_k and cu_seqlens_k are NULL"),
        ({"page_table": TABLE, "seqused_q": [1]}, "seqused_q has 1 values, not 2"),
    ],
    ids=str,
)
def test_python_refuses(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flashattn.flash_attn_func(Q, KV, KV, **{"seqused_k": LENGTHS, **options})


def test_a_table_may_have_more_rows_and_wider_ones() -> None:
    wide = np.full((BATCH + 2, STRIDE + 4), -1, np.int32)
    wide[:BATCH, :STRIDE] = 0
    o = flashattn.flash_attn_func(Q, KV, KV, seqused_k=LENGTHS, page_table=wide[:, :STRIDE])
    assert (o == 0).all()
    with pytest.raises(ValueError, match=r"seqused_k\[0\] is 10"):
        flashattn.flash_attn_func(Q, KV, KV, seqused_k=[10, 2], page_table=wide[:, :STRIDE])
