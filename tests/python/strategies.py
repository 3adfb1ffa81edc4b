"""Random attention problems for hypothesis."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from memory import DTYPES, E4M3, LAYOUTS
from problems import VALUES, AttentionProblem


def examples(n: int) -> int:
    """Returns how many examples a property has: half of n where memory is watched, which makes each
    of them take several times as long."""
    return n // 2 if "libasan" in os.environ.get("LD_PRELOAD", "") else n


# With print_blob a failure prints the blob that replays it. Without a database a run leaves no
# files.
random_problems = settings(
    max_examples=examples(400),
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

_LENGTHS = st.one_of(
    st.integers(0, 8), st.integers(0, 200), st.sampled_from([63, 64, 65, 127, 129])
)
_D_HEADS = st.one_of(st.sampled_from([8, 16, 32, 64, 80, 96, 128]), st.integers(1, 136))


@st.composite
def attention_problems(draw: st.DrawFn) -> AttentionProblem:
    """Draws any problem of the API that is quick enough for float64."""
    batch = draw(st.integers(0, 3))
    n_heads_kv = draw(st.integers(1, 3))
    group = draw(st.sampled_from([1, 1, 2, 3, 5, 8]))
    seqlen_q, cu_seqlens_q = draw(_lengths(batch))
    seqlen_k, cu_seqlens_k = draw(_lengths(batch))
    dtype = draw(st.sampled_from((*DTYPES, E4M3)))
    q_dtype = draw(st.sampled_from(DTYPES if dtype == E4M3 else (dtype, "float32")))
    return AttentionProblem(
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        n_heads=n_heads_kv * group,
        n_heads_kv=n_heads_kv,
        d_head=draw(_D_HEADS),
        d_head_v=draw(st.one_of(st.none(), _D_HEADS)),
        dtype=dtype,
        q_dtype=q_dtype,
        o_dtype=draw(st.sampled_from([q_dtype if dtype == E4M3 else dtype, "float32"])),
        causal=draw(st.booleans()),
        window_size=draw(st.one_of(st.just((-1, -1)), st.tuples(_sides(), _sides()))),
        attention_chunk=draw(chunks()),
        softcap=draw(st.sampled_from([0.0, 0.0, 1.5, 30.0])),
        softmax_scale=draw(st.sampled_from([None, None, 0.3, 0.01])),
        sinks=draw(st.one_of(st.none(), _sinks(n_heads_kv * group))),
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_q=draw(_seqused(batch, seqlen_q, cu_seqlens_q)),
        seqused_k=draw(_seqused(batch, seqlen_k, cu_seqlens_k)),
        leftpad_k=draw(st.one_of(st.none(), leftpads(batch))),
        k_descale=draw(_scales(batch, n_heads_kv)) if dtype == E4M3 else None,
        v_descale=draw(_scales(batch, n_heads_kv)) if dtype == E4M3 else None,
        values=draw(st.sampled_from(VALUES)),
        layouts=draw(st.tuples(*[st.sampled_from(LAYOUTS)] * 4)),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def _scales(batch: int, n_heads_kv: int) -> st.SearchStrategy[tuple | float | None]:
    one = st.sampled_from([1.0, 0.5, 0.03, -1.5, 1.9])
    row = st.tuples(*[one] * n_heads_kv)
    return st.one_of(st.none(), one, st.tuples(*[row] * batch))


def _sinks(n_heads: int) -> st.SearchStrategy[tuple[float, ...]]:
    one = st.one_of(
        st.floats(-10, 10, width=32), st.sampled_from([0.0, -np.inf, np.inf, 300.0, -300.0])
    )
    return st.tuples(*[one] * n_heads)


def _sides() -> st.SearchStrategy[int]:
    return st.one_of(st.just(-1), st.integers(0, 5), st.integers(0, 250))


def chunks() -> st.SearchStrategy[int]:
    """Draws attention_chunk, which half of the problems have."""
    return st.one_of(st.just(0), st.just(0), st.integers(1, 5), st.integers(1, 250))


def leftpads(batch: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Draws leftpad_k, which may leave a sequence no key."""
    one = st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 250))
    return st.tuples(*[one] * batch)


@st.composite
def _lengths(draw: st.DrawFn, batch: int) -> tuple[int, tuple[int, ...] | None]:
    """Draws (length or longest length, cu_seqlens or None)."""
    if draw(st.booleans()):
        return draw(_LENGTHS), None
    lengths = [draw(_LENGTHS) for _ in range(batch)]
    ends = [sum(lengths[:i]) for i in range(batch + 1)]
    return max(lengths, default=0) + draw(st.integers(0, 3)), tuple(ends)


@st.composite
def _seqused(
    draw: st.DrawFn, batch: int, seqlen: int, cu_seqlens: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    if draw(st.booleans()):
        return None
    lengths = [seqlen] * batch
    if cu_seqlens is not None:
        lengths = [b - a for a, b in zip(cu_seqlens, cu_seqlens[1:])]
    return tuple(draw(st.integers(0, length)) for length in lengths)
