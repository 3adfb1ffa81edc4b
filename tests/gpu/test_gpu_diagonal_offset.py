"""A shifted diagonal (diagonal_offset), on every CUDA row that has windows, against the float64
oracle."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
from bias_cases import BiasCase
from device_memory import upload
from flashattn import Feature, oracle
from gpu_problems import (
    TYPES,
    assert_every_row_is_reached,
    check,
    check_every_row,
    check_every_row_in_pages,
    configs_for,
    device_inputs,
    device_options,
    host_inputs,
    run,
    same_bits,
    typed,
)
from paging import PagedProblem
from pairwise import combined
from problems import AttentionProblem

BASE = AttentionProblem(2, 300, 300, 4, 2, 64)
CAUSAL = {"causal": True}
WINDOW = {"window_size": (70, 9)}
PROBLEMS = {
    "row": replace(BASE, seqlen_q=1, seqlen_k=1000, **CAUSAL),
    "few_rows": replace(BASE, seqlen_q=7, seqlen_k=1000, **CAUSAL),
    "split": replace(BASE, batch=1, seqlen_q=3, seqlen_k=9000, **CAUSAL),
    "split_window": replace(BASE, batch=1, seqlen_q=3, seqlen_k=9000, window_size=(4000, 5)),
    "block": replace(BASE, seqlen_q=40, n_heads_kv=1, **WINDOW),
    "square": replace(BASE, **CAUSAL),
    "more_keys": replace(BASE, seqlen_q=170, seqlen_k=777, **WINDOW),
    "more_queries": replace(BASE, seqlen_k=90, **CAUSAL),
    "window": replace(BASE, **WINDOW),
    "left_alone": replace(BASE, window_size=(50, -1)),
    "chunk": replace(BASE, attention_chunk=100),
    "softcap": replace(BASE, softcap=2.0, **CAUSAL),
    "ragged": replace(
        BASE, batch=5, cu_seqlens_q=(0, 1, 1, 130, 290, 294),
        cu_seqlens_k=(0, 40, 60, 260, 300, 600), **WINDOW,
    ),
    "in_use": replace(BASE, batch=3, seqused_q=(300, 3, 0), seqused_k=(0, 1, 177), **CAUSAL),
}  # fmt: skip
OFFSETS = (-1200, -300, -130, -64, -1, 1, 63, 100, 299, 700)


@combined(name=PROBLEMS, types=TYPES, offset=OFFSETS)
def test_row_agrees_with_the_oracle(name: str, types: tuple[str, int], offset: int) -> None:
    check_every_row(typed(replace(PROBLEMS[name], diagonal_offset=offset), *types))


def test_every_row_with_windows_is_tested() -> None:
    problems = [PROBLEMS[name] for name in ("few_rows", "square", "ragged")]
    shifted = [replace(p, diagonal_offset=-20) for p in problems]
    assert_every_row_is_reached(shifted, Feature.WINDOW)


@combined(offset=OFFSETS, types=TYPES, seqlen_q=(1, 5, 70, 200))
def test_distances_of_alibi_count_from_there(
    offset: int, types: tuple[str, int], seqlen_q: int
) -> None:
    for bias in (BiasCase(slopes=1), BiasCase(slopes=2, kind="bits")):
        for order in (CAUSAL, WINDOW, {}):
            p = replace(BASE, seqlen_q=seqlen_q, bias=bias, diagonal_offset=offset, **order)
            check_every_row(typed(p, *types))


@combined(page_size=(1, 16, 19, 128), types=TYPES, offset=(-600, -40, 30, 200))
def test_keys_in_pages(page_size: int, types: tuple[str, int], offset: int) -> None:
    for seqlen_q in (1, 5, 200):
        p = AttentionProblem(3, seqlen_q, 700, 8, 2, diagonal_offset=offset, window_size=(150, 0))
        p = replace(typed(p, *types), seqused_k=(700, 65, 190))
        ragged = replace(p, cu_seqlens_q=(0, seqlen_q, seqlen_q, seqlen_q + 1))
        for q in (PagedProblem(p, page_size), PagedProblem(ragged, page_size)):
            check_every_row_in_pages(q)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("seqlen_q", [1, 5, 200])
@pytest.mark.parametrize("offset", [-110, 90])
def test_hidden_keys_do_not_matter(offset: int, seqlen_q: int, poison: float) -> None:
    p = replace(BASE, batch=1, seqlen_q=seqlen_q, dtype="bfloat16", d_head=128)
    p = replace(p, window_size=(40, 7), diagonal_offset=offset)
    sees = oracle.Mask(False, 40, 7, 0, offset).visible(seqlen_q, 300)
    for config in configs_for(p):
        clean, _ = run(p, config=config)
        for key in (0, 109, 150, 219, 299):
            q, k, v = host_inputs(p)
            k[:, key], v[:, key] = poison, poison
            o, _ = run(p, [upload(x, "contiguous") for x in (q, k, v)], config)
            np.testing.assert_array_equal(o[:, ~sees[:, key]], clean[:, ~sees[:, key]])
            assert not np.isfinite(o[:, sees[:, key]].astype(np.float32)).any()


@pytest.mark.parametrize("offset", [-400, 400])
def test_rows_that_see_no_key_are_zero(offset: int) -> None:
    p = replace(BASE, dtype="bfloat16", d_head=128, window_size=(64, 3), diagonal_offset=offset)
    for seqlen_q in (1, 9, 90):
        for config in configs_for(replace(p, seqlen_q=seqlen_q)):
            o, lse = check(replace(p, seqlen_q=seqlen_q), config)
            assert (o == 0).all() and (lse == -np.inf).all()


def test_a_shifted_causal_order_takes_rows_with_windows() -> None:
    p = replace(BASE, dtype="bfloat16", d_head=128, causal=True)
    for offset, is_shifted in ((0, False), (-1, True), (1, True)):
        of = replace(p, diagonal_offset=offset)
        selected = flashattn.select_config(*device_inputs(of), **device_options(of)).config
        assert bool(selected.features & Feature.WINDOW) == is_shifted


def test_bits_do_not_depend_on_the_batch() -> None:
    p = replace(BASE, dtype="bfloat16", d_head=128, causal=True, diagonal_offset=-33)
    for seqlen_q in (1, 300):
        whole = replace(p, seqlen_q=seqlen_q)
        q, k, v = device_inputs(whole)
        o, lse = run(whole, [q, k, v], batch_invariant=True)
        alone = run(replace(whole, batch=1), [x[1:] for x in (q, k, v)], batch_invariant=True)
        assert same_bits((o[1:], lse[1:]), alone)
