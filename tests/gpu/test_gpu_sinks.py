"""Attention sinks on every row of the CUDA families: against the oracle, at extremes, and where a
row's keys are cut into pieces, of which only the last merge adds the sink.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate

import flashattn
import numpy as np
import pytest
import torch
from cache_checks import CACHES
from device_memory import download, upload
from expectation import assert_agrees
from flashattn import Arch, DType, Feature, flash_combine, oracle
from gpu_problems import (
    check,
    check_in_pages,
    check_outputs,
    configs_for,
    configs_for_pages,
    device_inputs,
    device_options,
    expected_of,
    host_inputs,
    rows,
    run,
    same_bits,
    typed,
)
from memory import E4M3, dtype_of
from paging import PagedProblem
from problems import AttentionProblem

D_HEADS = (64, 128, 256)
DTYPES = ("float16", "bfloat16", E4M3)
every_d_head = pytest.mark.parametrize("d_head", D_HEADS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def _sinks(n_heads: int) -> tuple[float, ...]:
    """Returns sinks that differ from head to head, from no weight to more than that of all keys:
    the LSE of some hundred keys is about 6."""
    return tuple(-1.0 + 9.0 * (i * 3 % n_heads) / n_heads for i in range(n_heads))


def _problem(batch: int, *sizes: int, **options: object) -> AttentionProblem:
    return AttentionProblem(batch, *sizes, sinks=_sinks(sizes[2]), **options)


def _ragged(queries: tuple[int, ...], keys: tuple[int, ...]) -> AttentionProblem:
    """Makes ragged queries over a padded cache."""
    ends = (0, *accumulate(queries))
    return _problem(
        len(queries), max(queries), max(keys), 8, 1,
        cu_seqlens_q=ends, seqused_k=keys, causal=True,
    )  # fmt: skip


# batch, queries, keys, heads, K/V heads
PREFILL = {
    "full": _problem(1, 150, 330, 8, 1),
    "causal": _problem(1, 270, 270, 8, 1, causal=True),
    "causal, rows without keys": _problem(1, 200, 70, 8, 2, causal=True),
    "window": _problem(1, 200, 370, 8, 2, window_size=(77, 5)),
    "causal window": _problem(1, 200, 400, 8, 1, causal=True, window_size=(127, 0)),
    "softcap": _problem(1, 150, 330, 8, 2, softcap=2.0, causal=True),
    "ragged": replace(
        _problem(4, 95, 150, 8, 2, causal=True),
        cu_seqlens_q=(0, 70, 70, 161, 171), cu_seqlens_k=(0, 40, 60, 210, 210),
    ),
    "64/8 heads": _problem(1, 70, 100, 64, 8, causal=True),
}  # fmt: skip
LENGTHS = (0, 1, 63, 64, 1100, 300)
DECODE = {
    "one query": _problem(len(LENGTHS), 1, 1100, 8, 1, seqused_k=LENGTHS),
    "one query, window": _problem(6, 1, 1100, 8, 1, window_size=(127, 0), seqused_k=LENGTHS),
    "queries": _problem(6, 3, 1100, 8, 2, causal=True, softcap=3.0, seqused_k=LENGTHS),
    "split": _problem(1, 1, 3000, 64, 8),
    "split, lengths on the device": _problem(2, 1, 3000, 8, 1, seqused_k=(3000, 100)),
    "chunk": _problem(6, 20, 1100, 8, 1, causal=True, seqused_k=LENGTHS),
    "split chunk": _problem(1, 10, 3000, 8, 1, causal=True),
}
PADDED = ("causal, rows without keys", "one query", "queries", "chunk", "causal window")
ALL = {**PREFILL, **DECODE}
MIXED = _ragged((1, 150, 1, 2, 0, 40, 1), (900, 150, 1500, 64, 9, 130, 0))


def _scales(batch: int, n_heads_kv: int) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(0.5 + (b + h) % 3 for h in range(n_heads_kv)) for b in range(batch))


def _typed(p: AttentionProblem, dtype: str, d_head: int) -> AttentionProblem:
    """Returns the problem in these types; K and V of e4m3 have scales per head."""
    p = typed(p, dtype, d_head)
    scales = _scales(p.batch, p.n_heads_kv)
    return replace(p, k_descale=scales, v_descale=scales) if dtype == E4M3 else p


def _configs(p: AttentionProblem) -> list[flashattn.Config]:
    """Returns the rows of the problem's head dimensions that serve it."""
    return [config for config in configs_for(p) if config.d_head == p.d_head]


def _without(p: AttentionProblem) -> AttentionProblem:
    return replace(p, sinks=None)


