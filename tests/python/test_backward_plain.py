"""Blocks of keys that all rows see are computed in a way of their own where nothing joins the
scores: what it gives has the bits of the other way, which a mask that hides nothing takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bias_cases import BiasCase
from gradient_problems import GradientProblem, configs_for, make, random_d_o
from memory import DTYPES
from problems import AttentionProblem, make_inputs

SHOWN = BiasCase(kind="bool", hidden=0.0, empty_rows=0.0)


def _compare(p: AttentionProblem, spoilt: int | None = None, value: float = 0.0) -> None:
    """Compares both ways on all kernels; spoilt: a tensor with a value that is not finite."""
    masked = GradientProblem(replace(p, bias=SHOWN))
    q, k, v = make_inputs(p)
    inputs = [q.copy(), k.copy(), v.copy(), random_d_o(masked)]
    if spoilt is not None:
        inputs[spoilt][0, inputs[spoilt].shape[1] // 2, 0, 3] = value
    *inputs, d_o = inputs
    for configs in configs_for(masked):
        if "REFERENCE" in configs[0]:
            continue
        plain = make(GradientProblem(p), inputs, configs, d_o)
        other = make(masked, inputs, configs, d_o)
        other.o[...] = plain.o
        other.keep[2].array[...] = plain.keep[2].array
        for found, expected in zip(plain.launch()[:3], other.launch()[:3]):
            found, expected = found.astype(np.float32), expected.astype(np.float32)
            np.testing.assert_array_equal(found, expected, str(configs))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masks", [{}, {"causal": True}, {"window_size": (150, 90)}], ids=str)
@pytest.mark.parametrize(("len_q", "len_k"), [(101, 300), (300, 128), (96, 65)])
def test_a_mask_that_hides_nothing(masks: dict, len_q: int, len_k: int, dtype: str) -> None:
    _compare(AttentionProblem(1, len_q, len_k, 4, 2, 40, dtype, d_head_v=72, **masks))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("spoilt", range(4), ids=("q", "k", "v", "d_o"))
def test_what_is_not_finite(spoilt: int, value: float, dtype: str) -> None:
    _compare(AttentionProblem(1, 100, 200, 2, 1, 32, dtype, causal=True), spoilt, value)
