"""flash_backward_measure() times rows of one operation of gradients, and refuses others."""

from __future__ import annotations

from typing import Any

import flashattn
import numpy as np
import pytest
from flashattn import Op


@pytest.fixture(scope="module")
def call() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    q, k, v, d_o = (rng.standard_normal((1, 20, 2, 16)).astype(np.float32) for _ in range(4))
    return (d_o, q, k, v, *flashattn.flash_attn_func(q, k, v, return_lse=True))


def rows(op: Op) -> list[flashattn.Config]:
    """Returns the rows for float32 that this machine can run."""
    configs = (k.config for k in flashattn.kernels() if k.is_runnable)
    return [c for c in configs if c.op == op and c.dtype == flashattn.DType.FP32]


@pytest.mark.parametrize("op", [Op.BACKWARD_DQ, Op.BACKWARD_DKV])
def test_rows_of_one_operation_are_timed(call: tuple[Any, ...], op: Op) -> None:
    configs = [c for c in rows(op) if c.arch < flashattn.Arch.SM80]
    seconds = flashattn.measure_backward(*call, configs, n_launches=3)
    assert len(seconds) == len(configs) > 0 and all(x > 0 for x in seconds)


def test_refusals(call: tuple[Any, ...]) -> None:
    dq, dkv = rows(Op.BACKWARD_DQ)[0], rows(Op.BACKWARD_DKV)[0]
    forward = rows(Op.FORWARD)[0]
    for configs, words in (
        ([dq, dkv], "backward_dkv, the call backward_dq"),
        ([forward], "The kernel computes forward"),
        ([], "n_kernels is 0"),
    ):
        with pytest.raises((ValueError, NotImplementedError), match=words):
            flashattn.measure_backward(*call, configs)
    with pytest.raises(ValueError, match="n_launches is 0"):
        flashattn.measure_backward(*call, [dq], n_launches=0)


def test_a_batch_without_sequences_takes_no_time() -> None:
    empty = np.zeros((0, 4, 2, 16), np.float32)
    o, lse = flashattn.flash_attn_func(empty, empty, empty, return_lse=True)
    configs = rows(Op.BACKWARD_DQ)[:1]
    assert flashattn.measure_backward(empty, empty, empty, empty, o, lse, configs) == [0.0]
