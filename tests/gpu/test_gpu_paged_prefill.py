"""More rows than decode kernels take, over keys in pages, agree with the oracle: those whose row
without pages is in the table by that row, whose bits they have (test_gpu_caches.py). Pools may be
one, and V may hold what is not finite.
"""

from __future__ import annotations

from dataclasses import replace

import flashattn
import pytest
import torch
from cache_checks import dense_row
from cache_families import PAGE_SIZES_OF_EVERY_WAY, PREFILL, PREFILL_PAGE_SIZES, of_heads
from device_memory import lengths
from flashattn import Arch
from gpu_problems import (
    check,
    check_in_pages,
    configs_for_pages,
    device_pages,
    query,
    run,
    same_bits,
)
from paging import PagedProblem

PAGED, PROBLEMS, BATCH = PREFILL.paged, PREFILL.problems, PREFILL.batch
OTHERS = [config for config in PAGED if config not in PREFILL.paged_and_dense]
every_row = pytest.mark.parametrize("config", PAGED, ids=str)
every_row_of_one_d_head = pytest.mark.parametrize(
    "config", [config for config in PAGED if not config.d_head_v], ids=str
)
every_way = pytest.mark.parametrize("page_size", PAGE_SIZES_OF_EVERY_WAY)


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """Returns the same memory in a type for which torch has every function."""
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x


def test_rows_for_pages_are_there() -> None:
    is_sm90 = torch.cuda.get_device_capability() == (9, 0)
    needed = {Arch.SM80, Arch.SM90} if is_sm90 else {Arch.SM80}
    assert {config.arch for config in PAGED} >= needed


@pytest.mark.parametrize("config", PREFILL.paged_and_dense, ids=str)
def test_what_is_expected_agrees_with_the_oracle(config: flashattn.Config) -> None:
    """The rows without pages agree with the oracle, and rows with pages have their bits."""
    problems = [of_heads(p, config) for p in PROBLEMS.values()]
    served = [p for p in problems if query(p, dense_row(config))]
    assert len(served) >= 3
    for p in served:
        check(p, dense_row(config))


@pytest.mark.parametrize("config", OTHERS, ids=str)
@pytest.mark.parametrize("page_size", PREFILL_PAGE_SIZES)
def test_rows_without_a_dense_one_agree_with_the_oracle(
    page_size: int, config: flashattn.Config
) -> None:
    problems = [PagedProblem(of_heads(p, config), page_size) for p in PROBLEMS.values()]
    served = [q for q in problems if config in configs_for_pages(q)]
    assert len(served) >= 3
    for q in served:
        check_in_pages(q, config)


@every_row_of_one_d_head
def test_k_and_v_may_lie_in_one_pool(config: flashattn.Config) -> None:
    p = of_heads(PROBLEMS["causal"], config)
    (q, k, v), where = device_pages(PagedProblem(p, 16))
    expected = run(replace(p, seqused_k=None), [q, k, v], config, **where)
    pool = torch.stack((_bytes(k), _bytes(v)), dim=1).view(k.dtype)
    assert pool.shape[1] == 2  # [n_pages, 2, page_size, n_heads_kv, d_head]
    found = run(replace(p, seqused_k=None), [q, pool[:, 0], pool[:, 1]], config, **where)
    assert same_bits(found, expected)


@every_row
@every_way
def test_non_finite_v_reaches_the_rows_that_see_it(
    config: flashattn.Config, page_size: int
) -> None:
    p = of_heads(replace(BATCH, batch=1, seqlen_k=200, seqused_k=(200,), causal=True), config)
    (q, k, v), where = device_pages(PagedProblem(p, page_size))
    page, at = int(where["page_table"][0, 150 // page_size]), 150 % page_size
    v[page, at, :, 5] = float("inf")  # NaN in e4m3, which has no infinity
    o, _ = run(replace(p, seqused_k=None), [q, k, v], config, **where)
    column = torch.from_numpy(o[0, :, :, 5].astype("float32"))
    sees = torch.arange(p.seqlen_q) + 200 - p.seqlen_q >= 150
    found = torch.isnan if v.dtype.itemsize == 1 else torch.isinf
    assert found(column[sees]).all() and torch.isfinite(column[~sees]).all()


def test_ragged_chunks_and_single_queries_in_one_call() -> None:
    p = replace(BATCH, causal=True, seqused_q=(150, 1, 0, 64, 65, 129))
    pages, where = device_pages(PagedProblem(p, 16))
    options = {"causal": True, "seqused_q": lengths(p.seqused_q), **where}
    config = flashattn.select_config(*pages, **options).config  # the ragged call is MIXED's
    padded = flashattn.flash_attn_func(*pages, **options)
    ends = [0]
    for used in p.seqused_q:
        ends.append(ends[-1] + used)
    ragged = torch.cat([pages[0][b, :used] for b, used in enumerate(p.seqused_q)])
    o = flashattn.flash_attn_varlen_func(
        ragged, *pages[1:], cu_seqlens_q=lengths(ends), max_seqlen_q=150, causal=True,
        config=config, **where,
    )  # fmt: skip
    for b, used in enumerate(p.seqused_q):
        assert torch.equal(o[ends[b] : ends[b + 1]], padded[b, :used])
