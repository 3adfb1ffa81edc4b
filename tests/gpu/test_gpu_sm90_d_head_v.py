"""V and O have a head dimension of their own, d_head_v, in the kernels of compute capability 9.0:
in rows of one head dimension, which pad the smaller of the two, and in rows of 192/128.
"""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
from device_memory import upload
from expectation import assert_agrees
from flashattn import Arch, DType, Feature
from gpu_problems import (
    check,
    check_in_pages,
    configs_for,
    configs_for_pages,
    device_inputs,
    device_options,
    device_shapes,
    expected_of,
    heads_of,
    host_inputs,
    rows,
    run,
    types_of,
)
from memory import E4M3
from paging import PagedProblem
from problems import AttentionProblem

FAMILIES = (Arch.SM90, Arch.SM90_DECODE)
ROWS = [row.config for row in rows() if row.config.arch in FAMILIES]
NARROW_V = [config for config in ROWS if config.d_head_v]
DENSE_NARROW_V = [config for config in NARROW_V if not config.features & Feature.PAGED]
PREFILL = (192, 128)
PAIRS = (
    PREFILL,
    (64, 128), (128, 64), (256, 64), (192, 64), (64, 192), (96, 256), (40, 96), (96, 40),
    (136, 8), (8, 136), (256, 248), (200, 256),
)  # fmt: skip
E4M3_PAIRS = ((64, 128), (128, 64), (256, 64), (64, 256), (16, 112), (112, 16), PREFILL)

pytestmark = pytest.mark.skipif(not ROWS, reason="needs compute capability 9.0")


def _problem(*sizes: int, **options: object) -> AttentionProblem:
    return AttentionProblem(*sizes, dtype="bfloat16", **options)


_RAGGED = {"cu_seqlens_q": (0, 70, 70, 361), "cu_seqlens_k": (0, 40, 60, 410)}
PROBLEMS = {
    "full": _problem(2, 200, 330, 4, 2),
    "one_key": _problem(2, 150, 1, 4, 2),
    "no_key": _problem(2, 70, 0, 4, 2),
    "long": _problem(1, 300, 2100, 2, 1),
    "causal": _problem(2, 300, 300, 4, 4, causal=True),
    "causal_more_keys": _problem(1, 130, 700, 8, 2, causal=True),
    "causal_more_queries": _problem(1, 300, 130, 8, 1, causal=True),
    "window": _problem(1, 260, 500, 4, 2, window_size=(90, 20)),
    "causal_window": _problem(1, 400, 400, 4, 2, causal=True, window_size=(63, -1)),
    "softcap": _problem(1, 200, 330, 4, 2, causal=True, softcap=3.0),
    "sinks": _problem(1, 200, 330, 4, 2, causal=True, sinks=(2.0, -3.0, 0.5, 9.0)),
    "fp32_o": _problem(2, 200, 330, 4, 2, causal=True, o_dtype="float32"),
    "seqused": _problem(3, 150, 400, 4, 2, seqused_q=(0, 150, 66), seqused_k=(9, 400, 77)),
    "ragged": _problem(3, 291, 350, 4, 2, **_RAGGED),
    "ragged_causal": _problem(3, 291, 350, 4, 2, causal=True, **_RAGGED),
    "ragged_softcap_window": _problem(
        3, 291, 350, 4, 2, softcap=5.0, window_size=(70, 9), **_RAGGED
    ),
    "growing": _problem(1, 300, 900, 2, 1, values="growing"),
    "growing_causal": _problem(1, 300, 900, 2, 1, values="growing", causal=True),
    "one_large_key": _problem(1, 300, 900, 2, 1, values="one_large_key"),
    "padded": _problem(2, 200, 330, 4, 2, causal=True, layouts=("padded",) * 4),
    "heads_first": _problem(2, 200, 330, 4, 2, causal=True, layouts=("heads_first",) * 4),
    "chunk_of_a_prompt": _problem(1, 100, 3000, 8, 2, causal=True, seqused_k=(2950,)),
}
_CACHE = _problem(3, 150, 1100, 4, 2, seqused_k=(0, 1100, 65))
PAGED_PROBLEMS = {
    "full": _CACHE,
    "causal": replace(_CACHE, causal=True),
    "window": replace(_CACHE, window_size=(77, 2), softcap=9.0),
    "sinks": replace(_CACHE, causal=True, sinks=(2.0, -3.0, 0.5, 9.0)),
}
every_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "{}/{}".format(*pair))
every_e4m3_pair = pytest.mark.parametrize(
    "pair", E4M3_PAIRS, ids=lambda pair: "{}/{}".format(*pair)
)


