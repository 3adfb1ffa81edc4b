"""Chunks of prompts and long drafts over long caches, in kernels of packed rows whose keys are cut
into pieces: groups and tiles that do not divide each other, masks across pieces, and lengths that
only the device knows. test_gpu_caches.py has pages, batches and graphs.
"""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
from cache_families import CHUNKS
from device_memory import upload
from flashattn import Arch
from gpu_problems import (
    assert_agrees,
    check,
    device_inputs,
    expected_of,
    host_inputs,
    run,
    same_bits,
)
from memory import E4M3
from problems import AttentionProblem

ROWS, DENSE = CHUNKS.rows, CHUNKS.dense
PROBLEMS, _of_row = CHUNKS.problems, CHUNKS.of_row

pytestmark = pytest.mark.skipif(not ROWS, reason="needs compute capability 9.0")
every_dense_row = pytest.mark.parametrize("config", DENSE, ids=str)
every_problem = pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)


# ---- Against the oracle ----


@every_dense_row
@every_problem
def test_lengths_on_the_device(p: AttentionProblem, config: flashattn.Config) -> None:
    check(_of_row(p, config), config)


@every_dense_row
@pytest.mark.parametrize("queries", [9, 16, 33, 100, 300])
@pytest.mark.parametrize("heads", [(2, 2), (8, 2), (5, 1), (7, 1), (16, 2)], ids=str)
def test_groups_and_queries(heads: tuple[int, int], queries: int, config: flashattn.Config) -> None:
    """Tiles begin and end within a query's group of heads, with lengths that the host knows."""
    p = AttentionProblem(1, queries, 1500, *heads, causal=True)
    check(_of_row(p, config), config)


@every_dense_row
@pytest.mark.parametrize("keys", [0, 1, 63, 64, 65, 128, 129, 1023, 8192])
def test_known_lengths(keys: int, config: flashattn.Config) -> None:
    p = AttentionProblem(1, 40, keys, 4, 2)
    for options in ({}, {"causal": True}, {"window_size": (50, 3)}, {"softcap": 5.0}):
        check(_of_row(replace(p, **options), config), config)


@every_dense_row
def test_ragged_batches(config: flashattn.Config) -> None:
    p = AttentionProblem(
        5, 90, 1200, 8, 2, causal=True, cu_seqlens_q=(0, 90, 90, 91, 130, 170),
        cu_seqlens_k=(0, 1200, 1240, 1240, 1900, 1939),
    )  # fmt: skip
    check(_of_row(p, config), config)
    check(_of_row(replace(p, cu_seqlens_k=None, seqused_k=(900, 0, 64, 1200, 39)), config), config)


@every_dense_row
@pytest.mark.parametrize("values", ["growing", "one_large_key", "identical_keys", "wide"])
def test_values(values: str, config: flashattn.Config) -> None:
    check(_of_row(AttentionProblem(2, 50, 1500, 4, 2, values=values), config), config)


@every_dense_row
@pytest.mark.parametrize("layout", ["padded", "heads_first"])
def test_layouts(layout: str, config: flashattn.Config) -> None:
    p = AttentionProblem(2, 40, 700, 8, 2, layouts=(layout,) * 4, causal=True)
    check(_of_row(p, config), config)


@every_dense_row
def test_outputs_anywhere_and_wide(config: flashattn.Config) -> None:
    for keys in (100, 1500):  # whole and cut
        p = AttentionProblem(1, 40, keys, 8, 2, layouts=("contiguous",) * 3 + ("shifted",))
        check(_of_row(p, config), config)
        check(replace(_of_row(p, config), o_dtype="float32"), config)


@every_dense_row
def test_smaller_head_dimensions(config: flashattn.Config) -> None:
    p = _of_row(AttentionProblem(1, 40, 1500, 8, 2, causal=True), config)
    least = 16 if config.dtype == flashattn.DType.E4M3 else 8  # the elements of 16 bytes
    check(replace(p, d_head=config.d_head - least), config)
    check(replace(p, d_head=config.d_head // 2 + least), config)
    check(replace(p, d_head_v=config.d_head // 2), config)
    check(replace(p, d_head_v=config.d_head - least), config)
    check(replace(p, d_head=config.d_head // 2 - least, d_head_v=config.d_head), config)


# ---- What is not finite ----


@every_dense_row
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("keys", [60, 1100])
def test_values_that_are_not_finite_reach_only_rows_that_see_them(
    keys: int, value: float, config: flashattn.Config
) -> None:
    """NaN and infinities lie under the diagonal, at the window's edge, and where pieces meet."""
    p = _of_row(AttentionProblem(1, 30, keys, 4, 2, causal=True), config)
    for options in ({}, {"window_size": (40, 0)}):
        own = replace(p, **options)
        q, k, v = host_inputs(own)
        v[0, keys - 5, :, 3] = value
        v[0, keys - 25, 1, own.d_head - 1] = value
        v[0, keys // 2, 0, 0] = value
        expected = expected_of(q, k, v, **own.options())
        o, lse = run(own, [upload(x) for x in (q, k, v)], config)
        assert_agrees(o, lse, expected, f"{own}, {config}")


@every_dense_row
def test_keys_beyond_the_length_may_be_anything(config: flashattn.Config) -> None:
    p = _of_row(AttentionProblem(2, 40, 1100, 4, 2, seqused_k=(70, 1000)), config)
    tensors = device_inputs(p)
    expected = run(p, tensors, config)
    for x in tensors[1:]:
        x[0, 70:] = x[1, 1000:] = float("nan")
    assert same_bits(run(p, tensors, config), expected)


# ---- Selection ----


def test_selection_takes_these_rows_where_others_leave_the_device_idle() -> None:
    def arch(*sizes: int, **options: object) -> int:
        tensors = device_inputs(AttentionProblem(*sizes, 128, "bfloat16"))
        return flashattn.select_config(*tensors, **options).config.arch

    assert arch(1, 128, 8192, 32, 8, causal=True) == Arch.SM90_DECODE
    assert arch(8, 16, 4096, 32, 8, causal=True) == Arch.SM90_DECODE
    assert arch(8, 8, 4096, 32, 8, causal=True) == Arch.SM80_DECODE
    assert arch(1, 2048, 2048, 32, 8, causal=True) == Arch.SM90


def test_selection_takes_rows_of_e4m3_too() -> None:
    p = AttentionProblem(1, 128, 8192, 32, 8, 128, E4M3, "bfloat16", "bfloat16", causal=True)
    config = flashattn.select_config(*device_inputs(p), causal=True).config
    assert (config.arch, config.dtype) == (Arch.SM90_DECODE, flashattn.DType.E4M3)
