"""K and V in pages give the bits of the same call without pages, and nothing else is read.

Everything that a call must not read holds NaN, or ids that are no page, and memory ends where it
must not be accessed.
"""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
from flashattn import oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import DTYPES
from paging import KINDS, PagedProblem, make_pages, run_paged
from pairwise import Row, pairwise
from problems import AttentionProblem, check, configs_for_pages, make_inputs, run
from strategies import attention_problems, random_problems

PAGE_SIZES = (1, 3, 16, 19, 64, 128, 256)

# These cover each way to read keys: rows in place, packed by the task or for all tasks, keys split
# or not.
PROBLEMS = {
    "decode": AttentionProblem(6, 1, 300, 4, 2, 64, "bfloat16", seqused_k=(0, 1, 63, 64, 65, 300)),
    "single rows": AttentionProblem(3, 1, 200, 3, 3, 80, seqused_k=(200, 64, 129)),
    "one long": AttentionProblem(3, 1, 5000, 8, 2, 64, "bfloat16", seqused_k=(5000, 0, 65)),
    "several queries": AttentionProblem(2, 4, 2100, 8, 2, 64, "float16", causal=True),
    "heads together": AttentionProblem(1, 2, 1500, 22, 11, 128, "bfloat16", causal=True),
    "window": AttentionProblem(2, 3, 700, 4, 2, 40, "bfloat16", window_size=(333, 1)),
    "attention chunks": AttentionProblem(
        2, 3, 700, 4, 2, 40, "bfloat16", causal=True, attention_chunk=256
    ),
    "prefill in chunks": AttentionProblem(
        2, 200, 300, 4, 2, 64, "bfloat16", causal=True, attention_chunk=96
    ),
    "prefill": AttentionProblem(2, 200, 300, 6, 2, 64, "bfloat16", causal=True),
    "prefill fp32": AttentionProblem(1, 130, 290, 2, 1, 72, causal=True, seqused_k=(257,)),
    "prefill fp16": AttentionProblem(1, 97, 131, 2, 2, 128, "float16", window_size=(50, 20)),
    "chunk": AttentionProblem(1, 60, 6000, 8, 4, 32, "bfloat16", causal=True),
    "ragged": AttentionProblem(
        4, 130, 400, 4, 2, 64, "bfloat16", causal=True, cu_seqlens_q=(0, 1, 1, 131, 135),
        seqused_k=(400, 77, 131, 66),
    ),
    "queries in use": AttentionProblem(
        3, 130, 400, 4, 2, 64, "bfloat16", causal=True, seqused_q=(130, 1, 0),
        seqused_k=(400, 77, 131),
    ),
    "decode e4m3": AttentionProblem(
        3, 1, 300, 4, 2, 64, "float8_e4m3fn", seqused_k=(300, 1, 65),
        k_descale=((0.5, 1.0), (2.0, -1.0), (0.25, 3.0)), v_descale=2.0,
    ),
    "few rows e4m3": AttentionProblem(
        2, 4, 2100, 8, 2, 64, "float8_e4m3fn", "float16", causal=True, k_descale=0.5
    ),
    "prefill e4m3": AttentionProblem(
        2, 200, 300, 6, 2, 72, "float8_e4m3fn", "bfloat16", causal=True, softcap=5.0,
        v_descale=((0.5, 1.0), (2.0, -1.0)),
    ),
}  # fmt: skip
every_problem = pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)


def _bits(results: tuple[np.ndarray, np.ndarray]) -> tuple[bytes, bytes]:
    return results[0].tobytes(), results[1].tobytes()


def _check(q: PagedProblem, inputs: list[np.ndarray] | None = None) -> None:
    """Checks for the bits of the same call without pages, on every kernel here."""
    inputs = inputs or make_inputs(q.dense)
    for config in configs_for_pages(q.dense):
        dense = _bits(run(q.dense, inputs, config))
        assert _bits(run_paged(q, inputs, config)) == dense, f"{q}, config={config!r}"


def _can_be(row: Row) -> bool:
    # Tokens lie as far apart as pages, whichever axis comes first, if a page has one token.
    return not (row.get("page_size") == 1 and row.get("order") == "heads_first")


