"""A few query rows per K/V head, whose kernels read keys in place."""

from dataclasses import replace

import flashattn
import numpy as np
import pytest
from flashattn.oracle import Mask
from problems import AttentionProblem, check_every_kernel, configs_for, make_inputs, run

FEW = AttentionProblem(1, 1, 1000, 16, 2, 128, dtype="bfloat16")


@pytest.mark.parametrize("d_head", [32, 40, 64, 96, 128, 256])
@pytest.mark.parametrize("group", [3, 4, 5, 8, 9, 16, 17])
def test_rows_of_a_head(group: int, d_head: int) -> None:
    check_every_kernel(replace(FEW, n_heads=2 * group, d_head=d_head, seqlen_k=333))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("d_head", [40, 72, 128])
@pytest.mark.parametrize("group", [13, 20, 32])
def test_rows_of_a_head_whose_keys_are_split(group: int, d_head: int, dtype: str) -> None:
    p = replace(FEW, n_heads=2 * group, d_head=d_head, seqlen_k=1500, dtype=dtype)
    check_every_kernel(p)


@pytest.mark.parametrize("seqlen_k", [31, 32, 63, 64, 65, 95, 97, 1023, 1024, 1087, 4133])
def test_last_keys(seqlen_k: int) -> None:
    check_every_kernel(replace(FEW, seqlen_k=seqlen_k))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("n_heads_kv, d_head", [(1, 128), (3, 128), (8, 40), (20, 128)])
def test_heads_side_by_side(n_heads_kv: int, d_head: int, group: int, dtype: str) -> None:
    p = replace(FEW, n_heads=group * n_heads_kv, n_heads_kv=n_heads_kv, d_head=d_head, dtype=dtype)
    check_every_kernel(replace(p, seqlen_k=2100))


@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("window", [(-1, -1), (90, 0)], ids=str)
@pytest.mark.parametrize("seqlen_k", [1, 63, 64, 65, 127, 1000, 2113])
def test_single_rows(seqlen_k: int, window: tuple[int, int], softcap: float) -> None:
    p = replace(FEW, n_heads=5, n_heads_kv=5, seqlen_k=seqlen_k, dtype="float32")
    check_every_kernel(replace(p, window_size=window, softcap=softcap))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_poison_in_a_value_that_a_single_row_does_not_see(poison: float) -> None:
    p = replace(FEW, n_heads=5, n_heads_kv=5, dtype="float32", window_size=(90, 0))
    for config in configs_for(p):
        q, k, v = make_inputs(p)
        clean, _ = run(p, [q, k, v], config)
        v[:, : FEW.seqlen_k - 91] = poison
        o, _ = run(p, [q, k, v], config)
        np.testing.assert_array_equal(o, clean)


@pytest.mark.parametrize("layout", ["padded", "heads_first", "unaligned"])
def test_layouts(layout: str) -> None:
    check_every_kernel(replace(FEW, batch=2, layouts=(layout,) * 4))


@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("values", ["wide", "one_large_key", "identical_keys", "growing"])
def test_values(values: str, softcap: float) -> None:
    check_every_kernel(replace(FEW, values=values, softcap=softcap))


@pytest.mark.parametrize("window", [(-1, -1), (500, -1), (90, 0)], ids=str)
@pytest.mark.parametrize("seqlen_q", [2, 3, 4, 5, 16])
@pytest.mark.parametrize("group", [1, 4])
def test_rows_that_see_different_keys(group: int, seqlen_q: int, window: tuple[int, int]) -> None:
    p = replace(FEW, seqlen_q=seqlen_q, n_heads=2 * group, window_size=window, seqlen_k=2500)
    check_every_kernel(replace(p, causal=True))


