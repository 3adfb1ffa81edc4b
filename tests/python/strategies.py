"""Random attention problems for hypothesis."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
from bias_cases import KINDS as MASKS
from bias_cases import NUMBERS, BiasCase
from gradient_problems import NAMES, GradientProblem
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from memory import DTYPES, E4M3, LAYOUTS, QUANT_BLOCKS
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
_SHORT = st.one_of(st.integers(0, 8), st.integers(0, 70), st.sampled_from([63, 64, 65]))
long_lengths = st.one_of(_LENGTHS, st.integers(100, 700))
_FEW_OR_MORE = st.one_of(st.integers(0, 3), _LENGTHS)  # queries: a decoding step, or any number
_D_HEADS = st.one_of(st.sampled_from([8, 16, 32, 64, 80, 96, 128]), st.integers(1, 136))
_D_HEADS_OF_BLOCKS = st.sampled_from([32, 64, 96, 128, 160])

# K and V of two types, or of quantised blocks: CPUs take each of these pairs.
_PAIRED = (*DTYPES, *QUANT_BLOCKS)
PAIRS = [(k, v) for k in _PAIRED for v in _PAIRED if k != v or k in QUANT_BLOCKS]
_OF_ARRAYS = [pair for pair in PAIRS if not {*pair} & {*QUANT_BLOCKS}]
_OF_BLOCKS = [(k, v) for k in QUANT_BLOCKS for v in QUANT_BLOCKS]


def types_from(*kinds: list[tuple[str, str]]) -> st.SearchStrategy[tuple[str, str]]:
    """Draws the types of K and V: a type of both, or a pair of one of these kinds."""
    one = st.sampled_from((*DTYPES, E4M3)).map(lambda dtype: (dtype, dtype))
    return st.one_of(one, *map(st.sampled_from, kinds))


any_types = types_from(PAIRS, _OF_BLOCKS)
# What arrays say by themselves: quantised blocks need a kv_dtype.
types_of_arrays = types_from(_OF_ARRAYS)


@st.composite
def attention_problems(
    draw: st.DrawFn,
    types: st.SearchStrategy[tuple[str, str]] = any_types,
    few: st.SearchStrategy[int] = _FEW_OR_MORE,
    many: st.SearchStrategy[int] = _LENGTHS,
) -> AttentionProblem:
    """Draws any problem of the API that is quick enough for float64, whose K and V lie in no pages.

    types        of K and V
    few, many    numbers of queries, and of keys
    """
    batch = draw(st.integers(0, 3))
    n_heads_kv = draw(st.integers(1, 3))
    group = draw(st.sampled_from([1, 1, 2, 3, 5, 8]))
    seqlen_q, cu_seqlens_q = draw(_lengths(batch, few))
    seqlen_k, cu_seqlens_k = draw(_lengths(batch, many))
    dtype, v_dtype = draw(types)
    takes_any_q = dtype in (E4M3, *QUANT_BLOCKS)
    q_dtype = draw(st.sampled_from(DTYPES if takes_any_q else (dtype, "float32")))
    d_head = draw(_d_heads(dtype))
    d_head_v = draw(_d_heads(v_dtype))
    if v_dtype not in QUANT_BLOCKS or d_head % 32 == 0:
        d_head_v = draw(st.sampled_from([None, d_head_v]))
    return AttentionProblem(
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        n_heads=n_heads_kv * group,
        n_heads_kv=n_heads_kv,
        d_head=d_head,
        d_head_v=d_head_v,
        dtype=dtype,
        v_dtype=None if v_dtype == dtype else v_dtype,
        q_dtype=q_dtype,
        o_dtype=draw(st.sampled_from([q_dtype if takes_any_q else dtype, "float32"])),
        causal=draw(st.booleans()),
        window_size=draw(st.one_of(st.just((-1, -1)), st.tuples(_sides(), _sides()))),
        attention_chunk=draw(chunks()),
        diagonal_offset=draw(st.one_of(st.just(0), st.just(0), st.integers(-150, 150))),
        softcap=draw(st.sampled_from([0.0, 0.0, 1.5, 30.0])),
        softmax_scale=draw(st.sampled_from([None, None, 0.3, 0.01])),
        sinks=draw(st.one_of(st.none(), _sinks(n_heads_kv * group))),
        bias=draw(st.one_of(st.none(), st.none(), biases(seqlen_k))),
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


@st.composite
def gradient_problems(
    draw: st.DrawFn, lengths: st.SearchStrategy[int] = _SHORT
) -> GradientProblem:
    """Draws any problem of gradients; by default such that is quick enough for scalar kernels."""
    one_type = st.sampled_from(DTYPES).map(lambda dtype: (dtype, dtype))
    p = draw(attention_problems(one_type, lengths, lengths))
    offset = st.one_of(st.just(0), st.just(0), st.integers(-8, 8), st.integers(-100, 100))
    dropout_p, state = draw(st.sampled_from([0.0, 0.0, 0.1, 0.5])), st.integers(0, 2**64 - 1)
    p = replace(
        p,
        diagonal_offset=draw(offset),
        dropout_p=dropout_p,
        rng_state=draw(st.tuples(state, state)) if dropout_p else (0, 0),
    )
    layouts = st.tuples(*[st.sampled_from(LAYOUTS)] * 4)
    wide = draw(st.tuples(*[st.booleans()] * 3))
    is_fp32 = [of == "float32" or w for of, w in zip(p.input_types, wide)]
    may_add = [name for name, fits in zip(("dq", "dk", "dv"), is_fp32) if fits]
    wanted = draw(st.sets(st.sampled_from(NAMES)))
    return GradientProblem(
        forward=p,
        has_d_lse=draw(st.booleans()),
        wide=wide,
        wanted=tuple(x for x in NAMES if x not in wanted or draw(st.booleans())),
        adds=tuple(x for x in may_add if draw(st.integers(0, 3)) == 0),
        layouts=draw(layouts),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def _d_heads(dtype: str) -> st.SearchStrategy[int]:
    return _D_HEADS_OF_BLOCKS if dtype in QUANT_BLOCKS else _D_HEADS


@st.composite
def biases(draw: st.DrawFn, seqlen_k: int) -> BiasCase:
    """Draws slopes of ALiBi and a mask: of all keys, or of the last ones."""
    from_end = seqlen_k == 0 or draw(st.booleans())
    kind = draw(st.sampled_from((None, *MASKS)))
    return BiasCase(
        slopes=draw(st.integers(0, 2)),
        kind=kind,
        repeats="".join(draw(st.sets(st.sampled_from("bhq")))),
        n_keys=draw(st.integers(1, 200)) if from_end else None,
        from_end=from_end,
        hidden=draw(st.sampled_from((0.0, 0.3, 0.99, 1.0))),
        empty_rows=draw(st.sampled_from((0.0, 0.5))),
        strided=draw(st.booleans()),
        factors=kind in NUMBERS and draw(st.booleans()),
        seed=draw(st.integers(0, 2**31)),
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
def _lengths(
    draw: st.DrawFn, batch: int, one: st.SearchStrategy[int]
) -> tuple[int, tuple[int, ...] | None]:
    """Draws (length or longest length, cu_seqlens or None)."""
    if draw(st.booleans()):
        return draw(one), None
    lengths = [draw(one) for _ in range(batch)]
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
