"""New tokens in a cache are compared with those of the oracle, bit for bit, and nothing else may be
written."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import ml_dtypes
import numpy as np
import pytest
from append_cases import (
    KINDS,
    PAIRS,
    SLOT_ROOM,
    AppendCase,
    Queries,
    Result,
    Rotary,
    arrays_of,
    expected_of,
    named_cases,
)
from append_oracle import Oracle, turned
from flashattn import flash_attn_func, flash_attn_varlen_func, flash_kv_append
from hypothesis import given
from hypothesis import strategies as st
from memory import DTYPES, E4M3, LAYOUTS, QUANT_BLOCKS, Guarded, arrange, dtype_of
from parallel_for import ReversedHook, ThreadsHook
from strategies import PAIRS as CACHE_PAIRS
from strategies import random_problems

CASES = named_cases()


def _run(case: AppendCase) -> Result:
    """Runs a call whose outputs hold NaN, between canaries, and whose inputs lie between NaN."""
    arrays = arrays_of(case)
    options = {
        name: arrange(x, "contiguous") if isinstance(x, np.ndarray) and _is_flat(x) else x
        for name, x in arrays.options.items()
    }
    of_new, of_cache, of_q = case.layouts
    of_k, of_v = map(dtype_of, case.cache_dtypes)
    k = Guarded(arrays.k_shape, of_k, of_cache)
    v = Guarded(arrays.v_shape, of_v, of_cache) if case.has_v else None
    lengths = None
    if case.counts_lengths:
        lengths = np.full(case.batch + 2, -5, np.int32)
        options["seqused_k_out"] = lengths[1:-1]
    q = None
    if arrays.q is not None:
        in_place = case.queries.out == "in place"
        of_out = arrays.q.dtype if in_place else dtype_of(case.queries.out)
        q = Guarded(arrays.q.shape, of_out, of_q)
        options["q_out"] = q.array
        options["q"] = q.array if in_place else arrange(arrays.q, of_q)
        if in_place:
            q.array[...] = arrays.q
    returned = flash_kv_append(
        arrange(arrays.k_new, of_new),
        arrange(arrays.v_new, of_new) if case.has_v else None,
        k.array,
        v.array if v else None,
        **options,
    )
    assert returned is (q.array if q else None)
    if lengths is not None:
        assert lengths[0] == lengths[-1] == -5
        lengths = lengths[1:-1]
    return Result(k.take(), v.take() if v else None, q.take() if q else None, lengths)


def _is_flat(x: np.ndarray) -> bool:
    return x.ndim == 1


def _check(case: AppendCase) -> None:
    _run(case).assert_same_bits(expected_of(case, arrays_of(case)))


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_oracle(name: str) -> None:
    _check(CASES[name])


# ---- Random calls ----

# Types of new tokens, of K's cache and of V's, which are another pair on CPUs.
_types_of_one_cache = st.sampled_from([(new, cache, None) for new, cache in PAIRS])
_types_of_caches = st.sampled_from([(new, k, v) for new in DTYPES for k, v in CACHE_PAIRS])


@st.composite
def append_cases(draw: st.DrawFn) -> AppendCase:
    batch = draw(st.integers(0, 4))
    ragged = draw(st.booleans())
    one = draw(st.integers(0, 9))
    lengths = tuple(draw(st.integers(0, 9)) if ragged else one for _ in range(batch))
    dtype, cache_dtype, v_cache_dtype = draw(st.one_of(_types_of_one_cache, _types_of_caches))
    d_heads = st.one_of(st.sampled_from([8, 32, 64, 96, 128]), st.integers(1, 140))
    if {cache_dtype, v_cache_dtype} & {*QUANT_BLOCKS}:
        d_heads = st.sampled_from([32, 64, 96, 128])
    d_head, d_head_v = draw(d_heads), draw(st.one_of(st.none(), d_heads))
    kind = draw(st.sampled_from(KINDS))
    rotary = queries = None
    if d_head > 1 and draw(st.booleans()):
        rotary = Rotary(
            dim=2 * draw(st.integers(1, d_head // 2)),
            dtype=draw(st.sampled_from(DTYPES)),
            interleaved=draw(st.booleans()),
            source=draw(st.sampled_from(["lengths", "start", "positions"])),
            joined=draw(st.booleans()),
        )
        queries = draw(_queries(lengths, ragged, rotary.source))
    return AppendCase(
        lengths=lengths,
        used=tuple(draw(st.integers(0, SLOT_ROOM - 9)) for _ in range(batch)),
        n_heads_kv=draw(st.integers(1, 4)),
        d_head=d_head,
        d_head_v=d_head_v,
        dtype=dtype,
        cache_dtype=cache_dtype,
        v_cache_dtype=v_cache_dtype,
        kind=kind,
        page_size=draw(st.sampled_from([1, 2, 3, 16, 19, 64])),
        ragged=ragged,
        # With positions, Q has as many tokens as the tensor of new ones.
        trailing=draw(st.integers(0, 3)) if ragged and queries is None else 0,
        has_v=draw(st.booleans()),
        v_apart=draw(st.booleans()),
        rotary=rotary,
        queries=queries,
        scales=draw(st.sampled_from([None, "number", "array", "strided"]))
        if cache_dtype == E4M3
        else None,
        size=draw(st.sampled_from([1.0, 1e-3, 100.0, 1e4, 1e-39])),
        padding=draw(st.sampled_from([0.0, 0.5, 1.0])),
        layouts=draw(st.tuples(*[st.sampled_from(LAYOUTS)] * 3)),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@st.composite
def _queries(
    draw: st.DrawFn, lengths: tuple[int, ...], ragged: bool, source: str
) -> Queries | None:
    if draw(st.booleans()):
        return None
    if source != "positions":
        ragged = draw(st.booleans())
        one = draw(st.integers(0, 5))
        lengths = tuple(draw(st.integers(0, 5)) if ragged else one for _ in lengths)
    return Queries(
        lengths=lengths,
        n_heads=draw(st.integers(1, 5)),
        dtype=draw(st.sampled_from(DTYPES)),
        out=draw(st.sampled_from(["in place", *DTYPES])),
        ragged=ragged,
        at_start=source != "positions" and draw(st.booleans()),
    )


@random_problems
@given(case=append_cases())
def test_random_calls(case: AppendCase) -> None:
    _check(case)


# ---- Arithmetic ----


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_turns_as_the_definition_says(dtype: str, interleaved: bool) -> None:
    """float64, rounded once, is at most the errors of three operations in float32 away."""
    case = AppendCase(
        (50,), (0,), 2, 96, dtype, dtype, "table", rotary=Rotary(80, "float32", interleaved),
        size=10.0,
    )  # fmt: skip
    arrays, result = arrays_of(case), _run(case)
    ids = arrays.options["page_table"][0]
    for i in range(50):
        angles = (arrays.options[name][i] for name in ("rotary_cos", "rotary_sin"))
        exact = turned(arrays.k_new[0, i], *angles, interleaved, np.float64)
        written = result.k[ids[i // case.page_size], i % case.page_size].astype(np.float64)
        epsilon = {"float32": 0, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
        largest = np.abs(arrays.k_new[0, i].astype(np.float64)).max()
        assert (np.abs(written - exact) <= epsilon * np.abs(exact) + 2**-22 * largest).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_of_e4m3_and_what_lies_between(dtype: str) -> None:
    """What is beyond 448 saturates, infinity included, and NaN stays NaN."""
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    codes = np.sort(codes[np.isfinite(codes)])
    middle = (codes[1:] + codes[:-1]) / 2
    near = [np.nextafter(x, np.float32(y)) for x in (codes, middle) for y in (-1e9, 1e9)]
    beyond = np.float32([449, 464, 465, 1e4, 6e4, np.inf, -449, -1e4, -np.inf, np.nan])
    x = np.concatenate([codes, middle, *near, beyond]).astype(np.float32).astype(dtype_of(dtype))
    cache = np.zeros((1, len(x), 1, 1), ml_dtypes.float8_e4m3fn)
    flash_kv_append(x.reshape(cache.shape), None, cache, None, seqused_k=[0])
    wide = np.clip(x.astype(np.float32), -448, 448)
    expected = wide.astype(ml_dtypes.float8_e4m3fn)
    result = cache.reshape(-1)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(wide))
    real = ~np.isnan(wide)
    assert (result[real].view(np.uint8) == expected[real].view(np.uint8)).all()


def test_values_that_do_not_change_keep_their_bits() -> None:
    """NaN with a payload, infinities and denormals are copied, also beside elements that turn."""
    bits = np.arange(2**16, dtype=np.uint16)
    x = bits.view(np.float16).reshape(1, 512, 2, 64)
    cache = np.zeros_like(x)
    flash_kv_append(x, None, cache, None, seqused_k=[0])
    assert (cache.view(np.uint16) == x.view(np.uint16)).all()
    ones, zeros = np.ones((512, 8), np.float32), np.zeros((512, 8), np.float32)
    q = x.copy()
    flash_kv_append(
        x[:, :0], None, cache[:, :0], None, seqused_k=[0], q=q, q_out=q, rotary_cos=ones,
        rotary_sin=zeros,
    )  # fmt: skip
    assert (q.view(np.uint16)[..., 16:] == x.view(np.uint16)[..., 16:]).all()


def test_infinity_and_nan_go_through() -> None:
    x = np.float32([np.inf, -np.inf, np.nan, 3e38, 1e5, -1e5, 1e-9, 0]).reshape(1, 1, 1, 8)
    cache = np.zeros((1, 1, 1, 8), np.float16)
    flash_kv_append(x, None, cache, None, seqused_k=[0])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(cache, x.astype(np.float16))


# ---- What may repeat or be apart ----


def test_new_tokens_and_queries_may_repeat() -> None:
    rng = np.random.default_rng(0)
    row = rng.standard_normal((1, 1, 1, 16)).astype(np.float32)
    whole = np.broadcast_to(row, (2, 3, 2, 16))
    caches = [np.zeros((2, 5, 2, 16), np.float32) for _ in range(4)]
    tables = {"rotary_cos": np.float32([[0.6] * 8] * 9), "rotary_sin": np.float32([[0.8] * 8] * 9)}
    q = flash_kv_append(whole, whole, *caches[:2], seqused_k=[2, 0], q=whole, **tables)
    copy = whole.copy()
    copied_q = flash_kv_append(copy, copy, *caches[2:], seqused_k=[2, 0], q=copy, **tables)
    assert (q == copied_q).all()
    assert (caches[0] == caches[2]).all() and (caches[1] == caches[3]).all()


def test_q_and_new_tokens_are_views_of_one_array() -> None:
    """The projection of a layer has Q, K and V of a token side by side."""
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal((7, 8, 16)).astype(np.float32)
    q, k, v = qkv[:, :4], qkv[:, 4:6], qkv[:, 6:]
    caches = [np.zeros((2, 8, 2, 16), np.float32) for _ in range(2)]
    before = qkv.copy()
    tables = rng.standard_normal((2, 9, 8)).astype(np.float32)
    options = {"slot_mapping": [0, 3, 5, -1, 15, 9, 8], "rotary_positions": [0, 1, 2, 3, 4, 5, 8]}
    flash_kv_append(
        k, v, *caches, q=q, q_out=q, rotary_cos=tables[0], rotary_sin=tables[1], **options
    )
    oracle = Oracle(
        rotary_cos=tables[0], rotary_sin=tables[1], **{n: np.array(x) for n, x in options.items()}
    )
    expected = np.empty_like(before[:, :4])
    oracle.turn_queries(before[:, :4], expected)
    assert (q == expected).all()
    assert (qkv[:, 4:] == before[:, 4:]).all()
    cache = np.zeros_like(caches[0])
    oracle.append(before[:, 4:6], cache)
    assert (caches[0] == cache).all()


def test_k_and_v_of_a_pool_lie_side_by_side() -> None:
    """A page holds its keys and then its values: [n_pages, 2, page_size, n_heads_kv, d_head]."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 1, 6, 2, 8)).astype(np.float32)
    pool = np.full((5, 2, 4, 2, 8), 7, np.float32)
    table = np.array([[2, 4, 1, -1]], np.int32)
    flash_kv_append(*x, pool[:, 0], pool[:, 1], seqused_k=[3], page_table=table)
    for part in range(2):
        keys = np.concatenate([pool[2, part, 3:], pool[4, part], pool[1, part, :1]])
        assert (keys == x[part, 0]).all()
    assert (pool == 7).sum() == pool.size - x.size


