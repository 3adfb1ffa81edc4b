"""Masks that hide whole blocks of keys, which the vector families leave out."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
from bias_cases import BiasCase
from expectation import assert_agrees
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import E4M3
from paging import KINDS as PAGE_KINDS
from paging import PagedProblem, run_paged
from pairwise import pairwise
from problems import (
    AttentionProblem,
    check,
    configs_for,
    configs_for_pages,
    expected,
    make_inputs,
    p_type,
    rounds_p,
    run,
)
from strategies import random_problems

INF, NAN = float("inf"), float("nan")
SQUARES = {"hidden": 0.0, "empty_rows": 0.0, "hidden_blocks": 0.6, "shown_blocks": 0.2}
KINDS = ("float32", "float16", "bfloat16", "bits")
DTYPES = ("float32", "float16", "bfloat16", E4M3)
# One for each way that a task reads its keys: in place, packed, in copies of pages.
PROBLEMS = {
    "one_row": AttentionProblem(2, 1, 900, 4, 2, 64),
    "few_rows": AttentionProblem(1, 3, 900, 6, 2, 72, causal=True),
    "packed": AttentionProblem(1, 300, 900, 2, 1, 64),
    "causal": AttentionProblem(2, 200, 700, 4, 2, 32, causal=True),
    "window": AttentionProblem(1, 300, 900, 2, 2, 32, window_size=(400, 0)),
    "split": AttentionProblem(1, 30, 5000, 4, 2, 32, causal=True),
    "ragged": AttentionProblem(
        3, 200, 700, 4, 2, 64, causal=True,
        cu_seqlens_q=(0, 90, 91, 291), cu_seqlens_k=(0, 640, 660, 1360),
    ),
    "in_use": AttentionProblem(
        3, 140, 800, 4, 2, 64, causal=True, seqused_q=(140, 3, 0), seqused_k=(0, 1, 777)
    ),
}  # fmt: skip


def _typed(p: AttentionProblem, dtype: str) -> AttentionProblem:
    if dtype != E4M3:
        return replace(p, dtype=dtype)
    return replace(p, dtype=dtype, q_dtype="bfloat16", o_dtype="float32")


def _check(p: AttentionProblem, config: str) -> None:
    if p.averages_rounding or not rounds_p(p, config):
        check(p, config=config, roundings=4 if rounds_p(p, config) else 1)


@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [tuple(row.values()) for row in pairwise({"p": list(PROBLEMS), "k": [*KINDS], "t": [*DTYPES]})],
)
def test_agrees_with_the_oracle(name: str, kind: str, dtype: str) -> None:
    p = replace(_typed(PROBLEMS[name], dtype), bias=BiasCase(kind=kind, **SQUARES))
    for config in configs_for(p):
        _check(p, config)


@settings(random_problems, max_examples=80)
@given(data=st.data())
def test_random_squares(data: st.DataObject) -> None:
    draw = data.draw
    hidden = draw(st.sampled_from((0.2, 0.7, 1.0)))
    bias = BiasCase(
        slopes=draw(st.integers(0, 1)),
        kind=draw(st.sampled_from(KINDS)),
        repeats="".join(draw(st.sets(st.sampled_from("bhq")))),
        hidden=draw(st.sampled_from((0.0, 0.3))),
        empty_rows=draw(st.sampled_from((0.0, 0.5))),
        hidden_blocks=hidden,
        shown_blocks=draw(st.sampled_from((0.0, 1 - hidden))),
        strided=draw(st.booleans()),
        seed=draw(st.integers(0, 2**31)),
    )
    p = PROBLEMS[draw(st.sampled_from(list(PROBLEMS)))]
    if p.cu_seqlens_q is None and p.seqused_q is None:
        p = replace(p, seqlen_q=draw(st.integers(1, 200)), seqlen_k=draw(st.integers(1, 1000)))
    if draw(st.booleans()):
        bias = replace(bias, from_end=True, n_keys=draw(st.integers(1, 700)))
    p = replace(_typed(p, draw(st.sampled_from(DTYPES))), bias=bias, seed=bias.seed)
    _check(p, draw(st.sampled_from(configs_for(p))))


@pytest.mark.parametrize("name", ["one_row", "few_rows", "causal", "split"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_do_not_change_bits(name: str, dtype: str) -> None:
    p = replace(_typed(PROBLEMS[name], dtype), bias=BiasCase(kind="float16", **SQUARES))
    for i, config in enumerate(configs_for_pages(p)):
        contiguous = run(p, config=config)
        found = run_paged(PagedProblem(p, 19, PAGE_KINDS[i % len(PAGE_KINDS)]), config=config)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found, contiguous)), config


# ---- Blocks are left out ----


def _hidden_keys(seqlen_k: int) -> np.ndarray:
    """Returns which keys a mask hides from every query: whole blocks of any size at both ends, a
    few in the middle, and many. Blocks begin at multiples of at most 256 keys."""
    hidden = np.zeros(seqlen_k, bool)
    for begin, end in ((0, 256), (768, 1024), (1280, 2560), (3328, seqlen_k)):
        hidden[begin:end] = True
    return hidden


def _mask(hidden: np.ndarray, seqlen_q: int, kind: str) -> np.ndarray:
    mask = np.broadcast_to(~hidden, (1, 1, seqlen_q, len(hidden)))
    if kind == "bool":
        return np.ascontiguousarray(mask)
    return np.where(mask, 0, -INF).astype(kind)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["bool", "float16", "float32"])
@pytest.mark.parametrize("shape", [(1, 8, 2), (5, 4, 2), (150, 2, 1)])
def test_hidden_blocks_are_not_multiplied(
    shape: tuple[int, int, int], kind: str, dtype: str
) -> None:
    """V is NaN in hidden blocks: its product with a weight of 0 would be NaN too."""
    seqlen_q, n_heads, n_heads_kv = shape
    p = _typed(AttentionProblem(1, seqlen_q, 3600, n_heads, n_heads_kv, 64), dtype)
    hidden = _hidden_keys(p.seqlen_k)
    q, k, v = make_inputs(p)
    alone = replace(p, seqlen_k=int((~hidden).sum()))
    shown = [q, *(np.ascontiguousarray(x[:, ~hidden]) for x in (k, v))]
    k[:, hidden] = v[:, hidden] = NAN
    options = {
        "attn_mask": _mask(hidden, seqlen_q, kind), "out_dtype": p.types[2], "return_lse": True
    }  # fmt: skip
    configs = configs_for(replace(p, bias=BiasCase(kind="bits")))
    for config in (x for x in configs if not x.startswith("REFERENCE")):
        o, lse = flashattn.flash_attn_func(q, k, v, config=config, **options)
        assert np.isfinite(o.astype(np.float32)).all(), config
        if p.averages_rounding or not rounds_p(p, config):
            roundings = 4 if rounds_p(p, config) else 1
            assert_agrees(o, lse, expected(alone, shown, p_type(p, config), roundings), config)


def test_documents_are_sequences_of_their_own() -> None:
    """A mask of documents gives what a ragged batch of them gives."""
    ends = [0, 300, 301, 1100, 1500]
    p = AttentionProblem(1, 1500, 1500, 2, 1, 32)
    q, k, v = make_inputs(p)
    document = np.searchsorted(ends, np.arange(1500), side="right")
    for causal in (False, True):
        o = flashattn.flash_attn_func(
            q, k, v, causal=causal, attn_mask=document[:, None] == document
        )
        lengths = np.array(ends, np.int32)
        alone = flashattn.flash_attn_varlen_func(
            q[0], k[0], v[0], cu_seqlens_q=lengths, cu_seqlens_k=lengths, causal=causal,
            max_seqlen_q=799, max_seqlen_k=799,
        )  # fmt: skip
        assert np.abs(o[0] - alone).max() < 1e-5
