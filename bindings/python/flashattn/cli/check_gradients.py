"""This module compares gradients of a kernel with the float64 oracle, for `check`."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import gradient_oracle, oracle
from .._attention import flash_attn_func
from .._backward import flash_attn_backward
from ..compare import Deviation, compare_gradient
from ..config import Feature, Kernel, Op

# Each operation has a keyword that names its kernel, and gradients that the kernel computes.
OPERATIONS = {
    Op.BACKWARD_DQ: ("dq_config", ("dq",)),
    Op.BACKWARD_DKV: ("dkv_config", ("dk", "dv")),
}


def measure(
    kernel: Kernel, inputs: tuple[np.ndarray, ...], options: dict[str, Any], seed: int
) -> list[tuple[str, Deviation]]:
    """Returns the deviation of each gradient that the kernel computes of q, k and v; of none where
    weights are dropped, and the kernel is one of those without dropout."""
    if "dropout_p" in options and not kernel.config.features & Feature.DROPOUT:
        return []
    keyword, names = OPERATIONS[Op(kernel.config.op)]
    o, lse = flash_attn_func(*inputs, return_lse=True, **options)
    d_o = np.random.default_rng(seed + 1).standard_normal(o.shape).astype(o.dtype)
    unwanted = {name: False for name in ("dq", "dk", "dv", "d_sinks") if name not in names}
    found = flash_attn_backward(
        d_o, *inputs, o, lse, **unwanted, **{keyword: kernel.config}, **options
    )
    exact = gradient_oracle.gradients(*inputs, d_o, **options)
    of_p = {inputs[2].dtype, np.dtype(np.float32)}
    naive = gradient_oracle.naive_of(of_p, *inputs, d_o, o=o, **options)
    magnitudes = gradient_oracle.magnitudes(*inputs, d_o, **options)
    largest_score = oracle.largest_score(*inputs[:2])
    return [
        (
            name,
            compare_gradient(
                name,
                *(getattr(x, name) for x in (found, exact, naive, magnitudes)),
                largest_score=largest_score,
            ),
        )
        for name in names
    ]
