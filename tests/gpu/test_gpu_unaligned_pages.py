"""Pages whose rows are no whole, aligned chunks of 16 bytes: any d_head, strides and addresses."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import pytest
from flashattn import Arch, DType, Feature
from gpu_problems import check_in_pages, device_options, device_pages, rows
from paging import PagedProblem
from problems import AttentionProblem

UNALIGNED = [
    row.config
    for row in rows()
    if row.config.arch == Arch.SM80
    and row.config.features & Feature.PAGED
    and not row.config.async_copy
    and row.config.dtype != DType.E4M3
]
PREFILL = AttentionProblem(3, 140, 300, 4, 2, 59, "bfloat16", causal=True, seqused_k=(300, 0, 77))
PROBLEMS = {
    "prefill": PREFILL,
    "window": replace(PREFILL, causal=False, window_size=(50, 3), d_head_v=61),
    "softcap": replace(PREFILL, softcap=3.0, d_head=49),
    "one query": replace(PREFILL, seqlen_q=1, n_heads=8),
    "drafts": replace(PREFILL, seqlen_q=5, n_heads=16),
    "fewer keys than queries": replace(PREFILL, seqlen_k=90, seqused_k=(90, 1, 64)),
}  # fmt: skip

pytestmark = pytest.mark.skipif(not UNALIGNED, reason="needs compute capability 8.0 or newer")
every_row = pytest.mark.parametrize("config", UNALIGNED, ids=str)


def _of_row(p: AttentionProblem, config: flashattn.Config) -> AttentionProblem:
    """Has a d_head of no multiple of 8 that the row serves."""
    dtype = "float16" if config.dtype == DType.FP16 else "bfloat16"
    less = config.d_head - 64
    d_head_v = None if p.d_head_v is None else p.d_head_v + less
    return replace(p, d_head=p.d_head + less, d_head_v=d_head_v, dtype=dtype)


@every_row
@pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("page_size", [1, 7, 64])
def test_any_d_head(page_size: int, p: AttentionProblem, config: flashattn.Config) -> None:
    q = PagedProblem(_of_row(p, config), page_size, v_apart=page_size == 7)
    check_in_pages(q, config)


@every_row
@pytest.mark.parametrize("layout", ["padded_by_three", "shifted", "heads_first"])
def test_any_strides(layout: str, config: flashattn.Config) -> None:
    p = replace(_of_row(PREFILL, config), layouts=("contiguous", layout, layout, "contiguous"))
    check_in_pages(PagedProblem(p, 5), config)


@pytest.mark.parametrize("d_head", [1, 59, 111, 250])
@pytest.mark.parametrize("seqlen_q", [1, 130])
def test_selection_finds_a_row(seqlen_q: int, d_head: int) -> None:
    largest = max(config.d_head for config in UNALIGNED)
    p = replace(PREFILL, seqlen_q=seqlen_q, d_head=min(d_head, largest - 1))
    q = PagedProblem(p, 16)
    tensors, where = device_pages(q)
    options = {**device_options(replace(p, seqused_k=None)), **where}
    chosen = flashattn.select_config(*tensors, **options).config
    assert chosen.arch == Arch.SM80 and not chosen.async_copy
    check_in_pages(q)


def test_aligned_pages_take_other_rows() -> None:
    p = replace(PREFILL, d_head=64)
    tensors, where = device_pages(PagedProblem(p, 16))
    options = {**device_options(replace(p, seqused_k=None)), **where}
    chosen = flashattn.select_config(*tensors, **options).config
    assert chosen.arch != Arch.SM80 or chosen.async_copy