CASES = pairwise(
    {
        "problem": tuple(PROBLEMS),
        "page_size": PAGE_SIZES,
        "kind": KINDS,
        "tables": ("shared", "v_apart"),
        "order": ("contiguous", "heads_first"),
    },
    _can_be,
)


@pytest.mark.parametrize("case", CASES, ids=["-".join(map(str, x.values())) for x in CASES])
def test_bits_are_those_without_pages(case: Row) -> None:
    p = PROBLEMS[case["problem"]]
    p = replace(p, layouts=("contiguous", case["order"], case["order"], "contiguous"))
    _check(PagedProblem(p, case["page_size"], case["kind"], case["tables"] == "v_apart"))


@every_problem
def test_results_are_the_oracles(p: AttentionProblem) -> None:
    q = PagedProblem(p, 19, v_apart=True)
    inputs = make_inputs(q.dense)
    check(q.dense, inputs, roundings=4)
    pages, options = make_pages(q, inputs)
    where = oracle.Pages(options["page_table"], options["v_page_table"])
    keywords = {**q.dense.options(), "pages": where}
    for found, expected in zip(
        oracle.attention(*pages, **keywords), oracle.attention(*inputs, **q.dense.options())
    ):
        assert (found == expected).all()


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@every_problem
def test_threads_change_nothing(p: AttentionProblem, n_threads: int) -> None:
    q = PagedProblem(p, 16)
    expected = _bits(run_paged(q))
    flashattn.set_num_threads(n_threads)
    assert _bits(run_paged(q)) == expected


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("page_size", [1, 16, 32])
def test_what_is_seen_is_computed_with(value: float, page_size: int) -> None:
    for p in (PROBLEMS["several queries"], PROBLEMS["prefill"], PROBLEMS["decode"]):
        inputs = make_inputs(p)
        inputs[1][:, 40, 0, 3] = value
        inputs[2][:, 50, :, 5] = value
        _check(PagedProblem(p, page_size), inputs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_may_use_a_page_twice(dtype: str) -> None:
    """Pages are shared prefixes, or a sequence has one page several times."""
    p = AttentionProblem(2, 3, 64, 4, 2, 64, dtype, causal=True)
    q, k, v = make_inputs(p)
    k[:, 16:32], v[:, 16:32] = k[:, :16], v[:, :16]
    k[1, :32], v[1, :32] = k[0, :32], v[0, :32]
    pool = [np.concatenate([x[0, :16], x[0, 32:], x[1, 32:]]).reshape(5, 16, 2, 64) for x in (k, v)]
    table = np.array([[0, 0, 1, 2], [0, 0, 3, 4]], np.int32)
    lengths = np.array([64, 64], np.int32)
    o = flashattn.flash_attn_func(q, *pool, causal=True, seqused_k=lengths, page_table=table)
    dense = flashattn.flash_attn_func(q, k, v, causal=True, seqused_k=lengths)
    assert o.tobytes() == dense.tobytes()


@st.composite
def paged_problems(draw: st.DrawFn) -> PagedProblem:
    p = draw(attention_problems())
    layouts = draw(st.sampled_from(["contiguous", "heads_first"]))
    page_size = draw(st.one_of(st.sampled_from(PAGE_SIZES), st.integers(1, 40)))
    if page_size == 1:
        layouts = "contiguous"  # whichever comes first, tokens lie as far apart as pages
    lengths = tuple(draw(st.integers(0, p.seqlen_k)) for _ in range(p.batch))
    layouts_qkvo = (p.layouts[0], layouts, layouts, p.layouts[3])
    kind = draw(st.sampled_from(KINDS))
    leftpad = p.leftpad_k if kind.startswith("slots") else None
    p = replace(p, cu_seqlens_k=None, seqused_k=lengths, leftpad_k=leftpad, layouts=layouts_qkvo)
    return PagedProblem(p, page_size, kind, draw(st.booleans()))


@settings(random_problems, max_examples=200)
@given(paged_problems(), st.data())
def test_random_problem_has_the_bits_without_pages(q: PagedProblem, data: st.DataObject) -> None:
    config = data.draw(st.sampled_from([None, *configs_for_pages(q.dense)]), label="config")
    assert _bits(run_paged(q, config=config)) == _bits(run(q.dense, config=config))
