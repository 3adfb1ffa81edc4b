"""Few queries over many keys: lengths and pages that only the device knows, batch invariance,
graphs, and the workspace between the two kernels. test_gpu_table.py checks whether results are
right.
"""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
import torch
from device_memory import lengths
from flashattn import Arch, Feature
from flashattn._attention import workspace_size
from flashattn._problem import Problem
from gpu_problems import device_inputs, device_pages, heads_of, rows, run, same_bits, types_of
from paging import KINDS, PagedProblem
from problems import AttentionProblem

DECODE = [row.config for row in rows() if row.config.arch == Arch.SM80_DECODE]
PAGED = [config for config in DECODE if config.features & Feature.PAGED]
LENGTHS = (0, 1, 63, 64, 65, 127, 4097, 900, 2, 513)
BATCH = AttentionProblem(len(LENGTHS), 1, 4097, 8, 2, 128, "bfloat16", seqused_k=LENGTHS)
PROBLEMS = {
    "one query": BATCH,
    "causal": replace(BATCH, seqlen_q=4, causal=True),
    "window": replace(BATCH, seqlen_q=3, window_size=(77, 2)),
    "softcap": replace(BATCH, seqlen_q=2, softcap=3.0),
    "narrow v": replace(BATCH, seqlen_q=3, causal=True, d_head_v=48),
    "one long": AttentionProblem(1, 1, 9000, 32, 8, 128, "bfloat16", seqused_k=(8999,)),
    "many short": AttentionProblem(
        200, 1, 90, 8, 2, 128, "bfloat16", seqused_k=tuple(i * 37 % 91 for i in range(200))
    ),
}
PAGE_SIZES = (1, 3, 16, 19, 64, 128, 256)
every_problem = pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)


def _of_row(p: AttentionProblem, config: flashattn.Config) -> AttentionProblem:
    return replace(p, **heads_of(config, p.d_head_v), **types_of(config))


def _dense_row(paged: flashattn.Config) -> flashattn.Config:
    return replace(paged, features=paged.features & ~Feature.PAGED)


def _run_paged(q: PagedProblem, config: object = None, **options: object) -> tuple:
    pages, where = device_pages(q)
    p = replace(q.p, seqused_k=None)
    return run(p, pages, config, **{**options, **where})


# ---- Pages ----


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@every_problem
def test_bits_are_those_without_pages(p: AttentionProblem, page_size: int) -> None:
    for paged in PAGED:
        q = PagedProblem(_of_row(p, paged), page_size)
        assert same_bits(_run_paged(q, paged), run(q.dense, config=_dense_row(paged))), str(paged)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["contiguous", "heads_first"])
def test_pages_may_be_found_in_any_way(kind: str, layout: str) -> None:
    p = replace(BATCH, layouts=("contiguous", layout, layout, "contiguous"))
    expected = run(PagedProblem(BATCH, 16).dense)
    for q in (PagedProblem(p, 16, kind), PagedProblem(p, 7, kind, v_apart=True)):
        assert same_bits(_run_paged(q), expected)


def test_keys_of_an_id_that_is_no_page_read_as_zeros() -> None:
    p = AttentionProblem(1, 1, 128, 4, 2, 128, "float16", seqused_k=(128,))
    pages, where = device_pages(PagedProblem(p, 16))
    q, k, v = device_inputs(p)
    for bad in (-1, len(pages[1]), 2**31 - 1, -(2**31)):
        where["page_table"][0, 3] = bad
        k[:, 48:64] = v[:, 48:64] = 0
        o = flashattn.flash_attn_func(*pages, **where)
        assert torch.equal(o, flashattn.flash_attn_func(q, k, v, seqused_k=where["seqused_k"]))


def test_a_length_beyond_the_table_is_cut() -> None:
    p = AttentionProblem(2, 1, 96, 4, 2, 128, "float16", seqused_k=(96, 96))
    pages, where = device_pages(PagedProblem(p, 16))
    where["page_table"] = where["page_table"][:, :6].contiguous()
    expected = flashattn.flash_attn_func(*pages, **where)
    where["seqused_k"] = lengths((5000, 96))
    assert torch.equal(flashattn.flash_attn_func(*pages, **where), expected)


# ---- Batches ----


