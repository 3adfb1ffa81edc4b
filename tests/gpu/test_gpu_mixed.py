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
from cache_checks import CACHES, dense_row
from device_memory import lengths
from flashattn import Arch, Feature
from flashattn._attention import workspace_size
from flashattn._library import check as check_status
from flashattn._library import library
from flashattn._problem import Problem
from gpu_problems import (
    check,
    device_inputs,
    device_options,
    device_pages,
    mixed_rows,
    query,
    types_of,
)
from paging import KINDS, PagedProblem
from problems import AttentionProblem

CONTIGUOUS = [row.config for row in mixed_rows() if not row.config.features & Feature.PAGED]
PAGED = [row.config for row in mixed_rows() if row.config.features & Feature.PAGED]
GROUP = 4  # sequences of up to 4 queries then have the 16 rows that are decoded
PAGE_SIZES = (1, 16, 64)


def _ragged(queries: tuple[int, ...], keys: tuple[int, ...], **options: object) -> AttentionProblem:
    """Makes ragged queries over a padded cache."""
    options = {"cu_seqlens_q": (0, *accumulate(queries)), "seqused_k": keys, **options}
    return AttentionProblem(
        len(queries), max(queries), max(keys), 2 * GROUP, 2, 128, "bfloat16", **options
    )


def _some(n: int, most: int) -> tuple[int, ...]:
    return tuple(1 + i * 37 % most for i in range(n))


SERVING = _ragged((1,) * 30 + (300,) + (1,) * 30 + (257,), _some(30, 900) + (300,) * 32)
BORDER = _ragged((4, 5, 3, 16, 1, 17, 0, 128, 129, 2), (700, 700, 64, 65, 1, 17, 5, 128, 900, 0))
PROBLEMS = {
    "decodes and chunks": SERVING,
    "causal": replace(SERVING, causal=True),
    "all decoded": replace(_ragged(_some(20, 4), _some(20, 600), causal=True), seqlen_q=200),
    "all chunks": _ragged((70, 300, 5, 129), (70, 640, 300, 100), causal=True),
    "border": BORDER,
    "border, causal": replace(BORDER, causal=True),
    "border, window": replace(BORDER, window_size=(77, 2)),
    "border, softcap": replace(BORDER, softcap=3.0),
    "empty sequences": _ragged((0, 1, 0, 0, 90, 0, 4, 0), (9, 300, 0, 5, 90, 0, 500, 1)),
    "fewer queries": replace(
        SERVING, causal=True, seqused_q=(1, 0) * 15 + (4,) + (1,) * 30 + (200,)
    ),
    "one long cache": _ragged((1, 40, 2), (9000, 40, 100), causal=True),
    "fp32 o": replace(BORDER, causal=True, o_dtype="float32"),
    "d_head 64": replace(BORDER, causal=True, d_head=64),
    "d_head 80": replace(BORDER, causal=True, d_head=80),
    "d_head 256": replace(BORDER, causal=True, d_head=256),
    "a head a group": replace(BORDER, n_heads=3, n_heads_kv=3),
    "many heads a group": replace(BORDER, n_heads=24, n_heads_kv=1, causal=True),
    "heads first": replace(BORDER, layouts=("heads_first",) * 4),
    "o that TMA cannot store": replace(BORDER, layouts=("contiguous",) * 3 + ("shifted",)),
    "ragged keys": replace(
        _ragged((1, 200, 4, 5), (300, 200, 90, 5), causal=True),
        seqused_k=None, cu_seqlens_k=(0, 300, 500, 590, 595),
    ),
    "ragged keys in use": replace(
        _ragged((1, 200, 4, 5), (200, 200, 90, 0)),
        seqlen_k=300, cu_seqlens_k=(0, 300, 500, 590, 595),
    ),
}  # fmt: skip
PADDED_KEYS = {name: p for name, p in PROBLEMS.items() if p.cu_seqlens_k is None}
# SM80 rows compute the chunks where TMA cannot store O, those with pages by code that also has
# windows and softcap: they round elsewhere than those without.
SAME_FORWARD_CODE = {name: p for name, p in PADDED_KEYS.items() if "TMA" not in name}
every_problem = pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)
every_row = pytest.mark.parametrize("config", CONTIGUOUS, ids=str)
every_paged_row = pytest.mark.parametrize("config", PAGED, ids=str)


