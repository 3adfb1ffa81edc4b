"""Random problems, layouts, lengths, pages and rows against the oracle; replayable."""

from __future__ import annotations

import math
from dataclasses import replace

from device_memory import ALIGNED_LAYOUTS, LAYOUTS
from gpu_problems import DTYPES, check, check_in_pages, configs_for, configs_for_pages
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from memory import E4M3
from paging import KINDS, PagedProblem
from problems import FEWEST_ELEMENTS, FEWEST_ROWS, VALUES, AttentionProblem

random_problems = settings(
    max_examples=300,
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

_LENGTHS = st.one_of(
    st.integers(0, 8), st.integers(0, 300), st.sampled_from([63, 64, 65, 127, 128, 129, 700])
)
_D_HEADS = st.one_of(
    st.sampled_from([32, 64, 96, 128, 192, 256]), st.sampled_from([8, 40, 80, 104]),
    st.integers(8, 256),
)  # fmt: skip


@random_problems
@given(st.data())
def test_random_problem_agrees_with_the_oracle(data: st.DataObject) -> None:
    p = data.draw(_problems(), label="problem")
    config = data.draw(st.sampled_from([None, *configs_for(p)]), label="config")
    check(p, config)


@random_problems
@given(st.data())
def test_random_problem_in_pages_agrees_with_the_oracle(data: st.DataObject) -> None:
    q = data.draw(_paged_problems(), label="problem")
    configs = configs_for_pages(q)
    assume(configs)
    check_in_pages(q, data.draw(st.sampled_from([None, *configs]), label="config"))


@random_problems
@given(st.data())
def test_random_cache_agrees_with_the_oracle(data: st.DataObject) -> None:
    """The same keys are also tested without pages, in e4m3 too."""
    p = data.draw(_paged_problems(), label="problem").dense
    configs = configs_for(p)
    assume(configs)
    check(p, data.draw(st.sampled_from([None, *configs]), label="config"))


@st.composite
def _paged_problems(draw: st.DrawFn) -> PagedProblem:
    """Draws problems of many rows and of few, with aligned rows, of wide heads too, which some
    devices have no rows for. Keys are padded before paging."""
    p = draw(_problems().filter(lambda p: p.cu_seqlens_k is None))
    is_e4m3 = draw(st.booleans())
    d_head = draw(_aligned_columns(p.d_head))
    d_head_v = p.d_head_v and draw(_aligned_columns(p.d_head_v))
    p = replace(
        p,
        d_head=d_head,
        d_head_v=d_head_v,
        dtype=E4M3 if is_e4m3 else p.dtype,
        q_dtype=p.dtype if is_e4m3 else None,
        softmax_scale=p.softmax_scale and 0.5 / math.sqrt(d_head),
        k_descale=draw(_scales(p)) if is_e4m3 else None,
        v_descale=draw(_scales(p)) if is_e4m3 else None,
        layouts=draw(st.tuples(*[st.sampled_from(ALIGNED_LAYOUTS)] * 4)),
    )
    if p.cu_seqlens_q is None and draw(st.booleans()):
        group = p.n_heads // p.n_heads_kv
        p = replace(p, seqlen_q=draw(st.integers(1, max(1, 32 // group))))
    tokens = p.batch * p.seqlen_q if p.cu_seqlens_q is None else p.cu_seqlens_q[-1]
    rows = tokens * p.n_heads
    assume(not rows or (rows >= FEWEST_ROWS and rows * (d_head_v or d_head) >= FEWEST_ELEMENTS))
    return PagedProblem(
        p, draw(st.one_of(st.integers(1, 40), st.sampled_from([64, 128, 256]))),
        draw(st.sampled_from(KINDS)), draw(st.booleans()),
    )  # fmt: skip


def _aligned_columns(columns: int) -> st.SearchStrategy[int]:
    narrow = st.just(columns // 16 * 16 or 16)
    return st.one_of(narrow, narrow, st.integers(17, 32).map(lambda i: 16 * i))


@st.composite
def _problems(draw: st.DrawFn) -> AttentionProblem:
    batch = draw(st.integers(1, 3))
    n_heads_kv = draw(st.integers(1, 3))
    n_heads = n_heads_kv * draw(st.sampled_from([1, 1, 2, 3, 5]))
    d_head = draw(_D_HEADS)
    d_head_v = draw(st.one_of(st.none(), _D_HEADS))
    seqlen_q, cu_seqlens_q = draw(_lengths(batch))
    seqlen_k, cu_seqlens_k = draw(_lengths(batch))
    tokens = batch * seqlen_q if cu_seqlens_q is None else cu_seqlens_q[-1]
    assume(not tokens or tokens * n_heads >= FEWEST_ROWS)
    assume(not tokens or tokens * n_heads * (d_head_v or d_head) >= FEWEST_ELEMENTS)
    return AttentionProblem(
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        n_heads=n_heads,
        n_heads_kv=n_heads_kv,
        d_head=d_head,
        d_head_v=d_head_v,
        dtype=draw(st.sampled_from(DTYPES)),
        o_dtype=draw(st.sampled_from([None, "float32"])),
        causal=draw(st.booleans()),
        window_size=draw(st.one_of(st.just((-1, -1)), st.tuples(_sides(), _sides()))),
        softcap=draw(st.sampled_from([0.0, 0.0, 1.5, 30.0])),
        softmax_scale=draw(st.sampled_from([None, None, 0.5 / math.sqrt(d_head)])),
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_k=draw(_seqused(batch, seqlen_k, cu_seqlens_k)),
        values=draw(st.sampled_from(VALUES)),
        layouts=draw(st.tuples(*[st.sampled_from(LAYOUTS)] * 4)),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def _sides() -> st.SearchStrategy[int]:
    return st.one_of(st.just(-1), st.integers(0, 5), st.integers(0, 250))


def _scales(p: AttentionProblem) -> st.SearchStrategy[object]:
    """Draws None, one scale for all, or [batch][n_heads_kv]."""
    one = st.sampled_from([1.0, 0.25, -1.5, 1.25])
    of_heads = st.tuples(*[one] * p.n_heads_kv)
    return st.one_of(st.none(), one, st.tuples(*[of_heads] * p.batch))


@st.composite
def _lengths(draw: st.DrawFn, batch: int) -> tuple[int, tuple[int, ...] | None]:
    """Draws (length or longest length, cu_seqlens or None)."""
    if draw(st.booleans()):
        return draw(_LENGTHS), None
    own = [draw(_LENGTHS) for _ in range(batch)]
    ends = [sum(own[:i]) for i in range(batch + 1)]
    return max(own) + draw(st.integers(0, 3)), tuple(ends)


@st.composite
def _seqused(
    draw: st.DrawFn, batch: int, seqlen_k: int, cu_seqlens_k: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    if draw(st.booleans()):
        return None
    own = [seqlen_k] * batch
    if cu_seqlens_k is not None:
        own = [b - a for a, b in zip(cu_seqlens_k, cu_seqlens_k[1:])]
    return tuple(draw(st.integers(0, length)) for length in own)