@every_problem
def test_batch_invariant_bits(p: AttentionProblem) -> None:
    """The bits are the same alone, in the batch, with lengths on the host, and in pages."""
    q, k, v = device_inputs(p)
    options = {
        "causal": p.causal, "window_size": p.window_size, "softcap": p.softcap,
        "batch_invariant": True, "return_lse": True,
    }  # fmt: skip
    o, lse = flashattn.flash_attn_func(q, k, v, seqused_k=lengths(p.seqused_k), **options)
    pages, where = device_pages(PagedProblem(p, 16))
    in_pages = flashattn.flash_attn_func(*pages, **options, **where)
    assert torch.equal(in_pages[0], o) and torch.equal(in_pages[1], lse)
    for b in range(0, p.batch, max(1, p.batch // 10)):
        own = q[b : b + 1], k[b : b + 1, : p.seqused_k[b]], v[b : b + 1, : p.seqused_k[b]]
        alone_o, alone_lse = flashattn.flash_attn_func(*own, **options)
        assert torch.equal(alone_o[0], o[b]) and torch.equal(alone_lse[0], lse[b])


def test_the_same_call_gives_the_same_bits() -> None:
    first = run(BATCH)
    assert all(same_bits(run(BATCH), first) for _ in range(20))


# ---- Graphs, streams and workspaces ----


def _call_of(p: AttentionProblem, q: PagedProblem) -> tuple:
    pages, where = device_pages(q)
    o = torch.empty_like(pages[0])
    lse = torch.empty(p.batch, p.n_heads, p.seqlen_q, device="cuda")
    return pages, where, o, lse


def test_a_graph_replays_with_other_lengths_and_pages() -> None:
    p = replace(BATCH, seqused_k=(4097,) * BATCH.batch)
    pages, where, o, lse = _call_of(p, PagedProblem(p, 16))
    workspace = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    keywords = {**where, "out": o, "lse": lse, "workspace": workspace}
    flashattn.flash_attn_func(*pages, **keywords)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flashattn.flash_attn_func(*pages, **keywords)
    random = torch.Generator().manual_seed(1)
    n_pages = len(pages[1])
    for i in range(1000):
        where["seqused_k"].copy_(torch.randint(0, 4098, (p.batch,), generator=random))
        if i % 10 == 0:
            ids = torch.randint(0, n_pages, where["page_table"].shape, generator=random)
            where["page_table"].copy_(ids)
        graph.replay()
        if i % 20 == 0:
            replayed = o.clone(), lse.clone()
            flashattn.flash_attn_func(*pages, **keywords)
            bits = [x.view(torch.uint8) for x in (o, lse, *replayed)]  # pages hold NaN
            assert torch.equal(bits[0], bits[2]) and torch.equal(bits[1], bits[3])


def test_two_streams_with_workspaces_of_their_own() -> None:
    streams = [torch.cuda.Stream() for _ in range(2)]
    problems = [PROBLEMS["one long"], BATCH]
    expected = [run(p) for p in problems]
    tensors = [device_inputs(p) for p in problems]
    found: list[list[torch.Tensor]] = [[], []]
    torch.cuda.synchronize()
    for _ in range(50):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                used = lengths(problems[i].seqused_k)
                found[i].append(flashattn.flash_attn_func(*tensors[i], seqused_k=used))
    torch.cuda.synchronize()
    for outputs, (o, _) in zip(found, expected):
        bits = torch.from_numpy(o.view(np.int16)).cuda()
        assert all(torch.equal(x.view(torch.int16), bits) for x in outputs)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("invariant", [False, True])
@every_problem
def test_a_call_stays_within_the_workspace_that_it_asks_for(
    p: AttentionProblem, invariant: bool, known: bool
) -> None:
    q, k, v = device_inputs(p)
    used = None if known else lengths(p.seqused_k)
    options = {"causal": p.causal, "window_size": p.window_size, "batch_invariant": invariant}
    size = workspace_size(Problem(q, k, v, seqused_k=used, **options).args, None)
    expected = flashattn.flash_attn_func(q, k, v, seqused_k=used, **options)
    for offset in (0, 1, 100):
        memory = torch.full((size + 2048,), 0xAB, dtype=torch.uint8, device="cuda")
        workspace = memory[1024 + offset : 1024 + offset + size]
        o = flashattn.flash_attn_func(q, k, v, seqused_k=used, workspace=workspace, **options)
        assert torch.equal(o, expected)
        assert (memory[: 1024 + offset] == 0xAB).all()
        assert (memory[1024 + offset + size :] == 0xAB).all()
    both = f"workspace has {size - 1} bytes, and the call wants {size}"
    with pytest.raises(ValueError, match=both):
        flashattn.flash_attn_func(q, k, v, seqused_k=used, workspace=workspace[:-1], **options)


def test_workspace_is_small_whatever_the_lengths_are() -> None:
    q = torch.empty(256, 1, 32, 128, dtype=torch.bfloat16, device="cuda")
    k = torch.empty(1, 1, 8, 128, dtype=torch.bfloat16, device="cuda").expand(256, 100_000, 8, 128)
    args = Problem(q, k, k, seqused_k=lengths((0,) * 256)).args
    assert 0 < workspace_size(args, None) <= 3_000_000


def test_selection_says_which_problems_decode_kernels_take() -> None:
    def arch(p: AttentionProblem, **options: object) -> int:
        tensors = device_inputs(p)
        return flashattn.select_config(*tensors, **options).config.arch

    one = AttentionProblem(2, 1, 300, 8, 2, 128, "bfloat16")
    assert arch(one) == Arch.SM80_DECODE
    assert arch(replace(one, seqlen_q=8)) == Arch.SM80_DECODE
    assert arch(replace(one, seqlen_q=9)) != Arch.SM80_DECODE
    assert arch(replace(one, d_head=125)) != Arch.SM80_DECODE
