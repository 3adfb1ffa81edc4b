"""Chunks of keys that do not see each other (attention_chunk), on every CUDA row that has windows,
against the float64 oracle."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
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
PROBLEMS = {
    "row": replace(BASE, seqlen_q=1, seqlen_k=1000),
    "few_rows": replace(BASE, seqlen_q=7, seqlen_k=1000),
    "split": replace(BASE, batch=1, seqlen_q=3, seqlen_k=9000),
    "block": replace(BASE, seqlen_q=40, n_heads_kv=1),
    "square": BASE,
    "more_keys": replace(BASE, seqlen_q=170, seqlen_k=777),
    "more_queries": replace(BASE, seqlen_k=90),
    "window": replace(BASE, window_size=(70, 9)),
    "softcap": replace(BASE, softcap=2.0),
    "ragged": replace(
        BASE, batch=5, cu_seqlens_q=(0, 1, 1, 130, 290, 294),
        cu_seqlens_k=(0, 40, 60, 260, 300, 600),
    ),
    "in_use": replace(BASE, batch=3, seqused_q=(300, 3, 0), seqused_k=(0, 1, 177)),
}  # fmt: skip
CHUNKS = (1, 5, 64, 100, 128, 200, 299, 2**40)
ORDERS = (False, True)  # causal or not


@combined(name=PROBLEMS, types=TYPES, chunk=CHUNKS)
def test_row_agrees_with_the_oracle(name: str, types: tuple[str, int], chunk: int) -> None:
    for causal in ORDERS:
        p = replace(PROBLEMS[name], causal=causal, attention_chunk=chunk)
        check_every_row(typed(p, *types))


def test_every_row_with_windows_is_tested() -> None:
    problems = [PROBLEMS[name] for name in ("few_rows", "square", "ragged")]
    assert_every_row_is_reached([replace(p, attention_chunk=100) for p in problems], Feature.WINDOW)


@combined(page_size=(1, 16, 19, 128), types=TYPES, seqlen_q=(1, 5, 70, 200))
def test_keys_in_pages(page_size: int, types: tuple[str, int], seqlen_q: int) -> None:
    for causal in ORDERS:
        p = AttentionProblem(3, seqlen_q, 700, 8, 2, causal=causal, attention_chunk=150)
        p = replace(typed(p, *types), seqused_k=(700, 65, 190))
        ragged = replace(p, cu_seqlens_q=(0, seqlen_q, seqlen_q, seqlen_q + 1))
        for q in (PagedProblem(p, page_size), PagedProblem(ragged, page_size)):
            check_every_row_in_pages(q)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("seqlen_q", [1, 5, 200])
def test_keys_of_other_chunks_do_not_matter(seqlen_q: int, poison: float) -> None:
    p = replace(BASE, batch=1, seqlen_q=seqlen_q, dtype="bfloat16", d_head=128, causal=True)
    p = replace(p, attention_chunk=110)
    sees = oracle.Mask(True, -1, -1, 110).visible(seqlen_q, 300)
    for config in configs_for(p):
        clean, _ = run(p, config=config)
        for key in (0, 109, 110, 219, 220, 299):
            q, k, v = host_inputs(p)
            k[:, key], v[:, key] = poison, poison
            o, _ = run(p, [upload(x, "contiguous") for x in (q, k, v)], config)
            np.testing.assert_array_equal(o[:, ~sees[:, key]], clean[:, ~sees[:, key]])
            assert not np.isfinite(o[:, sees[:, key]].astype(np.float32)).any()


def test_rows_before_the_first_key_are_zero() -> None:
    p = replace(BASE, seqlen_k=90, dtype="bfloat16", d_head=128, attention_chunk=64)
    for config in configs_for(p):
        o, lse = check(p, config)
        assert (o[:, :210] == 0).all() and (lse[:, :, :210] == -np.inf).all()


def test_selection_takes_rows_with_windows_only_where_keys_are_hidden() -> None:
    p = replace(BASE, dtype="bfloat16", d_head=128, causal=True)
    for chunk, hides in ((299, True), (300, False), (2**62, False)):
        of = replace(p, attention_chunk=chunk)
        selected = flashattn.select_config(*device_inputs(of), **device_options(of)).config
        assert bool(selected.features & Feature.WINDOW) == hides


def test_bits_do_not_depend_on_the_batch() -> None:
    p = replace(BASE, dtype="bfloat16", d_head=128, causal=True, attention_chunk=100)
    for seqlen_q in (1, 300):
        whole = replace(p, seqlen_q=seqlen_q)
        q, k, v = device_inputs(whole)
        o, lse = run(whole, [q, k, v], batch_invariant=True)
        alone = run(replace(whole, batch=1), [x[1:] for x in (q, k, v)], batch_invariant=True)
        assert same_bits((o[1:], lse[1:]), alone)
