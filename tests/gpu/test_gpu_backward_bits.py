"""The same call for gradients gives the same bits on a CUDA device: again and again, on other
streams, beside other sequences, in a graph, with dirty workspaces, and in rows of other strides."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
import torch
from gradient_problems import NAMES, GradientProblem, random_d_o
from gradient_runs import DeviceRun, heads_of
from problems import AttentionProblem, make_inputs

PROBLEMS = {
    "causal": AttentionProblem(2, 300, 330, 6, 2, 64, "bfloat16", causal=True),
    "full": AttentionProblem(1, 500, 500, 8, 8, 128, "float16"),
    "wide": AttentionProblem(1, 200, 300, 4, 1, 256, "bfloat16", causal=True, softcap=5.0),
    "narrow_v": AttentionProblem(
        1, 290, 310, 4, 4, 192, "bfloat16", causal=True, d_head_v=128
    ),
    "sinks": AttentionProblem(
        3, 260, 200, 4, 2, 128, "bfloat16", cu_seqlens_q=(0, 260, 261, 270),
        cu_seqlens_k=(0, 70, 270, 300), sinks=(1.0, 2.0, 3.0, 4.0),
    ),
}  # fmt: skip
every_problem = pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)


def _bits(gradients: flashattn.Gradients) -> list[bytes | None]:
    return [None if x is None else x.tobytes() for x in gradients]


def _call(run: DeviceRun, outputs: dict[str, torch.Tensor], **keywords: object) -> None:
    flashattn.flash_attn_backward(
        run.d_o, *run.qkv, run.o, run.lse, d_lse=run.d_lse, **outputs, **run.options, **keywords
    )


def _outputs(run: DeviceRun) -> dict[str, torch.Tensor]:
    tensors = dict(zip(NAMES, run.qkv))
    outputs = {name: torch.full_like(tensors[name], float("nan")) for name in NAMES[:3]}
    if "d_sinks" in run.g.results:
        outputs["d_sinks"] = torch.full((run.g.forward.n_heads,), float("nan"), device="cuda")
    return outputs


@every_problem
def test_fifty_runs_beside_other_work(p: AttentionProblem) -> None:
    run = DeviceRun(GradientProblem(p, has_d_lse=True))
    expected = _bits(run.launch())
    busy, x = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda")
    for i in range(50):
        with torch.cuda.stream(busy):
            for _ in range(i % 5):
                x = (x @ x).clamp(-1, 1)
        assert _bits(run.launch()) == expected


@every_problem
def test_another_stream(p: AttentionProblem) -> None:
    run = DeviceRun(GradientProblem(p, has_d_lse=True))
    expected = _bits(run.launch())
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        assert _bits(run.launch()) == expected


@every_problem
def test_a_graph(p: AttentionProblem) -> None:
    run = DeviceRun(GradientProblem(p, has_d_lse=True))
    expected, outputs = _bits(run.launch()), _outputs(run)
    workspace = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    _call(run, outputs, workspace=workspace)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _call(run, outputs, workspace=workspace)
    for _ in range(3):
        for x in outputs.values():
            x.fill_(float("nan"))
        workspace.fill_(0xFF)
        graph.replay()
        found = [outputs[name].cpu() if name in outputs else None for name in NAMES]
        assert [
            None if x is None else x.view(torch.uint8).numpy().tobytes() for x in found
        ] == expected


@every_problem
def test_a_workspace_of_nan_at_odd_addresses(p: AttentionProblem) -> None:
    run = DeviceRun(GradientProblem(p, has_d_lse=True))
    expected = _bits(run.launch())
    memory = torch.empty((64 << 20) + 8, dtype=torch.uint8, device="cuda")
    for shift in (0, 1, 7):
        memory.fill_(0xFF)
        assert _bits(run.launch(workspace=memory[shift:])) == expected


@pytest.mark.parametrize("d_head", [64, 128, 192, 256])
@pytest.mark.parametrize("ragged", [False, True])
def test_neighbours(ragged: bool, d_head: int) -> None:
    """A sequence is alone, and beside longer and shorter ones."""
    lengths = (140, 290, 7, 160)
    ends = tuple(int(n) for n in np.cumsum((0, *lengths)))
    p = AttentionProblem(
        4, 290, 290, 4, 2, **heads_of(d_head), dtype="bfloat16", causal=True,
        seqused_q=lengths, seqused_k=lengths,
    )  # fmt: skip
    if ragged:
        p = replace(p, cu_seqlens_q=ends, cu_seqlens_k=ends, seqused_q=None, seqused_k=None)
    g = GradientProblem(p)
    inputs, d_o = make_inputs(p), random_d_o(g)
    whole = DeviceRun(g, inputs, d_o).launch()
    for b, n in enumerate(lengths):
        at = (slice(ends[b], ends[b + 1]),) if ragged else (b, slice(n))
        one = AttentionProblem(1, n, n, 4, 2, **heads_of(d_head), dtype="bfloat16", causal=True)
        parts = [np.ascontiguousarray(x[at])[None] for x in (*inputs, d_o)]
        alone = DeviceRun(GradientProblem(one), parts[:3], parts[3]).launch()
        for name in NAMES[:3]:
            np.testing.assert_array_equal(
                getattr(alone, name)[0], getattr(whole, name)[at], name, strict=True
            )


@every_problem
def test_strides(p: AttentionProblem) -> None:
    """Rows that are not aligned are copied, which changes no bit."""
    expected = _bits(DeviceRun(GradientProblem(p)).launch())
    for layout in ("padded", "heads_first", "padded_by_three", "shifted"):
        g = GradientProblem(replace(p, layouts=(layout,) * 4), layouts=(layout,) * 4)
        assert _bits(DeviceRun(g).launch()) == expected
