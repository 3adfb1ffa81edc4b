"""Valid calls of the C API for tests to spoil, without the package's checks."""

from __future__ import annotations

import ctypes

import numpy as np
from flashattn import _abi
from flashattn._library import last_error, library
from memory import Guarded, GuardedBytes

BATCH, SEQLEN_Q, SEQLEN_K, N_HEADS, N_HEADS_KV, D_HEAD = 2, 5, 7, 4, 2, 8


class ForwardCall:
    """A valid flash_forward(): change `args`, then run(). Outputs are guarded."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.q = rng.standard_normal((BATCH, SEQLEN_Q, N_HEADS, D_HEAD)).astype(np.float32)
        self.k = rng.standard_normal((BATCH, SEQLEN_K, N_HEADS_KV, D_HEAD)).astype(np.float32)
        self.v = rng.standard_normal(self.k.shape).astype(np.float32)
        self.o = Guarded(self.q.shape, np.float32)
        self.lse = Guarded((BATCH, N_HEADS, SEQLEN_Q), np.float32)
        self.workspace = GuardedBytes(1 << 22)
        self.lengths: list[np.ndarray] = []
        self.args = _abi.flash_forward_args_t(
            dtype=_abi.FLASH_DTYPE_FP32,
            q=tensor(self.q),
            k=tensor(self.k),
            v=tensor(self.v),
            o=tensor(self.o.array),
            lse=self.lse.array.ctypes.data,
            batch=BATCH,
            seqlen_q=SEQLEN_Q,
            seqlen_k=SEQLEN_K,
            n_heads=N_HEADS,
            n_heads_kv=N_HEADS_KV,
            d_head=D_HEAD,
            workspace=self.workspace.address,
            workspace_size=self.workspace.size,
        )

    def set_lengths(self, name: str, values: list[int]) -> None:
        """Points args.<name> at int32 values; tensors with cu_seqlens are read as ragged."""
        self.lengths.append(np.array(values, np.int32))
        setattr(self.args, name, self.lengths[-1].ctypes.data)

    def run(self, kernel: int | None = None) -> int:
        return library().flash_forward(self.args, kernel, None)

    def needed_workspace(self) -> int:
        size = ctypes.c_uint64()
        assert library().flash_workspace_size(self.args, None, size) == 0, last_error()
        return size.value

    def assert_untouched(self) -> None:
        self.o.assert_untouched()
        self.lse.assert_untouched()
        self.workspace.assert_guards()


class CombineCall:
    """A valid flash_combine() of three partial results."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        shape = (3, BATCH, SEQLEN_Q, N_HEADS, D_HEAD)
        self.o_partial = rng.standard_normal(shape).astype(np.float32)
        self.lse_partial = rng.standard_normal((3, BATCH, N_HEADS, SEQLEN_Q)).astype(np.float32)
        self.o = Guarded(shape[1:], np.float32)
        self.lse = Guarded((BATCH, N_HEADS, SEQLEN_Q), np.float32)
        self.args = _abi.flash_combine_args_t(
            dtype=_abi.FLASH_DTYPE_FP32,
            o_partial=tensor(self.o_partial[0]),
            stride_partial=self.o_partial[0].size,
            lse_partial=self.lse_partial.ctypes.data,
            o=tensor(self.o.array),
            lse=self.lse.array.ctypes.data,
            n_partials=3,
            batch=BATCH,
            seqlen_q=SEQLEN_Q,
            n_heads=N_HEADS,
            d_head=D_HEAD,
        )

    def run(self) -> int:
        return library().flash_combine(self.args, None)

    def assert_untouched(self) -> None:
        self.o.assert_untouched()
        self.lse.assert_untouched()


def tensor(array: np.ndarray) -> _abi.flash_tensor_t:
    strides = [stride // array.itemsize for stride in array.strides[:3]]
    return _abi.flash_tensor_t(array.ctypes.data, *strides)


def assert_refused(status: int, expected: int, parts: list[str]) -> None:
    """Asserts that a call just refused with this status and a message that has all the parts."""
    message = last_error()
    assert status == expected, message
    for part in parts:
        assert part in message
