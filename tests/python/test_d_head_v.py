"""V and O whose head dimension is not that of Q and K, on every CPU kernel."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
from expectation import assert_agrees
from flashattn import oracle
from memory import E4M3
from paging import PagedProblem, run_paged
from problems import (
    AttentionProblem,
    check,
    check_every_kernel,
    configs_for,
    configs_for_pages,
    expected,
    make_inputs,
    p_type,
    run,
)

DTYPES = ("float32", "float16", "bfloat16", E4M3)
# d_head and d_head_v: DeepSeek's, MLA's, and sizes that no vector and no tile divides.
DIMS = [(192, 128), (576, 512), (64, 256), (128, 64), (1, 3), (3, 1), (72, 40), (33, 130)]

PREFILL = AttentionProblem(2, 130, 150, 4, 2, causal=True)  # packed keys
FEW = AttentionProblem(2, 1, 130, 8, 2)  # keys in place
SPLIT = AttentionProblem(1, 2, 1500, 8, 2, causal=True)  # partial results


def _with_dims(p: AttentionProblem, dims: tuple[int, int], dtype: str) -> AttentionProblem:
    return replace(p, d_head=dims[0], d_head_v=dims[1], dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("p", [PREFILL, FEW, SPLIT], ids=["prefill", "few", "split"])
def test_every_kernel_agrees_with_the_oracle(
    p: AttentionProblem, dims: tuple[int, int], dtype: str
) -> None:
    check_every_kernel(_with_dims(p, dims, dtype))


@pytest.mark.parametrize("group", [3, 8, 13, 16])
@pytest.mark.parametrize("dims", [(192, 128), (64, 96), (32, 256)], ids=str)
def test_rows_of_a_head_that_decodes(dims: tuple[int, int], group: int) -> None:
    p = replace(SPLIT, seqlen_q=1, n_heads=2 * group, batch=1)
    check_every_kernel(_with_dims(p, dims, "bfloat16"))


@pytest.mark.parametrize("q_dtype, o_dtype", [("float32", None), (None, "float32")])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_types_of_q_and_o(dtype: str, q_dtype: str | None, o_dtype: str | None) -> None:
    p = replace(PREFILL, q_dtype=q_dtype, o_dtype=o_dtype)
    check_every_kernel(_with_dims(p, (72, 136), dtype))


@pytest.mark.parametrize("layout", ["padded", "heads_first", "unaligned"])
@pytest.mark.parametrize("p", [PREFILL, FEW, SPLIT], ids=["prefill", "few", "split"])
def test_layouts(p: AttentionProblem, layout: str) -> None:
    check_every_kernel(_with_dims(replace(p, layouts=(layout,) * 4), (40, 72), "bfloat16"))


@pytest.mark.parametrize("page_size", [1, 19, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dims", [(192, 128), (16, 72), (1, 600)], ids=str)
@pytest.mark.parametrize("p", [PREFILL, FEW, SPLIT], ids=["prefill", "few", "split"])
def test_keys_in_pages_give_the_same_bits(
    p: AttentionProblem, dims: tuple[int, int], dtype: str, page_size: int
) -> None:
    p = _with_dims(p, dims, dtype)
    paged = PagedProblem(p, page_size)
    inputs = make_inputs(paged.dense)
    for config in configs_for_pages(paged.dense):
        o, lse = run(paged.dense, inputs, config)
        paged_o, paged_lse = run_paged(paged, inputs, config)
        np.testing.assert_array_equal(paged_o, o)
        np.testing.assert_array_equal(paged_lse, lse)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("p", [PREFILL, FEW, SPLIT], ids=["prefill", "few", "split"])
def test_v_is_a_view_of_k(p: AttentionProblem, dtype: str) -> None:
    """The cache of MLA holds V in the first elements of each row of K."""
    p = _with_dims(p, (96, 64), dtype)
    q, k, _ = make_inputs(p)
    inputs = [q, k, k[..., :64]]
    for config in configs_for(p):
        o, lse = run(p, inputs, config)
        found = expected(p, inputs, p_type(p, config), 4)
        assert_agrees(o, lse, found, f"replay: {p}, config={config!r}")


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_poison_in_a_value_reaches_only_the_rows_that_see_it(dtype: str, poison: float) -> None:
    p = _with_dims(PREFILL, (48, 112), dtype)
    for config in configs_for(p):
        q, k, v = make_inputs(p)
        clean, _ = run(p, [q, k, v], config)
        v[:, 100] = poison  # seen by queries 80 and on
        o, _ = run(p, [q, k, v], config)
        np.testing.assert_array_equal(o[:, :80], clean[:, :80])
        assert not np.isfinite(o[:, 80:].astype(np.float32)).any()


def test_sums_of_many_keys() -> None:
    check_every_kernel(_with_dims(replace(FEW, seqlen_k=20000, batch=1), (24, 56), "float32"))


def test_partial_results_are_combined() -> None:
    p = _with_dims(replace(FEW, batch=1), (24, 56), "float32")
    q, k, v = make_inputs(p)
    halves = [
        flashattn.flash_attn_func(q, k[:, part], v[:, part], return_lse=True)
        for part in (slice(0, 60), slice(60, None))
    ]
    o = flashattn.flash_combine(*(np.stack(x) for x in zip(*halves)))
    np.testing.assert_allclose(o, oracle.attention(q, k, v)[0], atol=1e-5)


def test_the_scale_is_that_of_d_head() -> None:
    p = _with_dims(replace(PREFILL, softmax_scale=24**-0.5), (24, 56), "float32")
    inputs = make_inputs(p)
    o, _ = check(p, inputs)
    np.testing.assert_array_equal(run(replace(p, softmax_scale=None), inputs)[0], o)


def test_shapes_that_do_not_fit() -> None:
    q, k, v = make_inputs(_with_dims(FEW, (24, 56), "float32"))
    with pytest.raises(ValueError, match=r"v has shape \(2, 129, 2, 56\), k has \(2, 130, 2, 24\)"):
        flashattn.flash_attn_func(q, k, v[:, 1:])
    with pytest.raises(ValueError, match=r"v has d_head_v \(last axis\) 0"):
        flashattn.flash_attn_func(q, k, v[..., :0])
    with pytest.raises(ValueError, match=r"out has shape \(2, 1, 8, 24\), not \(2, 1, 8, 56\)"):
        flashattn.flash_attn_func(q, k, v, out=np.empty_like(q))