def _of_row(p: AttentionProblem, config: flashattn.Config) -> AttentionProblem:
    """Returns the problem in the row's types. Skips if the other families have no kernels of these,
    or if a query has more rows than are decoded."""
    types = types_of(config)
    if p.o_dtype:
        types["o_dtype"] = p.o_dtype
    p = replace(p, **types)
    support = query(replace(p, layouts=("contiguous",) * 4), dense_row(config))
    if not support:
        expected = "more rows" if p.n_heads // p.n_heads_kv > config.B_r else "no forward kernel"
        assert expected in support.reason
        pytest.skip(support.reason)
    return p


# ---- Results ----


def test_rows_are_there() -> None:
    """There are rows of both 16-bit types and of e4m3, with pages and without."""
    for configs in (CONTIGUOUS, PAGED):
        assert {config.dtype for config in configs} == {1, 2, 4}


@every_row
@every_problem
def test_agrees_with_the_oracle(p: AttentionProblem, config: flashattn.Config) -> None:
    check(_of_row(p, config), config)


@every_paged_row
@pytest.mark.parametrize("p", SAME_FORWARD_CODE.values(), ids=SAME_FORWARD_CODE)
def test_bits_are_those_without_pages(p: AttentionProblem, config: flashattn.Config) -> None:
    CACHES.pages_change_no_bit(_of_row(p, config), config, PAGE_SIZES)


@pytest.mark.parametrize("kind", KINDS)
def test_pages_may_be_found_in_any_way(kind: str) -> None:
    CACHES.pages_are_found(SERVING, kind)


def test_the_same_call_gives_the_same_bits() -> None:
    CACHES.repetition_changes_no_bit(SERVING)


# ---- Selection ----


def _selected(p: AttentionProblem, **options: object) -> flashattn.Selection:
    return flashattn.select_config(*device_inputs(p), **{**device_options(p), **options})


def test_selection_takes_mixed_rows_for_mixed_batches_alone() -> None:
    selection = _selected(SERVING)
    assert selection.config.arch == Arch.MIXED
    assert "queries <= 4 by" in selection.reason and ", more by" in selection.reason
    alone = _ragged((300,), (900,))
    assert _selected(alone).config.arch in (Arch.SM80, Arch.SM90_DECODE)
    assert _selected(_ragged((1, 8), (300, 900))).config.arch not in (
        Arch.MIXED, Arch.SM80, Arch.SM90
    )  # fmt: skip
    for p in (SERVING, alone, _ragged((1, 8), (300, 900)), _ragged((1,), (9,))):
        assert _selected(p, batch_invariant=True).config.arch == Arch.MIXED


def test_a_row_has_no_resources_of_its_own() -> None:
    for config in (*CONTIGUOUS, *PAGED):
        with pytest.raises(NotImplementedError, match="no kernel of its own"):
            flashattn.kernel_resources(config)


@every_row
def test_what_has_no_ragged_queries_is_refused(config: flashattn.Config) -> None:
    p = AttentionProblem(2, 90, 300, 8, 2, 128, **types_of(config), seqused_k=(300, 100))
    support = query(p, config)
    assert not support and "cu_seqlens_q" in support.reason


def test_measuring_times_both_kernels() -> None:
    q, k, v = device_inputs(SERVING)
    rivals = [_selected(SERVING).config, _selected(_ragged((300,), (900,))).config]
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
    p = replace(_ragged((total // batch,) * batch, (700,) * batch, causal=True), seqlen_q=total)
    assert _selected(p).config.arch == Arch.MIXED
    tensors, options = device_inputs(p), device_options(p)
    check_status(library().flash_prepare(Problem(*tensors, **options).args, None))
    o, lse = torch.empty_like(tensors[0]), torch.empty(p.n_heads, total, device="cuda")
    size = workspace_size(Problem(*tensors, **options).args, None)
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


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("name", ["decodes and chunks", "all decoded", "one long cache"])
def test_a_call_stays_within_the_workspace_that_it_asks_for(name: str, invariant: bool) -> None:
    CACHES.workspace_is_enough(PROBLEMS[name], offsets=(1,), batch_invariant=invariant)


def test_workspace_is_small_whatever_the_lengths_are() -> None:
    q = torch.empty(5000, 32, 128, dtype=torch.bfloat16, device="cuda")
    k = torch.empty(1, 1, 8, 128, dtype=torch.bfloat16, device="cuda").expand(256, 100_000, 8, 128)
    used, ends = lengths((0,) * 256), lengths((0,) * 257)
    sizes = [
        workspace_size(
            Problem(q, k, k, cu_seqlens_q=ends, max_seqlen_q=longest, seqused_k=used).args, None
        )
        for longest in (9, 100, 5000)
    ]
    assert 0 < sizes[0] <= 12_000_000 and len(set(sizes)) == 1
