"""workspace=: the memory that a call on a CUDA device works in is checked before the library sees
it. No machine has the device, and the library's part is recorded.
"""

from __future__ import annotations

import sys
import types

import absent_device
import flashattn
import numpy as np
import pytest
from flashattn import _abi, _attention
from foreign_arrays import CudaArray, DLPackArray, TorchTensor, torch_module
from problems import AttentionProblem, make_inputs

SIZE = 4096


class Launches:
    """Records what flash_forward was given of each call: the workspace's address and bytes."""

    def __init__(self) -> None:
        self.workspaces: list[tuple[int | None, int]] = []

    def flash_forward(self, args: _abi.flash_forward_args_t, kernel: object, stream: int) -> int:
        self.workspaces.append((args.workspace, args.workspace_size))
        return _abi.FLASH_SUCCESS


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the bytes that a call wants, in a list for tests to change."""
    size = [SIZE]
    monkeypatch.setattr(_attention, "workspace_size", lambda args, kernel: size[0])
    return size


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, wanted: list[int]) -> Launches:
    recorded = Launches()
    monkeypatch.setattr("flashattn._problem.device_info", lambda number: None)
    monkeypatch.setattr(_attention, "library", lambda: recorded)
    return recorded


def on_device(array: np.ndarray, **overrides: object) -> DLPackArray:
    return DLPackArray(array, **{"device": (2, absent_device.ORDINAL), **overrides})


def inputs() -> list[np.ndarray]:
    return make_inputs(AttentionProblem(2, 1, 14, 4, 2, 16, "float16"))


def call(workspace: object, **options: object) -> None:
    q, k, v = inputs()
    out = on_device(np.empty_like(q))
    arrays = map(on_device, (q, k, v))
    flashattn.flash_attn_func(*arrays, out=out, workspace=workspace, **options)


def refused(match: str, workspace: object) -> None:
    with pytest.raises(ValueError, match=match):
        call(workspace)


def test_all_of_it_reaches_the_library(launches: Launches) -> None:
    memory = np.empty(SIZE + 100, np.uint8)
    call(on_device(memory))
    assert launches.workspaces == [(memory.ctypes.data, memory.nbytes)]


def test_any_place_will_do(launches: Launches) -> None:
    memory = np.empty(SIZE + 100, np.uint8)[3:]
    call(on_device(memory))
    assert launches.workspaces == [(memory.ctypes.data, memory.nbytes)]


def test_calls_that_want_none_do_not_look_at_it(launches: Launches, wanted: list[int]) -> None:
    wanted[0] = 0
    call(None)
    call("not an array")
    assert launches.workspaces == [(None, 0)] * 2


def test_other_libraries_than_torch_must_bring_it(launches: Launches) -> None:
    refused(f"a DLPackArray in CUDA memory needs {SIZE} bytes to work in: workspace=", None)
    assert launches.workspaces == []


def test_torch_gives_it(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_module())
    q, k, v = (TorchTensor(x, "cuda", absent_device.ORDINAL) for x in inputs())
    flashattn.flash_attn_func(q, k, v)
    ((address, n_bytes),) = launches.workspaces
    assert address and n_bytes == SIZE
    own = TorchTensor(np.empty(2 * SIZE, np.uint8), "cuda", absent_device.ORDINAL)
    flashattn.flash_attn_func(q, k, v, workspace=own)
    assert launches.workspaces[1] == (own.data_ptr(), 2 * SIZE)


def test_what_is_refused_of_it(launches: Launches) -> None:
    memory = np.zeros(2 * SIZE, np.uint8)
    refused(f"workspace has {SIZE - 1} bytes, and the call wants 4096", on_device(memory[1:SIZE]))
    refused("workspace has 0 bytes", on_device(memory[:0]))
    refused("workspace is float16 with 1 axes: not flat uint8", on_device(memory.view(np.float16)))
    refused("workspace is int32 with 1 axes", on_device(memory.view(np.int32)))
    refused("workspace is uint8 with 2 axes: not flat", on_device(memory.reshape(2, -1)))
    refused(r"workspace is not contiguous \(stride 2 elements, not 1\)", on_device(memory[::2]))
    refused("workspace is not contiguous", on_device(np.broadcast_to(memory[:1], (SIZE,))))
    refused("workspace is read-only", on_device(memory, flags=1))
    refused(f"workspace is on the CPU, q on CUDA device {absent_device.ORDINAL}", memory)
    refused("workspace is on CUDA device 62, q on CUDA", on_device(memory, device=(2, 62)))
    assert launches.workspaces == []


def test_what_is_no_array_is_refused(launches: Launches) -> None:
    with pytest.raises(TypeError, match="workspace is of type int: neither a numpy array nor"):
        call(SIZE)
    assert launches.workspaces == []


def test_it_shares_the_stream_of_the_call(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = types.SimpleNamespace(device=absent_device.NUMBER)
    monkeypatch.setattr("flashattn._tensor.device_info", lambda number: here)
    memory = CudaArray((SIZE,), stream=5)
    memory.__cuda_array_interface__["typestr"] = "|u1"
    refused("workspace is on the CUDA stream 0x5, the call on 0x0", memory)
    memory.__cuda_array_interface__["stream"] = 1  # the default one
    call(memory)
    assert launches.workspaces == [(memory.__cuda_array_interface__["data"][0], SIZE)]