def test_pages_before_the_new_tokens_are_not_looked_at() -> None:
    """Their ids may be anything: a window has freed them."""
    case = replace(CASES["ragged_table"], used=(5, 9, 0, 16))
    assert (arrays_of(case).options["page_table"] == -1).any()
    _check(case)


# ---- Threads ----


LARGE = AppendCase(
    (70, 0, 31, 200), (3, 0, 40, 9), 4, 128, "bfloat16", E4M3, "table", ragged=True,
    rotary=Rotary(64, "bfloat16", source="positions"), scales="array",
    queries=Queries((70, 0, 31, 200), 8, "bfloat16", ragged=True),
)  # fmt: skip


@pytest.mark.parametrize("n_threads", [1, 2, 7])
def test_threads_do_not_change_bits(n_threads: int) -> None:
    flashattn.set_num_threads(n_threads)
    _check(LARGE)


@pytest.mark.parametrize("hook", [ReversedHook, ThreadsHook])
def test_a_hook_serves_append(hook: type) -> None:
    with hook(n_workers=5) as run:
        _check(LARGE)
    assert run.calls == [5]


def test_small_work_stays_on_the_callers_thread() -> None:
    with ThreadsHook(n_workers=5) as run:
        _check(CASES["step_table"])
    assert not run.calls


