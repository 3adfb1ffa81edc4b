"""Ragged batches of sequences with few queries (decode) and with many (chunks of prompts), which
MIXED rows give to two kernels by the lengths on the device. Whichever kernel computes a sequence, O
and LSE agree with the oracle, and each row is written by the kernel of its part.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import flashattn
import pytest
import torch
from cache_families import MIXED, ragged
from device_memory import lengths
from flashattn import Arch
from flashattn._attention import workspace_size
from flashattn._library import check as check_status
from flashattn._library import library
from flashattn._problem import Problem
from gpu_problems import (
    check,
    device_inputs,
    device_options,
    device_pages,
    query,
    types_of,
)
from paging import PagedProblem
from problems import AttentionProblem

PROBLEMS, SERVING = MIXED.problems, MIXED.batch
PADDED_KEYS = {name: p for name, p in PROBLEMS.items() if p.cu_seqlens_k is None}
every_problem = pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)
every_row = pytest.mark.parametrize("config", MIXED.dense, ids=str)


# ---- Results ----


def test_rows_are_there() -> None:
    """There are rows of both 16-bit types and of e4m3, with pages and without."""
    for configs in (MIXED.dense, MIXED.paged):
        assert {config.dtype for config in configs} == {1, 2, 4}


@every_row
@every_problem
def test_agrees_with_the_oracle(p: AttentionProblem, config: flashattn.Config) -> None:
    check(MIXED.of_row(p, config), config)


# ---- Selection ----


def _selected(p: AttentionProblem, **options: object) -> flashattn.Selection:
    return flashattn.select_config(*device_inputs(p), **{**device_options(p), **options})


def test_selection_takes_mixed_rows_for_mixed_batches_alone() -> None:
    selection = _selected(SERVING)
    assert selection.config.arch == Arch.MIXED
    assert "queries <= 4 by" in selection.reason and ", more by" in selection.reason
    alone = ragged((300,), (900,))
    assert _selected(alone).config.arch in (Arch.SM80, Arch.SM90_DECODE)
    assert _selected(ragged((1, 8), (300, 900))).config.arch not in (
        Arch.MIXED, Arch.SM80, Arch.SM90
    )  # fmt: skip
    for p in (SERVING, alone, ragged((1, 8), (300, 900)), ragged((1,), (9,))):
        assert _selected(p, batch_invariant=True).config.arch == Arch.MIXED


def test_a_row_has_no_resources_of_its_own() -> None:
    for config in MIXED.rows:
        with pytest.raises(NotImplementedError, match="no kernel of its own"):
            flashattn.kernel_resources(config)


@every_row
def test_what_has_no_ragged_queries_is_refused(config: flashattn.Config) -> None:
    p = AttentionProblem(2, 90, 300, 8, 2, 128, **types_of(config), seqused_k=(300, 100))
    support = query(p, config)
    assert not support and "cu_seqlens_q" in support.reason


def test_measuring_times_both_kernels() -> None:
    q, k, v = device_inputs(SERVING)
    rivals = [_selected(SERVING).config, _selected(ragged((300,), (900,))).config]
    seconds = flashattn.measure(
        q, k, v, rivals, out=torch.empty_like(q), n_launches=5, **device_options(SERVING)
    )
    assert all(1e-6 < s < 1e-2 for s in seconds)


# ---- Batch invariance ----


def _invariant(p: AttentionProblem, tensors: list, **options: object) -> tuple:
    own = {**device_options(p), "batch_invariant": True, "return_lse": True, **options}
    return flashattn.flash_attn_varlen_func(*tensors, **own)


def _alone(p: AttentionProblem, tensors: list, b: int) -> tuple:
    """Returns (O, LSE) of one sequence in a call of its own, with bounds of its own."""
    q, k, v = tensors
    begin, end = p.cu_seqlens_q[b : b + 2]
    keys = p.seqused_k[b]
    own = replace(
        p, batch=1, seqlen_q=end - begin, seqlen_k=keys, cu_seqlens_q=(0, end - begin),
        seqused_q=p.seqused_q and p.seqused_q[b : b + 1], seqused_k=(keys,),
    )  # fmt: skip
    return _invariant(own, [q[begin:end], k[b : b + 1, :keys], v[b : b + 1, :keys]])


@pytest.mark.parametrize("name", [name for name, p in PADDED_KEYS.items() if not p.seqused_q])
def test_batch_invariant_bits(name: str) -> None:
    """The bits are the same alone, in the batch, with other bounds of lengths, and in pages."""
    p = replace(PADDED_KEYS[name], layouts=("contiguous",) * 4)
    tensors = device_inputs(p)
    o, lse = _invariant(p, tensors)
    longer = _invariant(replace(p, seqlen_q=p.seqlen_q + 1000), tensors)
    assert torch.equal(longer[0], o) and torch.equal(longer[1], lse)
    pages, where = device_pages(PagedProblem(p, 16))
    in_pages = _invariant(replace(p, seqused_k=None), pages, **where)
    assert torch.equal(in_pages[0], o) and torch.equal(in_pages[1], lse)
    for b in range(0, p.batch, max(1, p.batch // 20)):
        begin, end = p.cu_seqlens_q[b : b + 2]
        if end > begin:
            alone_o, alone_lse = _alone(p, tensors, b)
            assert torch.equal(alone_o, o[begin:end]), b
            assert torch.equal(alone_lse, lse[:, begin:end]), b


# ---- Graphs and workspaces ----


def _partition(total: int, batch: int, random: torch.Generator) -> list[int]:
    """Returns the ends of n sequences, most of which have few queries."""
    own = torch.randint(0, 7, (batch,), generator=random)
    own[torch.randint(0, batch, (1,), generator=random)] += total - int(own.sum())
    return [0, *accumulate(own.tolist())]


def test_a_graph_replays_with_sequences_that_change_sides() -> None:
    total, batch = 400, 20
    p = replace(ragged((total // batch,) * batch, (700,) * batch, causal=True), seqlen_q=total)
    assert _selected(p).config.arch == Arch.MIXED
    tensors, options = device_inputs(p), device_options(p)
    problem = Problem(*tensors, options)
    check_status(library().flash_prepare(problem.args, None))
    o, lse = torch.empty_like(tensors[0]), torch.empty(p.n_heads, total, device="cuda")
    size = workspace_size(problem.args, None)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
    keywords = {**options, "out": o, "lse": lse, "workspace": workspace}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flashattn.flash_attn_varlen_func(*tensors, **keywords)
    random = torch.Generator().manual_seed(1)
    for _ in range(50):
        options["cu_seqlens_q"].copy_(lengths(_partition(total, batch, random)))
        options["seqused_k"].copy_(torch.randint(0, 701, (batch,), generator=random))
        o.fill_(float("nan"))
        lse.fill_(float("nan"))
        graph.replay()
        replayed = o.clone(), lse.clone()
        assert not replayed[0].isnan().any() and not replayed[1].isnan().any()
        flashattn.flash_attn_varlen_func(*tensors, **keywords)
        assert torch.equal(o, replayed[0]) and torch.equal(lse, replayed[1])


def test_workspace_is_small_whatever_the_lengths_are() -> None:
    q = torch.empty(5000, 32, 128, dtype=torch.bfloat16, device="cuda")
    k = torch.empty(1, 1, 8, 128, dtype=torch.bfloat16, device="cuda").expand(256, 100_000, 8, 128)
    used, ends = lengths((0,) * 256), lengths((0,) * 257)
    options = {"cu_seqlens_q": ends, "seqused_k": used}
    problems = [Problem(q, k, k, {**options, "max_seqlen_q": most}) for most in (9, 100, 5000)]
    sizes = [workspace_size(problem.args, None) for problem in problems]
    assert 0 < sizes[0] <= 12_000_000 and len(set(sizes)) == 1
