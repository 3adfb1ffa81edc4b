"""More rows than decode kernels take, over keys in pages, have the bits of the same row without
pages, where there is one, and agree with the oracle.
"""

from __future__ import annotations

from dataclasses import replace

import flashattn
import pytest
import torch
from cache_checks import CACHES, dense_row
from device_memory import lengths
from flashattn import Arch, Feature
from gpu_problems import (
    check,
    check_in_pages,
    configs_for_pages,
    device_pages,
    heads_of,
    query,
    rows,
    run,
    same_bits,
    types_of,
)
from paging import KINDS, PagedProblem
from problems import AttentionProblem

PAGED = [
    row.config
    for row in rows()
    if row.config.arch in (Arch.SM80, Arch.SM90) and row.config.features & Feature.PAGED
]
ROWS = {row.config for row in rows()}
HAVE_DENSE = [config for config in PAGED if dense_row(config) in ROWS]
OTHERS = [config for config in PAGED if dense_row(config) not in ROWS]
PAGE_SIZES = (1, 3, 16, 19, 64, 128, 256)
LENGTHS = (0, 1, 63, 64, 65, 1100)
BATCH = AttentionProblem(len(LENGTHS), 150, 1100, 4, 2, 128, "bfloat16", seqused_k=LENGTHS)
PROBLEMS = {
    "full": BATCH,
    "causal": replace(BATCH, causal=True),
    "window": replace(BATCH, window_size=(77, 2)),
    "softcap": replace(BATCH, causal=True, softcap=3.0),
    "narrow v": replace(BATCH, causal=True, d_head_v=48),
    "fewer queries": replace(BATCH, causal=True, seqused_q=(150, 1, 0, 64, 65, 129)),
}
every_row = pytest.mark.parametrize("config", PAGED, ids=str)
every_row_of_one_d_head = pytest.mark.parametrize(
    "config", [config for config in PAGED if not config.d_head_v], ids=str
)
# SM90 kernels read pages of one token, others of few, and larger ones each in a way of its own.
every_way = pytest.mark.parametrize("page_size", [1, 5, 16])


def _of_row(p: AttentionProblem, config: flashattn.Config) -> AttentionProblem:
    return replace(p, **heads_of(config, p.d_head_v), **types_of(config))


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """Returns the same memory in a type for which torch has every function."""
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x


def _heads_first(pool: torch.Tensor) -> torch.Tensor:
    return _bytes(pool).transpose(1, 2).contiguous().transpose(1, 2).view(pool.dtype)


def test_rows_for_pages_are_there() -> None:
    is_sm90 = torch.cuda.get_device_capability() == (9, 0)
    needed = {Arch.SM80, Arch.SM90} if is_sm90 else {Arch.SM80}
    assert {config.arch for config in PAGED} >= needed


every_row_that_has_a_dense_one = pytest.mark.parametrize("config", HAVE_DENSE, ids=str)


@every_row_that_has_a_dense_one
@pytest.mark.parametrize("name", PROBLEMS)
def test_bits_are_those_without_pages(name: str, config: flashattn.Config) -> None:
    p = _of_row(PROBLEMS[name], config)
    if not query(p, dense_row(config)):
        pytest.skip("the row lacks the feature")
    CACHES.pages_change_no_bit(p, config, PAGE_SIZES)


@every_row_that_has_a_dense_one
def test_what_is_expected_agrees_with_the_oracle(config: flashattn.Config) -> None:
    """The rows without pages agree with the oracle, and rows with pages have their bits."""
    problems = [_of_row(p, config) for p in PROBLEMS.values()]
    served = [p for p in problems if query(p, dense_row(config))]
    assert len(served) >= 3
    for p in served:
        check(p, dense_row(config))


@pytest.mark.parametrize("config", OTHERS, ids=str)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_rows_without_a_dense_one_agree_with_the_oracle(
    page_size: int, config: flashattn.Config
) -> None:
    problems = [PagedProblem(_of_row(p, config), page_size) for p in PROBLEMS.values()]
    served = [q for q in problems if config in configs_for_pages(q)]
    assert len(served) >= 3
    for q in served:
        check_in_pages(q, config)


@every_row
@pytest.mark.parametrize("kind", KINDS)
def test_pages_may_be_found_in_any_way(kind: str, config: flashattn.Config) -> None:
    p = _of_row(PROBLEMS["causal"], config)
    if config in HAVE_DENSE:
        expected = run(p, config=dense_row(config))
    else:
        expected = check_in_pages(PagedProblem(p, 16), config)
    for v_apart in (False, True):
        (q, k, v), where = device_pages(PagedProblem(p, 16, kind, v_apart))
        for pools in ([k, v], [_heads_first(k), _heads_first(v)]):
            found = run(replace(p, seqused_k=None), [q, *pools], config, **where)
            assert same_bits(found, expected), v_apart


@every_row_of_one_d_head
def test_k_and_v_may_lie_in_one_pool(config: flashattn.Config) -> None:
    p = _of_row(PROBLEMS["causal"], config)
    (q, k, v), where = device_pages(PagedProblem(p, 16))
    expected = run(replace(p, seqused_k=None), [q, k, v], config, **where)
    pool = torch.stack((_bytes(k), _bytes(v)), dim=1).view(k.dtype)
    assert pool.shape[1] == 2  # [n_pages, 2, page_size, n_heads_kv, d_head]
    found = run(replace(p, seqused_k=None), [q, pool[:, 0], pool[:, 1]], config, **where)
    assert same_bits(found, expected)


@every_row
@every_way
def test_keys_of_an_id_that_is_no_page_read_as_zeros(
    config: flashattn.Config, page_size: int
) -> None:
    p = _of_row(replace(BATCH, batch=1, seqlen_k=300, seqused_k=(300,)), config)
    (q, k, v), where = device_pages(PagedProblem(p, page_size))
    place = int(where["page_table"][0, 3])
    zeroed = [x.clone() for x in (k, v)]
    for x in zeroed:
        _bytes(x)[place] = 0
    expected = run(replace(p, seqused_k=None), [q, *zeroed], config, **where)
    for bad in (-1, len(k), 2**31 - 1, -(2**31)):
        where["page_table"][0, 3] = bad
        assert same_bits(run(replace(p, seqused_k=None), [q, k, v], config, **where), expected)


@every_row
@every_way
def test_a_length_beyond_the_table_is_cut(config: flashattn.Config, page_size: int) -> None:
    n_pages = 96 // page_size
    keys = n_pages * page_size
    p = _of_row(replace(BATCH, batch=1, seqlen_k=keys, seqused_k=(keys,)), config)
    pages, where = device_pages(PagedProblem(p, page_size))
    where["page_table"] = where["page_table"][:, :n_pages].contiguous()
    plain = replace(p, seqused_k=None)
    expected = run(plain, pages, config, **where)
    where["seqused_k"] = lengths((5000,))
    assert same_bits(run(plain, pages, config, **where), expected)


@every_row
@every_way
def test_non_finite_v_reaches_the_rows_that_see_it(
    config: flashattn.Config, page_size: int
) -> None:
    p = _of_row(replace(BATCH, batch=1, seqlen_k=200, seqused_k=(200,), causal=True), config)
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
