"""Query heads of a group that share tiles, on every SM90 row where they do: with ragged queries, or
in narrow windows. Groups are of one head up to twelve, of which one, two or four share a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

import flashattn
import ml_dtypes
import numpy as np
import pytest
from flashattn import Arch, Feature
from gpu_problems import check, configs_for, device_inputs, host_inputs, run, same_bits, typed
from memory import E4M3, dtype_of
from problems import AttentionProblem

GROUPS = (1, 2, 3, 4, 6, 8, 12)
HEADS_KV = 2
SHAPES = [
    *((dtype, d_head) for dtype in ("float16", "bfloat16", E4M3) for d_head in (64, 128, 256)),
    ("bfloat16", 96),
    ("float16", 192),
    ("bfloat16", (192, 128)),
]
# Queries end within a warp's rows, a consumer's and a tile's, for every number of heads in a tile.
QUERIES = (0, 1, 15, 16, 17, 33, 48, 64, 97, 130)
KEYS = (5, 1, 140, 16, 300, 33, 0, 129, 97, 70)
every_shape = pytest.mark.parametrize("dtype, d_head", SHAPES)
every_group = pytest.mark.parametrize("group", GROUPS)


def _typed(p: AttentionProblem, dtype: str, d_head: int | tuple[int, int]) -> AttentionProblem:
    d_qk, d_v = d_head if isinstance(d_head, tuple) else (d_head, None)
    return replace(typed(p, dtype, d_qk), d_head_v=d_v)


def _problem(group: int, batch: int, *lengths: int, **options: object) -> AttentionProblem:
    """Each head has a sink of its own."""
    heads = HEADS_KV * group
    sinks = tuple(-1.0 + 5.0 * (i * 5 % heads) / heads for i in range(heads))
    return AttentionProblem(batch, *lengths, heads, HEADS_KV, sinks=sinks, **options)


def _ragged(group: int, **options: object) -> AttentionProblem:
    ends, k_ends = ((0, *accumulate(lengths)) for lengths in (QUERIES, KEYS))
    sizes = (len(QUERIES), max(QUERIES), max(KEYS))
    return _problem(group, *sizes, cu_seqlens_q=ends, cu_seqlens_k=k_ends, **options)


def _windowed(group: int, **options: object) -> AttentionProblem:
    return _problem(group, 2, 330, 330, window_size=(127, 0), **options)


def _configs(p: AttentionProblem) -> list[flashattn.Config]:
    """Returns the rows of the problem's head dimensions whose tiles heads may share."""
    sharing = Feature.VARLEN if p.cu_seqlens_q else Feature.WINDOW
    found = [
        config
        for config in configs_for(p)
        if config.arch == Arch.SM90 and config.features & sharing and config.d_head == p.d_head
    ]
    assert found, p
    return found


def _check(p: AttentionProblem) -> None:
    for config in _configs(p):
        check(p, config)


@every_shape
@every_group
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"causal": True, "window_size": (20, 0)}, {"softcap": 3.0}],
    ids=["full", "causal", "window", "softcap"],
)
def test_ragged_batches_agree_with_the_oracle(
    options: dict, group: int, dtype: str, d_head: int | tuple[int, int]
) -> None:
    _check(_typed(_ragged(group, **options), dtype, d_head))


@every_shape
@every_group
def test_narrow_windows_agree_with_the_oracle(
    group: int, dtype: str, d_head: int | tuple[int, int]
) -> None:
    _check(_typed(_windowed(group), dtype, d_head))


@every_shape
@pytest.mark.parametrize("values", ["growing", "one_large_key", "wide"])
def test_references_that_fail(values: str, dtype: str, d_head: int | tuple[int, int]) -> None:
    for p in (_ragged(8, causal=True), _windowed(4)):
        _check(_typed(replace(p, values=values), dtype, d_head))


@every_shape
def test_fp32_o(dtype: str, d_head: int | tuple[int, int]) -> None:
    for p in (_ragged(8, causal=True), _ragged(4), _windowed(6)):
        _check(_typed(replace(p, o_dtype="float32"), dtype, d_head))


@every_shape
def test_layouts(dtype: str, d_head: int | tuple[int, int]) -> None:
    """Heads lie ahead of tokens, or tokens are far apart."""
    for layout in ("heads_first", "padded"):
        p = replace(_windowed(8), layouts=(layout,) * 4)
        _check(_typed(p, dtype, d_head))


def _last_tokens(p: AttentionProblem) -> Iterator[tuple[object, object]]:
    """Returns where the last query and key are of each sequence that has both."""
    if p.cu_seqlens_q is None:
        yield from (((i, -1), (i, -1)) for i in range(p.batch))
        return
    for i in range(p.batch):
        queries, keys = p.cu_seqlens_q[i : i + 2], p.cu_seqlens_k[i : i + 2]
        if queries[1] > queries[0] and keys[1] > keys[0]:
            yield queries[1] - 1, keys[1] - 1


@pytest.mark.parametrize("dtype, d_head", [s for s in SHAPES if s[0] != E4M3])
@pytest.mark.parametrize("make", [lambda g: _ragged(g, causal=True), _windowed])
@pytest.mark.parametrize("group", [4, 6])
def test_what_is_hidden_stays_hidden(
    group: int, make: object, dtype: str, d_head: int | tuple[int, int]
) -> None:
    """The last value of each sequence is NaN in one head: only the last queries of that group see
    it. A second pass, which other rows of their tiles go through too, may round differently."""
    p = _typed(make(group), dtype, d_head)
    is_last = np.zeros(p.q_shape[:-2], bool)
    for query, _ in _last_tokens(p):
        is_last[query] = True
    for config in _configs(p):
        clean, clean_lse = run(p, config=config)
        tensors = device_inputs(p)
        for _, key in _last_tokens(p):
            tensors[2][key][1, 5] = float("nan")
        o, lse = run(p, tensors, config)
        hidden = np.isnan(o.astype(np.float32))
        expected = np.zeros_like(hidden)
        expected[is_last, group:, 5] = True
        np.testing.assert_array_equal(hidden, expected, err_msg=str(config))
        np.testing.assert_allclose(lse, clean_lse, rtol=1e-5)
        close = np.abs(o.astype(np.float32) - clean.astype(np.float32))[~hidden]
        assert close.max() <= 4 * float(ml_dtypes.finfo(dtype_of(dtype)).eps) * np.abs(clean).max()


@pytest.mark.parametrize("dtype, d_head", [("float16", 64), ("bfloat16", 128)])
def test_each_head_has_its_own_queries(dtype: str, d_head: int) -> None:
    """Zeros in the queries of one head change no other head."""
    p = _typed(_ragged(8, causal=True), dtype, d_head)
    q, k, v = host_inputs(p)
    for config in _configs(p):
        before = run(p, config=config)
        for head in (0, 3, 4, 15):
            tensors = device_inputs(p)
            tensors[0][:, head] = 0
            o, lse = run(p, tensors, config)
            others = [h for h in range(p.n_heads) if h != head]
            assert same_bits(
                (o[:, others], lse[others]), (before[0][:, others], before[1][others])
            ), (head, str(config))
            assert not same_bits((o[:, head],), (before[0][:, head],))
