"""A stride of 0 along an axis longer than 1 was forgotten, unless FLASH_FLAG_BROADCAST says that it
is meant, or the stride's own comment in the header gives it a meaning. Every stride of every struct
is walked."""

from __future__ import annotations

import numpy as np
import pytest
from direct import CombineCall, assert_refused
from flashattn import _abi, oracle
from flashattn._library import last_error
from whole_calls import CALLS, N_PARTIALS, Call, members

INVALID_ARGUMENT = _abi.FLASH_ERROR_INVALID_ARGUMENT
BROADCAST = _abi.FLASH_FLAG_BROADCAST

# Tensors by their members, where each stride is of one kind.
_TENSORS = {
    "flash_forward_args_t": {"needs the flag": "qkv", "is of an output": "o"},
    "flash_backward_args_t": {
        "needs the flag": ["d_o"],
        "is of an output": ["dq", "dk", "dv"],
    },
    "flash_combine_args_t": {"needs the flag": ["o_partial"], "is of an output": "o"},
    "flash_quantise_args_t": {"needs the flag": "x", "is of an output": ["codes"]},
    "flash_kv_append_args_t": {
        "needs the flag": ["k_new", "v_new", "q"],
        "is of an output": ["k", "v", "q_out"],
    },
}
_OTHERS = {
    "needs the flag": [
        *(f"flash_backward_args_t.d_lse_stride_{axis}" for axis in ("batch", "head", "seq")),
        "flash_combine_args_t.stride_partial",
        "flash_combine_args_t.lse_partial_stride",
        "flash_combine_args_t.lse_partial_stride_batch",
        "flash_combine_args_t.lse_partial_stride_head",
        "flash_combine_args_t.lse_partial_stride_seq",
        "flash_mask_t.stride_key",
    ],
    "is of an output": [
        f"{struct}.lse_stride_{axis}"
        for struct in ("flash_forward_args_t", "flash_combine_args_t")
        for axis in ("batch", "head", "seq")
    ],
    "repeats": [  # by its own comment
        "flash_mask_t.stride_batch",
        "flash_mask_t.stride_head",
        "flash_mask_t.stride_query",
        "flash_forward_args_t.alibi_stride_batch",
        "flash_quant_t.k_scale_stride_batch",
        "flash_quant_t.k_scale_stride_head",
        "flash_quant_t.v_scale_stride_batch",
        "flash_quant_t.v_scale_stride_head",
        "flash_quant_t.q_scale_stride_batch",
        "flash_quant_t.q_scale_stride_head",
        "flash_quant_t.q_token_scale_stride_batch",
        "flash_quant_t.q_token_scale_stride_seq",
        "flash_quant_t.q_token_scale_stride_head",
    ],
    "is a row's length": [  # and no row is empty
        "flash_paging_t.page_table_stride",
        "flash_rotary_t.stride_position",
    ],
}
KINDS = {stride: kind for kind, strides in _OTHERS.items() for stride in strides} | {
    f"{struct}.{tensor}.stride_{axis}": kind
    for struct, kinds in _TENSORS.items()
    for kind, tensors in kinds.items()
    for tensor in tensors
    for axis in ("batch", "seq", "head")
}
WALK = [(name, path) for name, build in CALLS.items() for path in build().strides]


def _kind(call: Call, path: str) -> str:
    if call.function == "flash_backward" and call.strides[path].array in ("o", "lse"):
        return "needs the flag"  # they are inputs there
    return KINDS[call.member_type(path)]


def test_every_stride_of_the_header_has_a_kind() -> None:
    assert set(KINDS) == members(lambda name, _: "stride" in name)


def test_every_stride_is_walked() -> None:
    calls = {name: build() for name, build in CALLS.items()}
    assert {calls[name].member_type(path) for name, path in WALK} == set(KINDS)


@pytest.mark.parametrize("name", CALLS)
def test_the_calls_that_are_spoiled_are_valid(name: str) -> None:
    call = CALLS[name]()
    before = call.results()
    assert call.run() == 0, last_error()
    assert call.results() != before


def _assert_refused(call: Call, parts: list[str]) -> None:
    before = call.memory.copy()
    assert_refused(call.run(), INVALID_ARGUMENT, parts)
    assert (call.memory == before).all()


