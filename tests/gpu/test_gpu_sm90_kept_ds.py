"""Kernels of SM90 that keep dS, and dQ of it: beside the oracle, and with the bits that the call
has where a row of dQ is named, for which nothing is kept. Those of SM80 have test_gpu_kept_ds.py.
"""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
import torch
from flashattn import Arch
from gradient_problems import NAMES, GradientProblem, random_d_o
from gradient_runs import DeviceRun, first_rows, heads_of
from problems import AttentionProblem, make_inputs

KEPT = AttentionProblem(dtype="bfloat16", causal=True)
PROBLEMS = {
    "causal": AttentionProblem(1, 200, 200, 2, 2, 64, causal=True),
    "full": AttentionProblem(1, 140, 333, 3, 1, 64),
    "more_keys": AttentionProblem(1, 150, 291, 4, 2, 64, causal=True),
    "few_more_keys": AttentionProblem(1, 270, 271, 2, 1, 64, causal=True),
    "more_queries": AttentionProblem(1, 290, 170, 2, 1, 64, causal=True),
    "many_more_queries": AttentionProblem(1, 460, 70, 2, 1, 64, causal=True),
    "whole_tiles": AttentionProblem(2, 256, 256, 4, 2, 64, causal=True),
    "many_heads": AttentionProblem(3, 140, 150, 6, 2, 64, causal=True),
    "one_query": AttentionProblem(2, 1, 400, 4, 2, 64, causal=True),
    "one_key": AttentionProblem(2, 400, 1, 4, 2, 64),
    "ragged": AttentionProblem(
        5, 260, 300, 4, 2, 64, causal=True,
        cu_seqlens_q=(0, 0, 130, 131, 391, 500), cu_seqlens_k=(0, 50, 180, 190, 490, 531),
    ),
    "ragged_queries": AttentionProblem(
        3, 290, 150, 2, 1, 64, causal=True, cu_seqlens_q=(0, 290, 420, 555)
    ),
    "used": AttentionProblem(
        3, 270, 200, 4, 2, 64, causal=True, seqused_q=(270, 0, 131), seqused_k=(70, 90, 200)
    ),
}  # fmt: skip
pytestmark = pytest.mark.skipif(
    None in first_rows(Arch.SM90, replace(KEPT, d_head=128)), reason="no rows of SM90"
)
every_type = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
every_head = pytest.mark.parametrize("d_head", [128, 192, 256])


def _rows(p: AttentionProblem) -> list[flashattn.Config]:
    """Returns the SM90 row of either operation that has the fewest features."""
    return [x for x in first_rows(Arch.SM90, p) if x is not None]


def _check(g: GradientProblem, inputs: list[np.ndarray], d_o: np.ndarray | None) -> None:
    run = DeviceRun(g, inputs, d_o)
    dq, dkv = _rows(g.forward)
    memory = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    results, written = [], []
    for row in (None, dq):
        memory.fill_(0xFF)
        results.append(run.launch(row, dkv, workspace=memory))
        written.append(int((memory != 0xFF).sum()))
    kept, two = results
    assert written[0] > written[1], "no dS was kept"
    run.compare(kept, inputs)
    for name, found, expected in zip(NAMES, kept[:3], two[:3]):
        np.testing.assert_array_equal(*(x.astype(np.float32) for x in (found, expected)), name)


@every_type
@every_head
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_row(name: str, d_head: int, dtype: str) -> None:
    p = replace(PROBLEMS[name], dtype=dtype, **heads_of(d_head))
    _check(GradientProblem(p, has_d_lse=True), make_inputs(p), None)


@every_head
@pytest.mark.parametrize("name", ["q", "k", "v", "d_o"])
def test_nan(name: str, d_head: int) -> None:
    """It reaches what depends on it, and nothing else."""
    p = AttentionProblem(1, 300, 310, 4, 2, dtype="bfloat16", causal=True, **heads_of(d_head))
    g = GradientProblem(p)
    tensors = dict(zip("qkv", make_inputs(p))) | {"d_o": random_d_o(g)}
    tensors[name] = tensors[name].copy()
    tensors[name][0, 101, 1, 5] = tensors[name][0, 230, 0, -1] = np.nan
    d_o = tensors.pop("d_o")
    _check(g, list(tensors.values()), d_o)


@every_head
def test_scores_far_below_zero(d_head: int) -> None:
    """exp(-LSE) overflows, which is P of keys beyond the end, whose scores are 0."""
    p = AttentionProblem(
        1, 200, 205, 2, 1, dtype="bfloat16", causal=True, softmax_scale=1.0, **heads_of(d_head)
    )
    q, k, v = make_inputs(p)
    ones = np.ones_like(q)
    _check(GradientProblem(p), [ones, (-3 * np.ones_like(k)).astype(k.dtype), v], None)


@pytest.mark.parametrize("d_head, heads_kv", [(128, 4), (192, 8), (256, 16)])
def test_sections(d_head: int, heads_kv: int) -> None:
    """There are more heads than dS is kept of at a time: all would take 3.1 GiB, of 2.5."""
    d_head_v = heads_of(d_head)["d_head_v"] or d_head
    sizes = ((16, d_head), (heads_kv, d_head), (heads_kv, d_head_v))
    tensors = [torch.randn(3, 8192, *x, device="cuda", dtype=torch.bfloat16) for x in sizes]
    d_o, o = (torch.randn_like(tensors[0][..., :d_head_v]) for _ in range(2))
    lse = torch.full((3, 16, 8192), 9.5, device="cuda")
    dq, dkv = _rows(replace(KEPT, **heads_of(d_head)))
    kept, two = (
        flashattn.flash_attn_backward(
            d_o, *tensors, o, lse, causal=True, dq_config=row, dkv_config=dkv
        )
        for row in (None, dq)
    )
    for name in NAMES[:3]:
        assert torch.equal(getattr(kept, name), getattr(two, name)), name
    assert kept.dq.isfinite().all()


@every_head
@pytest.mark.parametrize("size", [(0, 130), (2, 0)])
def test_nothing_to_add_up(size: tuple[int, int], d_head: int) -> None:
    """Without sequences, or without queries, gradients of sinks are 0, and those of keys."""
    batch, seqlen_q = size
    dq, dkv = _rows(replace(KEPT, **heads_of(d_head)))
    q = torch.ones(batch, seqlen_q, 4, d_head, device="cuda", dtype=torch.bfloat16)
    k = torch.ones(batch, 130, 2, d_head, device="cuda", dtype=torch.bfloat16)
    v = k[..., : heads_of(d_head)["d_head_v"]].contiguous()
    o = q[..., : v.shape[-1]].contiguous()
    lse = torch.zeros(batch, 4, seqlen_q, device="cuda")
    sinks = torch.zeros(4, device="cuda")
    for row in (None, dq):
        d_sinks = torch.full((4,), torch.nan, device="cuda")
        outputs = {"dk": torch.full_like(k, torch.nan), "dv": torch.full_like(v, torch.nan)}
        flashattn.flash_attn_backward(
            o, q, k, v, o, lse, causal=True, sinks=sinks, d_sinks=d_sinks, **outputs,
            dq_config=row, dkv_config=dkv,
        )  # fmt: skip
        for found in (d_sinks, *outputs.values()):
            assert (found == 0).all()
