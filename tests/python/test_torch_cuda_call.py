"""What a call with CUDA tensors hands to the library: the device, the stream, the workspace and the
addresses. Tensors only say that they are on a device, and the library's part is recorded.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

from flashattn import _abi  # noqa: E402
from flashattn._torch import append, combine, forward, frame  # noqa: E402
from flashattn._torch.arguments import Unsound  # noqa: E402
from flashattn._torch.schemas import NAMES_OF_APPEND  # noqa: E402
from torch_calls import call_of  # noqa: E402

INDEX, STREAM, SIZE = 3, 0x7F00_1234_5678, 4096
OPTIONS = {
    "softmax_scale": 0.5, "causal": True, "window_left": 7, "window_right": 0, "softcap": 2.0,
    "batch_invariant": True, "attention_chunk": 3, "n_multiprocessors": 9,
}  # fmt: skip


class OnDevice:
    """A tensor on the CPU that says it is on a CUDA device."""

    is_cpu, is_cuda = False, True

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def get_device(self) -> int:
        return INDEX


class Library:
    """Records the calls of its functions, as (name, arguments, stream)."""

    def __init__(self, size: int) -> None:
        self.calls: list[tuple[str, Any, int | None]] = []
        self._size = size

    def function(self, name: str) -> Callable[..., int]:
        kinds = {
            "flash_combine": _abi.flash_combine_args_t,
            "flash_kv_append": _abi.flash_kv_append_args_t,
        }
        kind = kinds.get(name, _abi.flash_forward_args_t)

        def call(args: ctypes.c_void_p, *rest: Any) -> int:
            copy = kind.from_buffer_copy(ctypes.string_at(args.value, ctypes.sizeof(kind)))
            if name == "flash_workspace_size":
                rest[-1]._obj.value = self._size
            self.calls.append((name, copy, getattr(rest[-1], "value", None)))
            return _abi.FLASH_SUCCESS

        return call


@pytest.fixture(params=[0, SIZE])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    recorded = Library(request.param)
    monkeypatch.setattr(frame, "_function", recorded.function)
    monkeypatch.setattr(frame, "raw_stream", lambda index: STREAM + index)
    for module in (combine, append):
        monkeypatch.setattr(module, "raw_stream", lambda index: STREAM + index)
    for module in (forward, combine, append):
        monkeypatch.setattr(module, "_frames", [])
    return recorded


def _on_device(*shape: int, dtype: torch.dtype = torch.bfloat16) -> OnDevice:
    return OnDevice(torch.empty(shape, dtype=dtype))


def test_attention(library: Library) -> None:
    q, out = _on_device(2, 5, 4, 64), _on_device(2, 5, 4, 64, dtype=torch.float32)
    k, v = _on_device(9, 16, 2, 64), _on_device(9, 16, 2, 64)
    table = OnDevice(torch.full((2, 3), 77, dtype=torch.int32))  # no page: must not be looked at
    used, padding = (OnDevice(torch.full((2,), n, dtype=torch.int32)) for n in (1000, -5))
    lse = _on_device(4, 5, 2, dtype=torch.float32).permute(2, 0, 1)
    sinks = _on_device(4, dtype=torch.float32)
    rows = OnDevice(torch.full((2,), 2**40))  # nor this, which is no row
    where = {"page_table": table, "page_rows": rows, "seqused_k": used, "leftpad_k": padding}
    given = {"out": out, "lse": OnDevice(lse), "sinks": sinks}
    forward.forward(call_of(q, k, v, **given, **where, **OPTIONS))
    (_, asked, _), (name, args, stream) = library.calls
    paging = _abi.flash_paging_t.from_address(args.paging)
    assert (paging.page_rows, paging.page_rows64) == (None, rows.data_ptr())
    assert name == "flash_forward" and stream == STREAM + INDEX
    assert args.device == asked.device == _abi.FLASH_DEVICE_CUDA + INDEX
    assert (asked.workspace, asked.workspace_size) == (None, 0)
    assert args.workspace_size == library._size and bool(args.workspace) == bool(library._size)
    assert [
        args.q.data,
        args.k.data,
        args.v.data,
        args.o.data,
        args.lse,
        args.seqused_k,
        args.leftpad_k,
        args.sinks,
    ] == [x.data_ptr() for x in (q, k, v, out, lse, used, padding, sinks)]
    assert (args.lse_stride_batch, args.lse_stride_head, args.lse_stride_seq) == (1, 10, 2)
    assert (args.batch, args.seqlen_q, args.seqlen_k) == (2, 5, 48) and args.paging
    assert (args.q.dtype, args.o.dtype) == (_abi.FLASH_DTYPE_BF16, _abi.FLASH_DTYPE_FP32)
    assert (args.window_left, args.window_right, args.attention_chunk) == (7, 0, 3)
    assert args.n_multiprocessors == 9
    assert args.flags == (
        _abi.FLASH_FLAG_CAUSAL | _abi.FLASH_FLAG_WINDOW | _abi.FLASH_FLAG_BATCH_INVARIANT
        | _abi.FLASH_FLAG_BROADCAST
    )  # fmt: skip


def test_lengths_are_not_looked_at(library: Library) -> None:
    q, out = _on_device(10, 4, 64), _on_device(10, 4, 64)
    ends = OnDevice(torch.tensor([5, 99, -7], dtype=torch.int32))
    ragged = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": 100, "max_seqlen_k": 6}
    forward.forward(call_of(q, q, q, out=out, **ragged, **OPTIONS))
    args = library.calls[-1][1]
    assert args.cu_seqlens_q == args.cu_seqlens_k == ends.data_ptr()
    assert (args.batch, args.seqlen_q, args.seqlen_k) == (2, 10, 6)


def test_merging(library: Library) -> None:
    o, lse = _on_device(3, 2, 5, 4, 64), _on_device(3, 2, 4, 5, dtype=torch.float32)
    out = _on_device(2, 5, 4, 64)
    sinks = _on_device(4, dtype=torch.float32)
    combine.combine(o, lse, sinks, (out, None, False, None))
    ((name, args, stream),) = library.calls
    assert name == "flash_combine" and stream == STREAM + INDEX
    assert args.device == _abi.FLASH_DEVICE_CUDA + INDEX and args.sinks == sinks.data_ptr()
    assert (args.n_partials, args.batch, args.seqlen_q, args.n_heads, args.d_head) == (
        3, 2, 5, 4, 64,
    )  # fmt: skip


def test_appending(library: Library) -> None:
    k_new, k = _on_device(7, 2, 64), _on_device(9, 16, 2, 64)
    v_new, v = _on_device(7, 2, 64), _on_device(9, 16, 2, 64)
    q, q_out = _on_device(5, 4, 64), _on_device(5, 4, 64, dtype=torch.float32)
    cos, sin = _on_device(3, 16), _on_device(3, 16)
    table = OnDevice(torch.full((2, 3), 77, dtype=torch.int32))  # none of these may be looked at
    ends = OnDevice(torch.tensor([5, 99, -7], dtype=torch.int32))
    used, after = (OnDevice(torch.full((2,), 1000, dtype=torch.int32)) for _ in range(2))
    rows = OnDevice(torch.full((2,), 2**40))
    given = {
        "k_new": k_new, "v_new": v_new, "k_cache": k, "v_cache": v, "cu_seqlens_new": ends,
        "seqused_k": used, "seqused_k_out": after, "page_table": table, "page_rows": rows, "q": q,
        "q_out": q_out, "cu_seqlens_q": ends, "rotary_cos": cos, "rotary_sin": sin,
        "rotary_interleaved": True, "rotary_start": used, "rotary_q_at_start": True,
    }  # fmt: skip
    append.append(tuple(given.get(name) for name in NAMES_OF_APPEND))
    ((name, args, stream),) = library.calls
    assert name == "flash_kv_append" and stream == STREAM + INDEX
    assert args.device == _abi.FLASH_DEVICE_CUDA + INDEX and args.dtype == _abi.FLASH_DTYPE_BF16
    tensors = args.k_new, args.v_new, args.k, args.v, args.q, args.q_out
    assert [x.data for x in tensors] == [x.data_ptr() for x in (k_new, v_new, k, v, q, q_out)]
    assert args.q_out.dtype == _abi.FLASH_DTYPE_FP32
    assert args.cu_seqlens_new == args.cu_seqlens_q == ends.data_ptr()
    assert (args.seqused_k, args.seqused_k_out) == (used.data_ptr(), after.data_ptr())
    assert (args.batch, args.seqlen_new, args.seqlen_q) == (2, 7, 5) and args.paging
    assert (args.n_heads, args.n_heads_kv, args.d_head) == (4, 2, 64)
    paging = _abi.flash_paging_t.from_address(args.paging)
    assert (paging.page_table, paging.page_rows) == (table.data_ptr(), None)
    assert paging.page_rows64 == rows.data_ptr()
    rotary = _abi.flash_rotary_t.from_address(args.rotary)
    assert (rotary.cos, rotary.sin, rotary.start) == tuple(x.data_ptr() for x in (cos, sin, used))
    assert (rotary.n_positions, rotary.rotary_dim, rotary.stride_position) == (3, 32, 16)
    assert rotary.flags == _abi.FLASH_ROTARY_INTERLEAVED | _abi.FLASH_ROTARY_Q_AT_START


def test_tensors_of_several_devices_are_unsound() -> None:
    here, there = torch.empty(1, 1, 1, 8), _on_device(1, 1, 1, 8)
    for q, k, v in ((there, here, there), (here, there, here), (here, here, there)):
        with pytest.raises(Unsound):
            forward.check_devices(q, k, v)