# ---- The oracle ----


@every_d_head
@every_dtype
@pytest.mark.parametrize("name", ALL)
def test_every_row_agrees_with_the_oracle(name: str, dtype: str, d_head: int) -> None:
    p = _typed(ALL[name], dtype, d_head)
    configs = _configs(p)
    assert configs, f"no row serves {p}"
    for config in configs:
        check(p, config)


def test_the_problems_reach_every_row_without_pages() -> None:
    """Those of the head dimensions that are walked, but of no Q of e4m3."""
    served = {
        str(config)
        for p in ALL.values()
        for dtype in DTYPES
        for d_head in D_HEADS
        for config in _configs(_typed(p, dtype, d_head))
    }
    own = [row.config for row in rows() if row.config.d_head in D_HEADS]
    own = [config for config in own if config.operand_dtype != DType.E4M3]
    dense = {str(config) for config in own if not config.features & Feature.PAGED}
    assert dense <= served, dense - served


@every_d_head
@every_dtype
@pytest.mark.parametrize("name", PADDED)
def test_every_row_with_pages_agrees_with_the_oracle(name: str, dtype: str, d_head: int) -> None:
    q = PagedProblem(_typed(ALL[name], dtype, d_head), 16, v_apart=True)
    configs = [config for config in configs_for_pages(q) if config.d_head == d_head]
    assert configs, f"no row serves {q}"
    for config in configs:
        check_in_pages(q, config)


@every_d_head
@every_dtype
def test_mixed_batches_agree_with_the_oracle(dtype: str, d_head: int) -> None:
    p = _typed(MIXED, dtype, d_head)
    for config in (None, *_configs(p)):
        check(p, config)


@every_dtype
@pytest.mark.parametrize("name", ["causal", "one query", "split"])
def test_fp32_o(name: str, dtype: str) -> None:
    p = replace(_typed(ALL[name], dtype, 128), o_dtype="float32")
    for config in _configs(p):
        check(p, config)


@pytest.mark.parametrize("values", ["growing", "one_large_key", "wide"])
def test_references_that_lag_behind_or_fail(values: str) -> None:
    """The sink is relative to the reference that a row ends with, whatever it is; and to that of
    the second pass where a fixed reference fails."""
    for dtype in ("float16", "bfloat16"):
        p = replace(_typed(PREFILL["full"], dtype, 128), values=values)
        _, lse = run(_without(p), config=_configs(p)[0])
        middle = [float(np.median(lse[:, h])) for h in range(p.n_heads)]
        p = replace(p, sinks=tuple(m - 2 + h for h, m in enumerate(middle)))
        for config in _configs(p):
            check(p, config)


# ---- Tests that can fail ----


@pytest.mark.parametrize("name", ["causal", "one query", "split", "split chunk"])
def test_a_sink_that_is_dropped_or_counted_twice_is_found(name: str) -> None:
    """Of a single head, that of largest weight."""
    p = _typed(ALL[name], "bfloat16", 64)
    found = expected_of(*host_inputs(p), **p.options())
    largest = int(np.argmax(p.sinks))
    for wrong in (-math.inf, p.sinks[largest] + math.log(2)):
        sinks = tuple(wrong if h == largest else x for h, x in enumerate(p.sinks))
        outputs = run(replace(p, sinks=sinks))
        with pytest.raises(AssertionError, match="max error"):
            check_outputs(p, outputs, found, None, name)


