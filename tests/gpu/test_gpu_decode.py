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
from cache_checks import CACHES
from device_memory import lengths
from flashattn import Arch, Feature
from flashattn._attention import workspace_size
from flashattn._problem import Problem
from gpu_problems import device_inputs, device_pages, heads_of, rows, run, types_of
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


# ---- Pages ----


@pytest.mark.parametrize("config", PAGED, ids=str)
@every_problem
def test_bits_are_those_without_pages(p: AttentionProblem, config: flashattn.Config) -> None:
    CACHES.pages_change_no_bit(_of_row(p, config), config, PAGE_SIZES)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["contiguous", "heads_first"])
def test_pages_may_be_found_in_any_way(kind: str, layout: str) -> None:
    p = replace(BATCH, layouts=("contiguous", layout, layout, "contiguous"))
    CACHES.pages_are_found(p, kind)


def test_keys_of_an_id_that_is_no_page_read_as_zeros() -> None:
    p = AttentionProblem(1, 1, 128, 4, 2, 128, "float16", seqused_k=(128,))
    CACHES.keys_of_no_page_read_as_zeros(p)


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
    CACHES.neighbours_change_no_bit(p)


def test_the_same_call_gives_the_same_bits() -> None:
    CACHES.repetition_changes_no_bit(BATCH)


# ---- Graphs, streams and workspaces ----


def test_a_graph_replays_with_other_lengths_and_pages() -> None:
    CACHES.replays_see_other_lengths_and_pages(BATCH, n_replays=1000, compare_every=20)


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
    p = replace(p, seqused_k=None) if known else p
    CACHES.workspace_is_enough(p, offsets=(0, 1, 100), batch_invariant=invariant)


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
