"""Kernels of dK and dV that keep dS, and dQ of it, on a CUDA device: every such row beside the
oracle, and the same bits as with a row of dQ that is named, for which nothing is kept. So they are
the same with any workspace, in one section of heads or in several."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
import torch
from flashattn import Arch, Op
from gradient_problems import GradientProblem
from gradient_runs import DeviceRun, check, gradient_rows, serves
from problems import AttentionProblem
from test_gpu_backward import DTYPES, _typed
from test_gpu_backward import PROBLEMS as WITHOUT_DROPOUT
from test_gpu_dropout import PROBLEMS as OF_DROPOUT

HEADS = (64, 128, 256)  # of rows of SM80
PROBLEMS = WITHOUT_DROPOUT | {f"dropout_{name}": p for name, p in OF_DROPOUT.items()}
PROBLEMS |= {
    "dropout_several_blocks": replace(
        PROBLEMS["several_blocks"], dropout_p=0.2, rng_state=(7, 2**40)
    ),
    "dropout_many_ragged": replace(PROBLEMS["many_ragged"], dropout_p=0.2, rng_state=(7, 2**40)),
    "dropout_windows": replace(PROBLEMS["several_windows"], dropout_p=0.1, rng_state=(1, 2)),
}
# Rows of a d_head of 64 keep dS with dropout alone.
KEPT = [(name, d) for name, p in PROBLEMS.items() for d in HEADS if d > 64 or p.dropout_p]


def _rows(op: Op, p: AttentionProblem) -> list[flashattn.Config]:
    return [
        row.config
        for row in gradient_rows(op)
        if row.config.arch == Arch.SM80 and row.config.d_head in HEADS and serves(row.config, p)
    ]


def _row_of_dq(p: AttentionProblem, dkv: flashattn.Config) -> flashattn.Config | None:
    """Returns one of the same features, if any: those with a bias round scores once more."""
    rows = [row for row in _rows(Op.BACKWARD_DQ, p) if row.d_head == dkv.d_head]
    return next((row for row in rows if row.features == dkv.features), None)


def _same_bits(a: flashattn.Gradients, b: flashattn.Gradients) -> None:
    for name, x, y in zip(("dq", "dk", "dv"), a, b):
        assert x.tobytes() == y.tobytes(), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "d_head"), KEPT)
def test_every_row_that_keeps_ds(name: str, d_head: int, dtype: str) -> None:
    p = _typed(PROBLEMS[name], dtype, d_head)
    g = GradientProblem(p, has_d_lse=p.values == "normal")
    rows = _rows(Op.BACKWARD_DKV, p)
    assert rows
    for row in rows:
        found = check(g, None, row)
        row_of_dq = _row_of_dq(p, row)
        if row_of_dq is not None and p.values == "normal":
            _same_bits(found, DeviceRun(g).launch(row_of_dq, row))


@pytest.mark.parametrize("dropout_p", [0.0, 0.2])
@pytest.mark.parametrize("d_head", HEADS)
def test_adding_to_dq(d_head: int, dropout_p: float) -> None:
    p = AttentionProblem(
        2, 70, 190, 4, 2, d_head, "bfloat16", causal=True, seqused_k=(190, 31), dropout_p=dropout_p
    )
    g = GradientProblem(p, wide=(True,) * 3, adds=("dq", "dk", "dv"), wanted=("dq", "dk", "dv"))
    for row in _rows(Op.BACKWARD_DKV, p):
        check(g, None, row)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("masks", [{"causal": True}, {"window_size": (60, 20)}], ids=str)
@pytest.mark.parametrize("dropout_p", [0.0, 0.2])
@pytest.mark.parametrize("d_head", HEADS)
def test_what_nobody_sees_of_k(d_head: int, dropout_p: float, masks: dict, value: float) -> None:
    """Hidden keys are in blocks of visible ones, and where no dS is written there is NaN."""
    p = AttentionProblem(1, 90, 210, 2, 1, d_head, "bfloat16", dropout_p=dropout_p, **masks)
    g = GradientProblem(p)
    for row in _rows(Op.BACKWARD_DKV, p):
        run = DeviceRun(g)
        k, v = (x.clone() for x in run.qkv[1:])
        for x in (k, v):
            x[:, -1:] = value
        expected = run.launch(None, row)
        run.qkv[1:] = [k, v]
        memory = torch.full((64 << 20,), 0xFF, dtype=torch.uint8, device="cuda")
        found = run.launch(None, row, workspace=memory)
        of_last = 1 if masks.get("causal") else 21  # queries that see the last key
        assert found.dq[:, :-of_last].tobytes() == expected.dq[:, :-of_last].tobytes(), (
            "what is hidden reaches dQ"
        )
        assert np.isnan(found.dq[:, -of_last:].astype(np.float32)).all()


def test_a_small_workspace_keeps_nothing_and_changes_no_bit() -> None:
    run = DeviceRun(
        GradientProblem(AttentionProblem(2, 90, 210, 4, 2, 128, "float16", causal=True))
    )
    expected = run.launch()
    few = torch.empty(8 * 2 * 90 * 4 + 1024, dtype=torch.uint8, device="cuda")
    _same_bits(run.launch(workspace=few), expected)
    with pytest.raises(ValueError, match="workspace has 100 bytes, and the call wants"):
        run.launch(workspace=few[:100])


# ---- Sections: problems too large for the oracle ----

LARGE = {
    "heads": AttentionProblem(1, 16384, 16384, 8, 8, 128, "bfloat16"),
    "entries": AttentionProblem(5, 8192, 8192, 16, 8, 128, "bfloat16", causal=True),
    "ragged": AttentionProblem(
        4, 8192, 8192, 16, 16, 128, "bfloat16", causal=True,
        cu_seqlens_q=(0, 8000, 16192, 16192, 20000), cu_seqlens_k=(0, 8000, 16192, 17000, 20808),
    ),
}  # fmt: skip


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("p", LARGE.values(), ids=LARGE)
def test_sections_have_the_bits_of_a_row_of_dq(p: AttentionProblem) -> None:
    torch.manual_seed(0)
    options: dict[str, object] = {"causal": p.causal}
    shapes_q, shapes_k = (p.batch, p.seqlen_q), (p.batch, p.seqlen_k)
    if p.cu_seqlens_q is not None:
        shapes_q, shapes_k = (p.cu_seqlens_q[-1],), (p.cu_seqlens_k[-1],)
        options |= {
            name: torch.tensor(getattr(p, name), dtype=torch.int32, device="cuda")
            for name in ("cu_seqlens_q", "cu_seqlens_k")
        }
        options |= {"max_seqlen_q": p.seqlen_q, "max_seqlen_k": p.seqlen_k}
    q, d_o, o = (_random(*shapes_q, p.n_heads, 128) for _ in range(3))
    k, v = (_random(*shapes_k, p.n_heads_kv, 128) for _ in range(2))
    lse_shape = (p.batch, p.n_heads, p.seqlen_q) if p.cu_seqlens_q is None else (
        p.n_heads, *shapes_q
    )  # fmt: skip
    lse = torch.full(lse_shape, 12.0, device="cuda")
    row = next(x for x in _rows(Op.BACKWARD_DKV, p) if _row_of_dq(p, x) is not None)
    named, kept = (
        flashattn.flash_attn_backward(d_o, q, k, v, o, lse, dq_config=dq, dkv_config=row, **options)
        for dq in (_row_of_dq(p, row), None)
    )
    for name in ("dq", "dk", "dv"):
        assert torch.equal(getattr(named, name), getattr(kept, name)), name
