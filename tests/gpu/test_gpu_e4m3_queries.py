"""Decode kernels take Q of e4m3 beside K and V of it, with scales of heads or of tokens: they make
fp16 of all three, which holds them exactly, so that results are as exact as beside Q of 16 bits."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
from cache_families import DECODE
from flashattn import Arch, DType, Feature
from gpu_problems import check, check_in_pages, device_inputs, device_options
from memory import E4M3, dtype_of
from paging import PagedProblem
from problems import AttentionProblem

ROWS = [config for config in DECODE.rows if config.dtype == DType.E4M3]
DENSE = [config for config in ROWS if not config.features & Feature.PAGED]
PAGED = [config for config in ROWS if config.features & Feature.PAGED]
SCALES = {
    "q_descale": ((0.5, -2.0), (1.0, 0.25), (3.0, 1.5)),
    "k_descale": ((2.0, 1.0), (-0.5, 0.25), (1.0, 0.75)),
    "v_descale": ((1.0, 3.0), (-2.0, 0.5), (0.5, 0.25)),
}


def _problem(*sizes: int, **options: object) -> AttentionProblem:
    return AttentionProblem(*sizes, dtype=E4M3, q_dtype=E4M3, o_dtype="bfloat16", **options)


PROBLEMS = {
    "one query": _problem(3, 1, 700, 8, 2, seqused_k=(700, 1, 333), **SCALES),
    "a draft": _problem(3, 4, 500, 8, 2, causal=True, **SCALES),
    "many heads": _problem(2, 1, 300, 32, 2, q_descale=0.25, k_descale=2.0, sinks=(0.5,) * 32),
    "scales of tokens": _problem(3, 4, 300, 8, 2, causal=True, q_token_scales=5),
    "ragged": _problem(
        3, 5, 400, 8, 2, causal=True, cu_seqlens_q=(0, 1, 6, 7), seqused_k=(400, 77, 0), **SCALES
    ),
    "ragged, scales of tokens": _problem(
        3, 5, 400, 8, 2, causal=True, cu_seqlens_q=(0, 1, 6, 7), seqused_k=(400, 77, 5),
        q_token_scales=7,
    ),
    "window, softcap": _problem(2, 2, 600, 8, 2, window_size=(200, 0), softcap=5.0, q_descale=2.0),
}  # fmt: skip
TYPES_OF_O = ("float16", "bfloat16", "float32")
every_problem = pytest.mark.parametrize("name", PROBLEMS)


def _of_row(p: AttentionProblem, config: flashattn.Config) -> AttentionProblem:
    return replace(p, d_head=config.d_head)


def test_rows_are_there() -> None:
    assert DENSE and PAGED


@pytest.mark.parametrize("config", DENSE, ids=str)
@every_problem
def test_rows_agree_with_the_oracle(name: str, config: flashattn.Config) -> None:
    check(_of_row(PROBLEMS[name], config), config)


@pytest.mark.parametrize("config", PAGED, ids=str)
@pytest.mark.parametrize("page_size", [1, 16, 24])
@every_problem
def test_pages_of_any_size(name: str, page_size: int, config: flashattn.Config) -> None:
    check_in_pages(PagedProblem(_of_row(PROBLEMS[name], config), page_size), config)


@pytest.mark.parametrize("o", TYPES_OF_O)
@pytest.mark.parametrize("narrower", [0, 16, 48])
def test_other_types_of_o_and_smaller_heads(o: str, narrower: int) -> None:
    for d_head in {config.d_head for config in ROWS}:
        p = replace(PROBLEMS["a draft"], d_head=d_head - narrower, o_dtype=o)
        assert _selected(p).arch == Arch.SM80_DECODE
        check(p)


def _selected(p: AttentionProblem) -> flashattn.Config:
    return flashattn.select_config(*device_inputs(p), **device_options(p)).config


@pytest.mark.parametrize("scale", [0.0, -3.0, 1e-30, np.nan], ids=str)
def test_any_scale(scale: float) -> None:
    check(replace(PROBLEMS["a draft"], d_head=128, q_descale=scale))


def test_every_code_of_q_has_its_value() -> None:
    """A query has one code in all columns but one, and keys tell its value by their scores."""
    config = next(c for c in DENSE if c.d_head == 128)
    p = _problem(64, 1, 2, 4, 1, 128, softmax_scale=1 / 128)
    codes = np.arange(256, dtype=np.uint8).reshape(64, 1, 4, 1)
    codes = np.where(codes % 128 == 127, 0, codes).astype(np.uint8)  # NaN
    q = np.broadcast_to(codes, (64, 1, 4, 128)).copy()
    rng = np.random.default_rng(1)
    k, v = (rng.uniform(-1, 1, (64, 2, 1, 128)).astype(np.float32) for _ in "kv")
    k *= 1 / 64
    e4m3 = dtype_of(E4M3)
    check(p, config, [q.view(e4m3), k.astype(e4m3), v.astype(e4m3)])
