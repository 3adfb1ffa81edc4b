"""`bench --scores`: for some query the first key outweighs all others by more than types hold."""

from __future__ import annotations

import numpy as np
import pytest
from flashattn.cli import bench_scores, main

D_HEAD = 64
SINGLE_PRECISION = 128 * np.log(2)  # P beyond this overflows


def _growth(softmax_scale: float | None, *, once: bool) -> np.ndarray:
    """Returns the first key's score less the largest other: [batch, head, query]."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    q, k = (torch.randn(2, 40, 3, D_HEAD, dtype=torch.bfloat16) for _ in range(2))
    q, k = (x.double().numpy() for x in bench_scores.grow(q, k, softmax_scale, once=once))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * (softmax_scale or D_HEAD**-0.5)
    return scores[..., 0] - scores[..., 1:].max(axis=-1)


@pytest.mark.parametrize("softmax_scale", [None, 0.5])
def test_every_query_outgrows_its_reference(softmax_scale: float | None) -> None:
    assert _growth(softmax_scale, once=False).min() > SINGLE_PRECISION


def test_one_query_outgrows_its_reference() -> None:
    outgrown = _growth(None, once=True) > SINGLE_PRECISION
    assert outgrown.sum() == 1 and outgrown[0, 0, -1]


def test_only_cuda_kernels_keep_a_reference(capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", "--scores", "growing"]) == 2
    assert "--device cuda" in capsys.readouterr().err
