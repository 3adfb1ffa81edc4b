"""Gradients of a small problem agree with central differences of attention as its definition
says."""

import flashattn
import numpy as np
import pytest

BATCH, LEN_Q, LEN_K, HEADS, HEADS_KV, D_HEAD, D_HEAD_V = 2, 37, 53, 4, 2, 16, 24
SOFTCAP, STEP = 2.0, 1e-5


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "q": draw(BATCH, LEN_Q, HEADS, D_HEAD),
        "k": draw(BATCH, LEN_K, HEADS_KV, D_HEAD),
        "v": draw(BATCH, LEN_K, HEADS_KV, D_HEAD_V),
        "sinks": draw(HEADS),
        "d_o": draw(BATCH, LEN_Q, HEADS, D_HEAD_V),
        "d_lse": draw(BATCH, HEADS, LEN_Q),
    }


def loss(q, k, v, sinks, d_o, d_lse):
    """Returns the sum of O * d_o and of LSE * d_lse, in float64."""
    k, v = (np.repeat(x, HEADS // HEADS_KV, axis=2) for x in (k, v))
    scores = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(D_HEAD)
    scores = SOFTCAP * np.tanh(scores / SOFTCAP)
    hidden = np.arange(LEN_K) > np.arange(LEN_Q)[:, None] + LEN_K - LEN_Q
    scores = np.where(hidden, -np.inf, scores)
    lse = np.log(np.exp(scores).sum(-1))
    total = np.exp(lse) + np.exp(sinks)[:, None]
    o = np.einsum("bhij,bjhd->bihd", np.exp(scores) / total[..., None], v)
    return (o * d_o).sum() + (lse * d_lse).sum()


def test_gradients_agree_with_central_differences(problem):
    q, k, v, d_o, d_lse = (problem[name] for name in ("q", "k", "v", "d_o", "d_lse"))
    options = {"causal": True, "softcap": SOFTCAP, "sinks": problem["sinks"]}
    o, lse = flashattn.flash_attn_func(q, k, v, return_lse=True, **options)
    found = flashattn.flash_attn_backward(d_o, q, k, v, o, lse, d_lse=d_lse, **options)
    rng = np.random.default_rng(1)
    exact = {name: x.astype(np.float64) for name, x in problem.items()}
    for name, gradient in zip(("q", "k", "v", "sinks"), found):
        for _ in range(5):
            direction = rng.standard_normal(exact[name].shape)
            above = {**exact, name: exact[name] + STEP * direction}
            below = {**exact, name: exact[name] - STEP * direction}
            difference = (loss(**above) - loss(**below)) / (2 * STEP)
            assert np.isclose((gradient * direction).sum(), difference, rtol=1e-5, atol=1e-4), name