def test_each_head_has_its_own_sink() -> None:
    """A sink that leaves no weight makes O of its head 0, and no other, in every kind of row."""
    for name in ("causal", "split", "one query", "queries", "chunk"):
        p = _typed(ALL[name], "float16", 128)
        for config in _configs(p):
            none = run(_without(p), config=config)
            for head in (0, 1, p.n_heads // 2 + 1, p.n_heads - 1):
                sinks = tuple(math.inf if h == head else -math.inf for h in range(p.n_heads))
                o, lse = run(replace(p, sinks=sinks), config=config)
                assert (o[..., head, :] == 0).all(), str(config)
                others = [h for h in range(p.n_heads) if h != head]
                assert same_bits((o[..., others, :], lse), (none[0][..., others, :], none[1]))


# ---- Extremes ----

# O becomes one of these: the same bits as without a sink, or zeros.
SAME = (-math.inf, -1e30, -3.4e38)
ZERO = (math.inf, 1e30, 3.4e38, 400.0)
EXTREMES = (*SAME, *ZERO, -math.inf)


EXTREME = ["causal, rows without keys", "one query", "queries", "chunk"]


@pytest.mark.parametrize("d_head", [64, 256])
@every_dtype
@pytest.mark.parametrize("name", EXTREME)
def test_extremes(name: str, dtype: str, d_head: int) -> None:
    p = _typed(ALL[name], dtype, d_head)
    for config in _configs(p):
        o, lse = run(replace(p, sinks=EXTREMES), config=config)
        none_o, none_lse = run(_without(p), config=config)
        assert same_bits((lse,), (none_lse,)), str(config)
        sees_none = np.isneginf(none_lse)
        for h, sink in enumerate(EXTREMES):
            own = o[..., h, :].astype(np.float32)
            assert (own[sees_none[..., h, :]] == 0).all(), (sink, str(config))
            if sink in SAME:
                assert same_bits((o[..., h, :],), (none_o[..., h, :],)), (sink, str(config))
            else:
                assert (own == 0).all(), (sink, str(config))


@pytest.mark.parametrize("d_head", [64, 256])
@every_dtype
@pytest.mark.parametrize("name", EXTREME)
def test_nan(name: str, dtype: str, d_head: int) -> None:
    """A sink that is NaN makes all of its head NaN, where it sees a key. A second pass, which heads
    that share its tiles go through too, may come to another rounding."""
    p = replace(_typed(ALL[name], dtype, d_head), sinks=(0.0,) * 7 + (math.nan,))
    for config in _configs(p):
        o, lse = run(p, config=config)
        _, none_lse = run(_without(p), config=config)
        sees_none = np.isneginf(none_lse)
        np.testing.assert_array_equal(np.isneginf(lse), sees_none)
        np.testing.assert_allclose(lse[~sees_none], none_lse[~sees_none], rtol=1e-5)
        is_nan = np.isnan(o[..., 7, :].astype(np.float32)).all(axis=-1)
        np.testing.assert_array_equal(is_nan, ~sees_none[..., 7, :])
        assert np.isfinite(o[..., :7, :].astype(np.float32)).all(), str(config)


@every_d_head
@every_dtype
@pytest.mark.parametrize("name", ["causal", "split", "split chunk", "one query"])
def test_sinks_of_minus_infinity_change_no_bit(name: str, dtype: str, d_head: int) -> None:
    p = _typed(ALL[name], dtype, d_head)
    for config in _configs(p):
        sinks = replace(p, sinks=(-math.inf,) * p.n_heads)
        assert same_bits(run(sinks, config=config), run(_without(p), config=config)), str(config)


@pytest.mark.parametrize("above", [20.0, 60.0, 87.0, 89.0, 120.0, 300.0])
def test_sinks_far_above_the_scores_take_all_weight(above: float) -> None:
    """Rows of O that vanish beside exp(above) are as small as they should be, and never NaN."""
    for name in ("full", "split", "one query"):
        p = _typed(ALL[name], "bfloat16", 128)
        _, lse = run(_without(p))
        p = replace(p, sinks=(float(lse[np.isfinite(lse)].max()) + above,) * p.n_heads)
        for config in _configs(p):
            o = run(p, config=config)[0].astype(np.float64)
            assert (np.abs(o) <= 8 * math.exp(-above) + 1e-37).all(), str(config)


# ---- Batches, graphs, selection ----


@every_dtype
@pytest.mark.parametrize("name", ["one query", "queries", "chunk"])
def test_batch_invariant_bits(name: str, dtype: str) -> None:
    p = _typed(ALL[name], dtype, 64)
    CACHES.neighbours_change_no_bit(replace(p, k_descale=None, v_descale=None))


@pytest.mark.parametrize("name", ["causal", "split, lengths on the device", "chunk"])
def test_a_graph_replays_with_other_sinks(name: str) -> None:
    p = _typed(ALL[name], "bfloat16", 64)
    tensors, options = device_inputs(p), device_options(p)
    o = torch.empty_like(tensors[0])
    workspace = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    keywords = {**options, "out": o, "workspace": workspace}
    flashattn.flash_attn_varlen_func(*tensors, **keywords)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flashattn.flash_attn_varlen_func(*tensors, **keywords)
    found = []
    for step in range(5):
        options["sinks"].copy_(torch.full((p.n_heads,), 2.0 * step))
        o.fill_(math.nan)
        graph.replay()
        found.append(o.clone())
        flashattn.flash_attn_varlen_func(*tensors, **keywords)
        assert torch.equal(o, found[-1])
    assert all(not torch.equal(a, b) for a, b in zip(found, found[1:]))


def test_mixed_batches_have_sinks_in_both_kernels() -> None:
    """Each row is its O without sinks, times what its LSE leaves it beside the sink."""
    p = _typed(MIXED, "bfloat16", 64)
    configs = [config for config in configs_for(p) if config.arch == Arch.MIXED]
    assert configs
    for config in configs:
        o, lse = (x.astype(np.float64) for x in run(p, config=config))
        none_o, none_lse = (x.astype(np.float64) for x in run(_without(p), config=config))
        np.testing.assert_array_equal(lse, none_lse)
        with np.errstate(over="ignore"):  # of rows that see no key
            weight = 1 / (1 + np.exp(np.array(p.sinks)[:, None] - none_lse))
        np.testing.assert_allclose(o, none_o * weight.T[..., None], rtol=1e-2, atol=1e-5)


# ---- Merging partial results ----


def _partials(n: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    o = rng.standard_normal((n, 2, 37, 8, 64)).astype(dtype_of(dtype))
    lse = (3 * rng.standard_normal((n, 2, 8, 37))).astype(np.float32)
    lse[rng.random(lse.shape) < 0.3] = -np.inf
    lse[:, 0, :, 3] = -np.inf
    return o, lse


def _combine(o: np.ndarray, lse: np.ndarray, sinks: object, **options: object) -> tuple:
    of_heads = None if sinks is None else torch.tensor(sinks, dtype=torch.float32, device="cuda")
    arguments = upload(o), torch.from_numpy(lse).cuda()
    merged = flash_combine(*arguments, sinks=of_heads, return_lse=True, **options)
    return tuple(map(download, merged))


@pytest.mark.parametrize("n", [1, 2, 40])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_merging_agrees_with_the_oracle(dtype: str, n: int) -> None:
    o, lse = _partials(n, dtype)
    sinks = np.linspace(-3, 6, 8).astype(np.float32)
    merged, merged_lse = _combine(o, lse, sinks, dtype="float32")
    expected, _ = oracle.combine(o, lse, sinks)
    np.testing.assert_allclose(merged, expected, rtol=1e-5, atol=1e-6)
    assert same_bits((merged_lse,), (_combine(o, lse, None, dtype="float32")[1],))


def test_merging_with_extremes() -> None:
    o, lse = _partials(3, "float32")
    merged, merged_lse = _combine(o, lse, EXTREMES)
    none, none_lse = _combine(o, lse, None)
    assert same_bits((merged_lse,), (none_lse,))
    for h, sink in enumerate(EXTREMES):
        own, sees_none = merged[:, :, h], np.isneginf(none_lse[:, h])
        assert (own[sees_none] == 0).all()
        if sink in SAME:
            assert same_bits((own,), (none[:, :, h],))
        elif sink in ZERO:
            assert (own == 0).all()
        else:
            assert np.isnan(own[~sees_none]).all()


def test_merging_nothing_with_sinks_is_zero() -> None:
    o, lse = _combine(
        np.empty((0, 1, 5, 8, 16), np.float32), np.empty((0, 1, 8, 5), np.float32), EXTREMES
    )
    assert (o == 0).all() and np.isneginf(lse).all()


def test_parts_of_the_keys_merge_to_the_whole_with_sinks() -> None:
    """Partial results without sinks, of which merging adds one of each head, are O with sinks."""
    p = _typed(_problem(2, 40, 700, 8, 2), "float16", 64)
    q, k, v = host_inputs(p)
    tensors = [upload(x) for x in (q, k, v)]
    parts = [slice(0, 1), slice(1, 300), slice(300, 300), slice(300, 700)]
    partial = [
        flashattn.flash_attn_func(
            tensors[0], *(x[:, part] for x in tensors[1:]), out_dtype="float32", return_lse=True
        )
        for part in parts
    ]
    sinks = torch.tensor(p.sinks, device="cuda")
    merged = flash_combine(
        *(torch.stack(x) for x in zip(*partial)), sinks=sinks, dtype="float16", return_lse=True
    )
    assert_agrees(*map(download, merged), expected_of(q, k, v, **p.options()), f"replay: {p}")


def test_sinks_on_another_device_are_refused() -> None:
    p = _typed(PREFILL["causal"], "float16", 64)
    options = {**device_options(p), "sinks": torch.zeros(p.n_heads)}
    with pytest.raises(ValueError, match="sinks is on the CPU"):
        flashattn.flash_attn_varlen_func(*device_inputs(p), **options)
    with pytest.raises(ValueError, match="sinks has shape"):
        flashattn.flash_attn_varlen_func(
            *device_inputs(p), **{**options, "sinks": torch.zeros(3, device="cuda")}
        )