@pytest.mark.parametrize("n_last", [1, 2, 3, 40])
def test_rows_that_see_nothing_of_the_last_keys(n_last: int) -> None:
    """There are eight splits of 320 keys; some are seen only by the last one, two or three queries,
    or by all four. One thread takes all heads together."""
    flashattn.set_num_threads(1)
    p = replace(FEW, seqlen_q=4, n_heads=8, seqlen_k=2560 + n_last, causal=True)
    q, k, v = make_inputs(p)
    q[...], k[...] = np.abs(q), -np.abs(k)
    check_every_kernel(replace(p, softmax_scale=4.0), [q, k, v])


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("key", [407, 408, 497, 498, 499])
def test_poison_in_a_value_reaches_only_the_rows_that_see_it(key: int, poison: float) -> None:
    """The three rows see keys 407 to 497, 408 to 498 and 409 to 499."""
    p = replace(FEW, seqlen_q=3, seqlen_k=500, n_heads=8, causal=True, window_size=(90, 0))
    sees = Mask(True, 90, 0).visible(3, 500)[:, key]
    for config in configs_for(p):
        q, k, v = make_inputs(p)
        clean, _ = run(p, [q, k, v], config)
        v[:, key] = poison
        o, _ = run(p, [q, k, v], config)
        np.testing.assert_array_equal(o[:, ~sees], clean[:, ~sees])
        assert not np.isfinite(o[:, sees].astype(np.float32)).any()


def test_scores_that_rise_with_every_block() -> None:
    """Each block's maximum lies far beyond that of the one before it, for one row or for all."""
    q, k, v = make_inputs(FEW)
    k[...] = np.linspace(-1, 1, FEW.seqlen_k)[:, None, None]
    q[...] = 1
    check_every_kernel(replace(FEW, softmax_scale=2.0), [q, k, v])
    q[:, :, 1::2] = -1
    check_every_kernel(replace(FEW, softmax_scale=2.0), [q, k, v])


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_poison_in_a_query_stays_in_its_row(poison: float) -> None:
    q, k, v = make_inputs(FEW)
    clean, _ = run(FEW, [q, k, v])
    q[0, 0, 3, 5] = poison
    o, _ = run(FEW, [q, k, v])
    assert np.isnan(o[0, 0, 3].astype(np.float32)).all()
    others = np.delete(np.arange(FEW.n_heads), 3)
    np.testing.assert_array_equal(o[0, 0, others], clean[0, 0, others])


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("key", [0, 40, 999])
def test_poison_in_a_key_is_its_heads_result(key: int, poison: float) -> None:
    q, k, v = make_inputs(FEW)
    q[...] = np.abs(q)
    clean, _ = run(FEW, [q, k, v])
    k[0, key, 0] = poison
    o, lse = run(FEW, [q, k, v])
    assert np.isnan(o[0, 0, :8].astype(np.float32)).all() and np.isnan(lse[0, :8]).all()
    np.testing.assert_array_equal(o[0, 0, 8:], clean[0, 0, 8:])


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("group", [2, 4, 8, 16])
@pytest.mark.parametrize("key,column", [(0, 6), (17, 7), (40, 64), (1499, 127)])
def test_poison_in_a_value_stays_in_its_column(
    key: int, column: int, group: int, poison: float
) -> None:
    p = replace(FEW, n_heads=2 * group, seqlen_k=1500)
    q, k, v = make_inputs(p)
    clean, _ = run(p, [q, k, v])
    v[0, key, 1, column] = poison
    o, _ = run(p, [q, k, v])
    poisoned = o[0, 0, group:, column].astype(np.float32)
    np.testing.assert_array_equal(poisoned, np.full(group, poison, np.float32))
    o[0, 0, group:, column] = clean[0, 0, group:, column]
    np.testing.assert_array_equal(o, clean)


def test_keys_of_minus_infinity_have_no_weight() -> None:
    q, k, v = make_inputs(FEW)
    q[...] = np.abs(q)
    k[:, 200:700] = -np.inf
    check_every_kernel(FEW, [q, k, v])
    k[...] = -np.inf
    check_every_kernel(FEW, [q, k, v])