@pytest.mark.parametrize("name, path", WALK)
def test_without_the_flag(name: str, path: str) -> None:
    call = CALLS[name]()
    call.set(path, 0)
    if _kind(call, path) == "repeats":
        _assert_repeats(name, call, path)
    else:
        _assert_refused(call, [f"{path} is 0"])


@pytest.mark.parametrize("name, path", WALK)
def test_with_the_flag(name: str, path: str) -> None:
    call = CALLS[name]()
    call.set(path, 0)
    call.allow_repeats()
    if _kind(call, path) in ("repeats", "needs the flag"):
        _assert_repeats(name, call, path)
    else:
        _assert_refused(call, [f"{path} is 0"])


def _assert_repeats(name: str, call: Call, path: str) -> None:
    """Asserts that the call has the bits of one whose array has the repeated values."""
    first, axis = call.strides[path]
    expected = CALLS[name]()
    for array in {first.replace("[0]", f"[{i}]") for i in range(N_PARTIALS)}:
        values = expected.arrays[array]
        values[...] = np.take(values, [0], axis)
    assert call.run() == 0, last_error()
    assert expected.run() == 0, last_error()
    assert call.results() == expected.results()


# ---- Merging: strides that are all 0 ----


def _merged(call: CombineCall) -> tuple[np.ndarray, np.ndarray]:
    assert call.run() == 0, last_error()
    return call.o.take(), call.lse.take()


def test_a_distance_between_contiguous_partial_lse_is_enough() -> None:
    call = CombineCall()
    rows = call.lse_partial[0].size
    apart = np.full((3, rows + 5), np.nan, np.float32)
    apart[:, :rows] = call.lse_partial.reshape(3, rows)
    expected, expected_lse = oracle.combine(call.o_partial, call.lse_partial)
    call.args.lse_partial = apart.ctypes.data
    call.args.lse_partial_stride = rows + 5
    o, lse = _merged(call)
    np.testing.assert_allclose(o, expected, atol=1e-5)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=1e-5)


def test_a_distance_of_contiguous_partial_lse_is_enough_with_the_flag() -> None:
    """The flag says nothing about strides that are contiguous by default."""
    call = CombineCall()
    expected = _merged(call)
    call.args.flags = BROADCAST
    assert all((a == b).all() for a, b in zip(_merged(call), expected))


@pytest.mark.parametrize("member", ["stride_partial", "lse_partial_stride"])
def test_one_partial_result_needs_no_distance(member: str) -> None:
    call = CombineCall()
    call.args.n_partials = 1
    call.args.lse_partial_stride_batch = 20
    call.args.lse_partial_stride_head = 5
    call.args.lse_partial_stride_seq = 1
    setattr(call.args, member, 0)
    o, lse = _merged(call)
    assert (o == call.o_partial[0]).all()
    np.testing.assert_allclose(lse, call.lse_partial[0], rtol=1e-6)


_OF_BATCHES = [
    *(("ragged", f"{name}stride_batch") for name in ("lse_", "mask.", "q.")),
    *(("ragged_gradients", f"{name}stride_batch") for name in ("lse_", "d_lse_", "d_o.", "dq.")),
]


@pytest.mark.parametrize("name, path", _OF_BATCHES)
@pytest.mark.parametrize("stride", [-3, 7, 2**63 - 1])
@pytest.mark.parametrize("contiguous", [False, True])
def test_strides_of_the_batch_are_not_looked_at_in_a_ragged_one(
    name: str, path: str, stride: int, contiguous: bool
) -> None:
    call = CALLS[name]()
    if contiguous and "lse_" in path:
        for axis in ("head", "seq"):
            call.set(path.replace("batch", axis), 0)
    assert call.run() == 0, last_error()
    expected = call.results()
    call.set(path, stride)
    assert call.run() == 0, last_error()
    assert call.results() == expected


def test_a_table_without_ids_holds_no_keys() -> None:
    call = CALLS["paged"]()
    call.args.seqlen_k = call.structs["paging"].page_table_stride = 0
    call.arrays["seqused_k"][...] = 0
    assert call.run() == 0, last_error()