def _with_heads(p: AttentionProblem, pair: tuple[int, int]) -> AttentionProblem:
    return replace(p, d_head=pair[0], d_head_v=pair[1])


def _in_e4m3(p: AttentionProblem) -> AttentionProblem:
    return replace(p, dtype=E4M3, q_dtype="bfloat16", o_dtype=p.o_dtype or "bfloat16")


def _own(configs: list[flashattn.Config]) -> list[flashattn.Config]:
    """Leaves the rows of the families of compute capability 9.0, of which there are some."""
    own = [config for config in configs if config.arch in FAMILIES]
    assert own
    return own


# ---- The oracle ----


@every_pair
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_row_agrees_with_the_oracle(name: str, pair: tuple[int, int]) -> None:
    p = _with_heads(PROBLEMS[name], pair)
    for config in _own(configs_for(p)):
        check(p, config)


@every_pair
@pytest.mark.parametrize("name", ["full", "causal", "ragged_softcap_window", "growing"])
def test_every_row_of_fp16_agrees_with_the_oracle(name: str, pair: tuple[int, int]) -> None:
    p = replace(_with_heads(PROBLEMS[name], pair), dtype="float16")
    for config in _own(configs_for(p)):
        check(p, config)


@every_e4m3_pair
@pytest.mark.parametrize("name", ["full", "causal", "window", "fp32_o", "ragged_causal", "growing"])
def test_every_row_of_e4m3_agrees_with_the_oracle(name: str, pair: tuple[int, int]) -> None:
    p = _in_e4m3(_with_heads(PROBLEMS[name], pair))
    for config in _own(configs_for(p)):
        check(p, config)


@every_pair
@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
@pytest.mark.parametrize("name", PAGED_PROBLEMS)
def test_every_row_with_pages_agrees_with_the_oracle(
    name: str, page_size: int, pair: tuple[int, int]
) -> None:
    q = PagedProblem(_with_heads(PAGED_PROBLEMS[name], pair), page_size, v_apart=page_size == 3)
    for config in _own(configs_for_pages(q)):
        check_in_pages(q, config)


@every_e4m3_pair
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_every_row_of_e4m3_with_pages_agrees_with_the_oracle(
    page_size: int, pair: tuple[int, int]
) -> None:
    q = PagedProblem(_in_e4m3(_with_heads(PAGED_PROBLEMS["causal"], pair)), page_size)
    for config in _own(configs_for_pages(q)):
        check_in_pages(q, config)


# ---- Padding ----


