"""Holes of a page table (page_holes): keys that count as places, that no query sees, and of which
nothing is read. What lies in the pages that would be there is NaN.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import flashattn
import numpy as np
import pytest
from bias_cases import BiasCase
from expectation import Expected, assert_agrees, expected_of
from flashattn import _abi, latent, oracle
from flashattn._library import last_error
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import LATENT, dtype_of
from paging import PagedProblem, make_pages, run_paged
from pairwise import Row, pairwise
from problems import (
    AttentionProblem,
    configs_for_pages,
    decoded,
    fill_unused,
    make_inputs,
    p_type,
    rounds_p,
    run,
    run_call,
)
from strategies import attention_problems, random_problems
from test_paging_refusals import PagedCall

KINDS = ("table", "rows", "indptr", "rows64", "table ends", "indptr ends used")
_MLA = {"n_heads_kv": 1, "d_head": latent.COLUMNS, "d_head_v": latent.CODES}
# One for each way that a task reads its keys.
PROBLEMS = {
    "one row": AttentionProblem(3, 1, 300, 2, 2, 64, seqused_k=(300, 64, 129)),
    "few rows": AttentionProblem(2, 3, 700, 6, 2, 72, "float16", causal=True),
    "steps": AttentionProblem(1, 1, 1500, 22, 11, 128, "bfloat16"),
    "decode": AttentionProblem(4, 2, 900, 8, 2, 64, "bfloat16", causal=True,
                               seqused_k=(900, 1, 0, 65)),
    "split": AttentionProblem(1, 2, 5000, 16, 2, 64, "bfloat16", causal=True),
    "split rows": AttentionProblem(1, 30, 3000, 4, 2, 32, causal=True),
    "packed": AttentionProblem(2, 200, 300, 6, 2, 64, "bfloat16", causal=True),
    "packed fp16": AttentionProblem(1, 97, 400, 2, 2, 128, "float16", window_size=(150, 20)),
    "packed fp32": AttentionProblem(2, 130, 290, 2, 1, 72, softcap=3.0, seqused_k=(257, 31)),
    "private": AttentionProblem(1, 50, 400, 1, 1, 40, "bfloat16"),
    "chunks": AttentionProblem(1, 60, 200, 2, 1, 32, causal=True, attention_chunk=64),
    "ragged": AttentionProblem(
        4, 130, 400, 4, 2, 64, "bfloat16", causal=True, cu_seqlens_q=(0, 1, 1, 131, 135),
        seqused_k=(400, 77, 131, 66),
    ),
    "sinks": AttentionProblem(2, 3, 200, 4, 2, 64, sinks=(0.5, -2.0, 3.0, 1.0)),
    "mask": AttentionProblem(
        1, 140, 300, 4, 2, 64, "bfloat16", bias=BiasCase(slopes=1, kind="bits")
    ),
    "mask of numbers": AttentionProblem(
        2, 3, 300, 4, 2, 64, bias=BiasCase(kind="float32", hidden_blocks=0.5)
    ),
    "e4m3": AttentionProblem(2, 4, 600, 8, 2, 64, "float8_e4m3fn", "float16", k_descale=0.5),
    "packed e4m3": AttentionProblem(1, 100, 300, 2, 1, 72, "float8_e4m3fn", v_descale=2.0),
    "latent": AttentionProblem(3, 1, 200, n_heads=16, dtype=LATENT, **_MLA),
    "packed latent": AttentionProblem(1, 40, 170, n_heads=4, dtype=LATENT, **_MLA),
    "chosen": AttentionProblem(4, 1, 260, n_heads=128, dtype=LATENT, q_dtype="bfloat16", **_MLA),
    "chosen bf16": AttentionProblem(4, 1, 260, n_heads=128, dtype="bfloat16", **_MLA),
    "chosen few heads": AttentionProblem(4, 1, 260, n_heads=16, dtype="bfloat16", **_MLA),
    "q8_0": AttentionProblem(2, 1, 300, 4, 2, 64, "q8_0"),
    "q4_0 of many rows": AttentionProblem(1, 70, 200, 4, 2, 96, "q4_0"),
    "q8_0 beside fp16": AttentionProblem(2, 3, 300, 6, 2, 64, "q8_0", v_dtype="float16"),
    "two types": AttentionProblem(1, 30, 300, 4, 2, 64, "float16", v_dtype="float32"),
}  # fmt: skip
every_problem = pytest.mark.parametrize("name", PROBLEMS)


@lru_cache(maxsize=4)
def _expected(q: PagedProblem, p_dtype: str) -> Expected:
    p, hidden = q.dense, q.hidden_keys
    types = dtype_of(p_dtype), dtype_of(p.types[2])
    inputs = decoded(p, make_inputs(p))
    return expected_of(inputs, *types, 4, **p.options(), hidden_keys=hidden)


def _check(q: PagedProblem, config: str | None) -> None:
    p = q.dense
    if rounds_p(p, config) and not p.averages_rounding:
        return
    o, lse = run_paged(q, config=config)
    fill_unused(p, o, lse)
    assert_agrees(o, lse, _expected(q, p_type(p, config)), f"replay: {q}, config={config!r}")


CASES = pairwise(
    {
        "problem": tuple(PROBLEMS),
        "page_size": (1, 4, 19, 32, 256),
        "kind": KINDS,
        "tables": ("shared", "v_apart"),
        "holes": (0.02, 0.4, 0.9),
    },
    lambda row: not ("latent" in row.get("problem", "") and row.get("tables") == "v_apart"),
)


@pytest.mark.parametrize("case", CASES, ids=["-".join(map(str, x.values())) for x in CASES])
def test_nobody_sees_keys_in_holes(case: Row) -> None:
    p = PROBLEMS[case["problem"]]
    v_apart = case["tables"] == "v_apart" and p.dtype != LATENT
    q = PagedProblem(p, case["page_size"], case["kind"], v_apart, case["holes"])
    for config in [None, *configs_for_pages(q.dense)]:
        _check(q, config)


@st.composite
def problems_with_holes(draw: st.DrawFn) -> PagedProblem:
    p = draw(attention_problems())
    page_size = draw(st.one_of(st.sampled_from([1, 2, 4, 16, 32, 64]), st.integers(1, 40)))
    lengths = tuple(draw(st.integers(0, p.seqlen_k)) for _ in range(p.batch))
    layouts = (p.layouts[0], "contiguous", "contiguous", p.layouts[3])
    p = replace(p, cu_seqlens_k=None, seqused_k=lengths, leftpad_k=None, layouts=layouts)
    holes = draw(st.sampled_from([0.05, 0.3, 0.7, 0.95, 1.0]))
    return PagedProblem(p, page_size, draw(st.sampled_from(KINDS)), draw(st.booleans()), holes)


@settings(random_problems, max_examples=200)
@given(problems_with_holes(), st.data())
def test_random_holes(q: PagedProblem, data: st.DataObject) -> None:
    _check(q, data.draw(st.sampled_from([None, *configs_for_pages(q.dense)]), label="config"))


def _bits(results: tuple[np.ndarray, np.ndarray]) -> list[bytes]:
    return [x.tobytes() for x in results]


@every_problem
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_table_without_holes_has_the_bits_of_a_call_without_the_flag(
    name: str, page_size: int
) -> None:
    q = PagedProblem(PROBLEMS[name], page_size, holes=1e-9)
    assert not q.hidden_keys.any()
    for config in configs_for_pages(q.dense):
        assert _bits(run_paged(q, config=config)) == _bits(run(q.dense, config=config)), config


@every_problem
@pytest.mark.parametrize("page_size", [1, 7, 64])
def test_a_row_of_holes_sees_nothing(name: str, page_size: int) -> None:
    q = PagedProblem(PROBLEMS[name], page_size, holes=1.0)
    for config in configs_for_pages(q.dense):
        o, lse = run_paged(q, config=config)
        assert not o.any() and (lse == -np.inf).all(), config


@pytest.mark.parametrize("name", ["one row", "few rows", "decode", "split", "packed", "latent"])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_threads_and_the_size_of_pages_change_nothing(name: str, n_threads: int) -> None:
    """Holes of 32 keys each, in pages of 32 tokens and less."""
    q = PagedProblem(PROBLEMS[name], 32, holes=0.5)
    pages, options = make_pages(q, make_inputs(q.dense))
    expected = {config: _bits(run_paged(q, config=config)) for config in configs_for_pages(q.dense)}
    flashattn.set_num_threads(n_threads)
    for size in (8, 4, 1):
        parts = [x.reshape(-1, size, *x.shape[2:]) for x in pages[1:]]
        cut = {**options, "page_table": _cut(options["page_table"], 32 // size)}
        for config, bits in expected.items():
            found = run_call(replace(q.p, seqused_k=None), [pages[0], *parts], cut, config)
            assert _bits(found) == bits, (config, size)


def _cut(table: np.ndarray, n: int) -> np.ndarray:
    """Returns the table of pages that are cut into n each. Ids that are not looked at stay so."""
    wide = table.astype(np.int64)[..., None]
    ids = np.where(wide < 0, wide, np.minimum(wide * n + np.arange(n), 2**31 - 1))
    return ids.reshape(len(table), -1).astype(np.int32)


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("name", ["one row", "few rows", "decode", "packed", "private"])
def test_what_is_seen_is_computed_with(name: str, value: float) -> None:
    """An infinity or NaN in V reaches O where its key is seen, and holes beside it add no NaN."""
    q = PagedProblem(replace(PROBLEMS[name], causal=False), 1, holes=0.4)
    inputs = make_inputs(q.dense)
    seen = [int(np.flatnonzero(~hidden)[3]) for hidden in q.hidden_keys]
    for b, key in enumerate(seen):
        inputs[2][b, key, :, 5] = value
    numbers = decoded(q.dense, inputs)
    expected, _ = oracle.attention(*numbers, **q.dense.options(), hidden_keys=q.hidden_keys)
    for config in configs_for_pages(q.dense):
        o, _ = run_paged(q, inputs, config)
        for kind in (np.isnan, np.isposinf, np.isneginf):
            assert (kind(o.astype(np.float64)) == kind(expected)).all(), (config, kind)


def test_a_choice_with_holes_is_that_without() -> None:
    """As an indexer chooses tokens: -1 at places of their own in each row."""
    rng = np.random.default_rng(5)
    tokens = latent.encode(rng.standard_normal((3000, 1, 1, latent.COLUMNS)))
    q = rng.standard_normal((5, 1, 128, latent.COLUMNS)).astype(np.float32)
    chosen = np.array([rng.permutation(3000)[:300] for _ in range(5)], np.int32)
    chosen[rng.random(chosen.shape) < 0.3] = -1
    counts = np.full(5, 300, np.int32)
    options = {"kv_dtype": LATENT, "softmax_scale": 192**-0.5}
    found = flashattn.flash_attn_func(
        q, tokens, tokens, page_table=chosen, page_holes=True, seqused_k=counts, **options
    )
    for row, ids, o in zip(q, chosen, found):
        k = latent.decode(tokens[ids[ids >= 0], 0])[None]
        expected, _ = oracle.attention(
            row[None], k, k[..., : latent.CODES], softmax_scale=192**-0.5
        )
        assert np.allclose(o[None], expected, atol=2e-5)


# ---- The doors ----


def _call_of_doors() -> tuple[list[np.ndarray], dict[str, object]]:
    q = PagedProblem(AttentionProblem(3, 2, 90, 4, 2, 64), 4, holes=0.5)
    pages, options = make_pages(q, make_inputs(q.dense))
    return pages, options


def test_torch_has_it_too() -> None:
    torch = pytest.importorskip("torch")
    from flashattn import torch_ops
    from flashattn._torch import extension

    pages, options = _call_of_doors()
    expected = flashattn.flash_attn_func(*pages, **options)
    tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in pages]
    given_ = {x: torch.from_numpy(y) if y is not True else y for x, y in options.items()}
    assert (torch_ops.flash_attn_func(*tensors, **given_).numpy() == expected).all()
    found = torch.ops.flashattn.decode(
        *tensors, given_["seqused_k"], given_["page_table"], page_holes=True
    )
    assert (found.numpy() == expected).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extension, "forward", None)
        assert (torch_ops.flash_attn_func(*tensors, **given_).numpy() == expected).all()


def test_jax_has_it_too() -> None:
    jax = pytest.importorskip("jax")
    import flashattn.jax as door

    pages, options = _call_of_doors()
    expected = flashattn.flash_attn_func(*pages, **options)
    found = jax.jit(lambda *x: door.flash_attention(*x, **options))(*pages)
    assert (np.asarray(found) == expected).all()


# ---- Refusals ----


def _refuse(call: PagedCall, status: int, words: str) -> None:
    assert call.run() == status, last_error()
    assert words in last_error()
    call.assert_untouched()


def _holes_call() -> PagedCall:
    call = PagedCall()
    call.args.flags |= _abi.FLASH_FLAG_PAGE_HOLES
    call.arrays["page_table"][0, 1] = -1
    return call


def test_a_hole_needs_the_flag() -> None:
    call = _holes_call()
    assert call.run() == 0, last_error()
    call.o.take(), call.lse.take()
    call.args.flags = 0
    _refuse(call, _abi.FLASH_ERROR_INVALID_ARGUMENT, "at place 1, is -1: not within 0 ... 4")


def test_a_page_of_v_that_k_has_is_no_hole() -> None:
    call = _holes_call()
    v_table = np.array([[4, 77, 2], [1, 0, 0]], np.int32)
    call.paging.v_page_table = v_table.ctypes.data
    assert call.run() == 0, last_error()
    call.o.take(), call.lse.take()
    v_table[0, 2] = -1
    words = "v_page_table: page 2 of sequence 0, at place 2, is -1: not within 0 ... 4"
    _refuse(call, _abi.FLASH_ERROR_INVALID_ARGUMENT, words)


def test_holes_are_ids_of_a_table() -> None:
    call = _holes_call()
    call.use_slots()
    words = "FLASH_FLAG_PAGE_HOLES without paging.page_table"
    _refuse(call, _abi.FLASH_ERROR_INVALID_ARGUMENT, words)
    call.args.paging = None
    words = "FLASH_FLAG_PAGE_HOLES, and paging is NULL"
    _refuse(call, _abi.FLASH_ERROR_INVALID_ARGUMENT, words)


def test_other_ids_stay_refused() -> None:
    call = _holes_call()
    call.arrays["page_table"][0, 2] = 5
    _refuse(call, _abi.FLASH_ERROR_INVALID_ARGUMENT, "at place 2, is 5: not within 0 ... 4")
