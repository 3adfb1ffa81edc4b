"""Softcaps from far below the scores to far above them: the kernels take the tanh of small scores
by a polynomial, and of others in other ways, block by block.
"""

from __future__ import annotations

import math

import flashattn
import numpy as np
import pytest
from flashattn import Arch, Feature
from gpu_problems import check, contiguous_rows, heads_of, host_inputs, types_of
from problems import AttentionProblem

CONFIGS = [row.config for row in contiguous_rows() if row.config.features & Feature.SOFTCAP]
SEQLEN_Q, SEQLEN_K = 240, 900  # several blocks of every row, most of them without a mask
FEW_QUERIES = 4  # seqlen_q for SM80_DECODE, with as many sequences as make up for it
# (softcap, standard deviation of the scaled scores)
CAPS_AND_SPREADS = [
    (1e-3, 1.0),  # tanh is 1 or -1
    (1.0, 1e-3),
    (1.0, 1.0),
    (20.0, 60.0),
    (30.0, 1.0),  # all scores are small
    (30.0, 7.0),  # in most blocks some are not
    (50.0, 5.0),
    (1e3, 1.0),  # tanh(x) is x
]
every_row = pytest.mark.parametrize("config", CONFIGS, ids=str)


def _problem(config: flashattn.Config, softcap: float, spread: float) -> AttentionProblem:
    batch = SEQLEN_Q // FEW_QUERIES if config.arch == Arch.SM80_DECODE else 1
    return AttentionProblem(
        batch, SEQLEN_Q // batch, SEQLEN_K, 2, 1, **heads_of(config), **types_of(config),
        causal=True, softcap=softcap, softmax_scale=spread / math.sqrt(config.d_head),
    )  # fmt: skip


@every_row
@pytest.mark.parametrize("softcap, spread", CAPS_AND_SPREADS)
def test_row_agrees_with_the_oracle(
    softcap: float, spread: float, config: flashattn.Config
) -> None:
    check(_problem(config, softcap, spread), config)


@every_row
def test_one_score_beyond_the_cap_in_a_block_of_small_ones(config: flashattn.Config) -> None:
    p = _problem(config, softcap=30.0, spread=1.0)
    inputs = host_inputs(p)
    inputs[1][:, 5] *= 50
    check(p, config, inputs)


@every_row
def test_infinite_scores_are_the_cap(config: flashattn.Config) -> None:
    if config.dtype == flashattn.DType.E4M3:
        pytest.skip("e4m3 has no infinity")
    p = _problem(config, softcap=2.0, spread=1.0)
    inputs = host_inputs(p)
    inputs[0][...] = np.abs(inputs[0].astype(np.float32)) + 0.5
    inputs[1][:, ::3] = np.inf
    inputs[1][:, 1::3] = -np.inf
    o, lse = check(p, config, inputs)
    assert np.isfinite(o.astype(np.float32)).all() and np.isfinite(lse).all()


@every_row
def test_nan_reaches_the_rows_that_see_it_alone(config: flashattn.Config) -> None:
    p = _problem(config, softcap=2.0, spread=1.0)
    inputs = host_inputs(p)
    inputs[1][:, SEQLEN_K - 2] = np.nan  # the last query but one sees it, and the last
    o, _ = check(p, config, inputs)
    is_nan = np.isnan(o.astype(np.float32)).any(axis=(0, 2, 3))
    assert is_nan[-2:].all() and not is_nan[:-2].any()