# ---- Appending and attention ----


@pytest.mark.parametrize("kind", ["table", "mapping"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_steps_and_attention_are_attention_over_the_whole(kind: str, interleaved: bool) -> None:
    """K and V are appended in steps of any size, turned on the way, to pages. Attention over the
    cache has the bits of attention over contiguous K and V that were turned beforehand."""
    rng = np.random.default_rng(3)
    batch, heads, heads_kv, d, size = 2, 4, 2, 32, 5
    total = 23
    k, v = rng.standard_normal((2, batch, total, heads_kv, d)).astype(np.float32)
    q = rng.standard_normal((batch, total, heads, d)).astype(np.float32)
    angles = rng.uniform(-4, 4, (total, d // 2))
    tables = {
        "rotary_cos": np.cos(angles).astype(np.float32),
        "rotary_sin": np.sin(angles).astype(np.float32),
        "rotary_interleaved": interleaved,
    }
    turn = [
        np.stack([
            np.stack([
                turned(x[b, i], tables["rotary_cos"][i], tables["rotary_sin"][i], interleaved)
                for i in range(total)
            ])
            for b in range(batch)
        ])
        for x in (q, k)
    ]  # fmt: skip
    n_pages = 2 * -(-total // size)
    pools = [np.full((n_pages, size, heads_kv, d), np.nan, np.float32) for _ in range(2)]
    table = rng.permutation(n_pages).astype(np.int32).reshape(batch, -1)
    used = np.zeros(batch, np.int32)
    for step in (1, 7, 1, 0, 10, 4):
        after = np.zeros_like(used)
        new = [x[:, used[0] : used[0] + step] for x in (q, k, v)]
        options = {"seqused_k": used, "page_table": table, "seqused_k_out": after}
        if kind == "mapping":
            keys = used[0] + np.arange(step)
            slots = table[:, keys // size].astype(np.int64) * size + keys % size
            options = {"slot_mapping": slots.reshape(-1), "rotary_start": used}
            after = used + np.int32(step)
        turned_q = flash_kv_append(new[1], new[2], *pools, q=new[0], **options, **tables)
        o = flash_attn_func(turned_q, *pools, causal=True, seqused_k=after, page_table=table)
        n = int(after[0])
        whole = flash_attn_func(turn[0][:, used[0] : n], turn[1][:, :n], v[:, :n], causal=True)
        assert (o == whole).all()
        used = after
    assert (used == total).all()


def test_a_ragged_batch_of_prompts_and_steps() -> None:
    """Lengths after the append are those of the attention that follows."""
    rng = np.random.default_rng(1)
    lengths, used = np.array([9, 1, 0, 1]), np.array([0, 17, 4, 30], np.int32)
    pools = rng.standard_normal((2, 20, 8, 2, 64)).astype(np.float16)
    table = rng.permutation(20).astype(np.int32).reshape(4, 5)
    new = rng.standard_normal((2, 11, 2, 64)).astype(np.float16)
    q = rng.standard_normal((11, 4, 64)).astype(np.float16)
    ends, after = np.cumsum([0, *lengths]).astype(np.int32), np.zeros(4, np.int32)
    flash_kv_append(
        *new, *pools, seqused_k=used, seqused_k_out=after, cu_seqlens_new=ends, page_table=table
    )
    assert (after == used + lengths).all()
    o = flash_attn_varlen_func(
        q, *pools, cu_seqlens_q=ends, max_seqlen_q=9, seqused_k=after, page_table=table,
        causal=True,
    )  # fmt: skip
    for b in range(4):
        tokens = slice(ends[b], ends[b + 1])
        k, v = (pool[table[b]].reshape(1, 40, 2, 64)[:, : after[b]] for pool in pools)
        assert (k[0, used[b] :] == new[0, tokens]).all()
        assert (v[0, used[b] :] == new[1, tokens]).all()
        alone = flash_attn_func(q[None, tokens], k, v, causal=True)[0]
        np.testing.assert_allclose(
            o[tokens].astype(np.float32), alone.astype(np.float32), atol=2e-3
        )