@pytest.mark.parametrize("name", ["full", "causal", "ragged_causal", "fp32_o", "growing"])
@pytest.mark.parametrize("config", ROWS, ids=str)
def test_columns_of_v_do_not_see_each_other(name: str, config: flashattn.Config) -> None:
    """A narrow V gives the columns of O that a wide one gives, bit for bit."""
    if config.features & Feature.PAGED:
        pytest.skip("of pages the copies are checked above")
    p = replace(PROBLEMS[name], **heads_of(config), **types_of(config))
    if not flashattn.query_support(*device_shapes(p), config=config, **device_options(p)):
        pytest.skip("the row lacks a feature or the type of O")
    q, k, v = device_inputs(p)
    wide = run(p, [q, k, v], config)
    for columns in (16, v.shape[-1] // 2, v.shape[-1] - 16):
        o, lse = run(replace(p, d_head_v=columns), [q, k, v[..., :columns]], config)
        assert o.tobytes() == np.ascontiguousarray(wide[0][..., :columns]).tobytes(), columns
        assert lse.tobytes() == wide[1].tobytes(), columns


@pytest.mark.parametrize("pair", [PREFILL, (128, 64), (64, 128)], ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("keys", [150, 700])
def test_values_that_are_not_finite_reach_only_rows_that_see_them(
    keys: int, value: float, pair: tuple[int, int]
) -> None:
    for mask in ({"causal": True}, {"causal": True, "window_size": (60, 0)}):
        p = _with_heads(_problem(1, 150, keys, 4, 2, **mask), pair)
        q, k, v = host_inputs(p)
        v[0, keys - 5, :, 3] = value
        v[0, keys - 25, 1, pair[1] - 1] = value
        v[0, keys // 2, 0, 0] = value
        expected = expected_of(q, k, v, **p.options())
        for config in _own(configs_for(p)):
            o, lse = run(p, [upload(x) for x in (q, k, v)], config)
            assert_agrees(o, lse, expected, f"{p}, {config}")


# ---- Rows of 192/128 ----


def test_rows_of_192_128_are_there() -> None:
    """Some row of them, of no more features than that of 192, serves what that serves, but for
    ragged batches with a window or a softcap, for which the row of 192 is as fast. Rows that
    multiply e4m3 are of 192 alone."""
    features = {}
    for config in ROWS:
        if config.operand_dtype == DType.E4M3:
            continue
        if config.arch == Arch.SM90 and config.d_head == 192:
            features.setdefault((config.dtype, config.d_head_v), set()).add(config.features)
    assert {d_head_v for _, d_head_v in features} == {0, PREFILL[1]}
    without = int(Feature.CAUSAL | Feature.WINDOW | Feature.SOFTCAP | Feature.VARLEN)
    for dtype in {dtype for dtype, _ in features}:
        wide, narrow = features[dtype, 0], features[dtype, PREFILL[1]]
        for wanted in wide - {without}:
            assert any(wanted & ~has == 0 for has in narrow), Feature(wanted)
        assert without not in narrow


@pytest.mark.parametrize("config", DENSE_NARROW_V, ids=str)
def test_rows_of_192_128_serve_both_dimensions_up_to_their_own(config: flashattn.Config) -> None:
    def serves(d_head: int, d_head_v: int) -> bool:
        p = _with_heads(_problem(2, 60, 60, 4, 2), (d_head, d_head_v))
        p = replace(p, **types_of(config))
        support = flashattn.query_support(*device_shapes(p), config=config, **device_options(p))
        return bool(support)

    assert serves(192, 128) and serves(64, 128) and serves(192, 8)
    assert not serves(192, 136) and not serves(200, 128) and not serves(192, 192)
    assert not serves(192, 124) and not serves(188, 128)  # rows of whole chunks of 16 bytes


@pytest.mark.parametrize("name", ["full", "causal", "softcap", "window", "seqused"])
def test_rows_of_192_128_are_selected(name: str) -> None:
    def selected(pair: tuple[int, int]) -> tuple[int, int]:
        p = _with_heads(replace(PROBLEMS[name], seqlen_q=2000), pair)
        config = flashattn.select_config(*device_shapes(p), **device_options(p)).config
        assert config.arch == Arch.SM90
        return config.d_head, config.d_head_v

    assert selected(PREFILL) == PREFILL and selected((136, 64)) == PREFILL
    assert selected((192, 192)) == (192, 0) and selected((192, 136)) == (192, 0)
    assert selected((128, 128)) == (128, 0) and selected((128, 64)) == (128, 0)
    assert selected((64, 128)) == (128, 0) and selected((200, 128)) == (256, 0)
