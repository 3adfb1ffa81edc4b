"""The cases that broke others, each on every kernel of this machine that serves it.

sizes      lengths around tiles; nothing at all; one key; more queries than keys
masks      first block hidden, windows of 0, wider than the keys, with more queries than keys
values     NaN and infinity in hidden and in visible places, every bit pattern of an element
memory     stride 0, padding, V a view of K, odd addresses, strides over 2^31, heads and
           batches over 65,535, more than 2^31 elements
heads      the ratios 1, 3, 5, 7, 8, 12
"""

import mmap
import os
from dataclasses import replace

import flashattn
import ml_dtypes
import numpy as np
import pytest
from flashattn.oracle import Mask
from memory import DTYPES, E4M3, arrange, dtype_of
from problems import (
    AttentionProblem,
    check,
    check_every_kernel,
    configs_for,
    make_inputs,
    run,
    runnable_kernels,
)

every_dtype = pytest.mark.parametrize("dtype", DTYPES)


# ---- Sizes ----


@every_dtype
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 129])
def test_lengths(length: int, dtype: str) -> None:
    p = AttentionProblem(1, length, length, 2, 1, 64, dtype)
    check_every_kernel(p)
    check_every_kernel(replace(p, causal=True))


@pytest.mark.parametrize("length", [1000, 1023, 4097])
def test_long_lengths(length: int) -> None:
    check_every_kernel(AttentionProblem(1, length, length, 1, 1, 16, causal=True))
    check_every_kernel(AttentionProblem(1, 3, length, 4, 2, 64, "bfloat16"))


@pytest.mark.parametrize(
    "empty",
    [
        {"batch": 0},
        {"seqlen_q": 0},
        {"seqlen_k": 0},
        {"seqlen_q": 0, "seqlen_k": 0},
        {"seqused_k": (0, 0)},
    ],
    ids=str,
)
@pytest.mark.parametrize("causal", [False, True])
def test_empty(empty: dict, causal: bool) -> None:
    full = AttentionProblem(2, 5, 7, 2, 1, 8, causal=causal)
    check_every_kernel(replace(full, **empty))


def test_zero_length_sequences_in_a_ragged_batch() -> None:
    check_every_kernel(
        AttentionProblem(
            5,
            9,
            20,
            2,
            1,
            32,
            cu_seqlens_q=(0, 0, 4, 4, 13, 13),
            cu_seqlens_k=(0, 7, 7, 7, 27, 30),
            causal=True,
        )
    )


@pytest.mark.parametrize("side", ["cu_seqlens_q", "cu_seqlens_k"])
def test_ragged_batch_of_nothing_but_zero_lengths(side: str) -> None:
    check_every_kernel(AttentionProblem(3, 4, 4, 2, 1, 8, **{side: (0, 0, 0, 0)}))


def test_ragged_batch_of_no_sequences() -> None:
    p = AttentionProblem(0, 0, 0, 2, 1, 8, cu_seqlens_q=(0,), cu_seqlens_k=(0,))
    check_every_kernel(p)


def test_rows_without_a_key_are_zero_and_minus_infinity() -> None:
    """Masks are aligned bottom-right: of 9 queries over 4 keys the first 5 see nothing."""
    p = AttentionProblem(1, 9, 4, 2, 2, 40, causal=True)
    for config in configs_for(p):
        o, lse = check(p, config=config)
        assert (o[:, :5] == 0).all() and (lse[:, :, :5] == -np.inf).all()
        assert (o[:, 5:] != 0).any() and np.isfinite(lse[:, :, 5:]).all()


@pytest.mark.parametrize("dtype", [*DTYPES, E4M3])
@pytest.mark.parametrize("seqlen_q", [1, 5, 40, 300])
def test_one_key_with_a_score_of_zero_has_an_lse_of_zero(seqlen_q: int, dtype: str) -> None:
    p = AttentionProblem(1, seqlen_q, 1, 2, 1, 64, dtype)
    q, k, v = make_inputs(p)
    q[...] = 0
    for config in configs_for(p):
        _, lse = run(p, [q, k, v], config)
        assert (lse == 0).all(), config


# ---- Masks ----


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(0, 0), (0, -1), (-1, 0), (3, 2), (500, 500), (70, 0)], ids=str)
@pytest.mark.parametrize("lengths", [(150, 150), (40, 210), (210, 40)], ids=str)
def test_windows(lengths: tuple, window: tuple, causal: bool) -> None:
    p = AttentionProblem(1, *lengths, 2, 1, 24, causal=causal, window_size=window)
    check_every_kernel(p)


def test_window_hides_whole_blocks_before_the_first_visible_key() -> None:
    check_every_kernel(AttentionProblem(1, 70, 600, 1, 1, 64, window_size=(5, -1)))
    check_every_kernel(AttentionProblem(1, 600, 600, 1, 1, 64, window_size=(5, 3)))


def test_causal_is_a_window_to_the_left() -> None:
    p = AttentionProblem(1, 90, 130, 2, 1, 64)
    for config in configs_for(p):
        causal, _ = run(replace(p, causal=True), config=config)
        window, _ = run(replace(p, window_size=(-1, 0)), config=config)
        assert (causal == window).all()


# ---- Values ----


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("key", [68, 69])
@pytest.mark.parametrize("tensor", [1, 2], ids=["k", "v"])
@every_dtype
def test_poison_reaches_only_the_rows_that_see_it(
    dtype: str, tensor: int, key: int, poison: float
) -> None:
    """A key in the middle is NaN. Rows that do not see it keep their bits; others match the
    oracle."""
    p = AttentionProblem(1, 150, 150, 2, 1, 64, dtype, causal=True, window_size=(70, -1))
    hidden = ~Mask(True, 70, -1).visible(150, 150)[:, key]
    for config in configs_for(p):
        clean, clean_lse = run(p, config=config)
        inputs = make_inputs(p)
        inputs[tensor][:, key] = poison
        o, lse = run(p, inputs, config)
        assert (o[:, hidden] == clean[:, hidden]).all()
        assert (lse[:, :, hidden] == clean_lse[:, :, hidden]).all()
        if np.isnan(poison):
            assert np.isnan(o[:, ~hidden].astype(np.float32)).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_poison_beyond_seqused_k_never_shows(poison: float) -> None:
    p = AttentionProblem(2, 33, 140, 2, 1, 64, seqused_k=(70, 1))
    for config in configs_for(p):
        clean, _ = run(p, config=config)
        q, k, v = make_inputs(p)
        for x in (k, v):
            x[0, 70:] = poison
            x[1, 1:] = poison
        o, _ = check(p, [q, k, v], config)
        assert (o == clean).all()


def test_poison_in_a_query_stays_in_its_row() -> None:
    p = AttentionProblem(1, 70, 70, 4, 2, 64)
    for config in configs_for(p):
        clean, _ = run(p, config=config)
        q, k, v = make_inputs(p)
        q[0, 33, 1] = np.nan
        o, lse = run(p, [q, k, v], config)
        assert np.isnan(o[0, 33, 1]).all() and np.isnan(lse[0, 1, 33])
        o[0, 33, 1] = clean[0, 33, 1]
        assert (o == clean).all()


@every_dtype
def test_scores_of_minus_infinity_have_no_weight(dtype: str) -> None:
    p = AttentionProblem(1, 20, 150, 2, 1, 16, dtype)
    q, k, v = make_inputs(p)
    q[...] = np.abs(q.astype(np.float32)) + 0.5
    k[:, ::2] = -np.inf
    for config in configs_for(p):
        check(p, [q, k, v], config)


def test_row_of_nothing_but_minus_infinity_scores_is_empty() -> None:
    p = AttentionProblem(1, 3, 150, 1, 1, 16)
    q, k, v = make_inputs(p)
    q[...] = 1
    k[...] = -np.inf
    for config in configs_for(p):
        o, lse = check(p, [q, k, v], config)
        assert (o == 0).all() and (lse == -np.inf).all()


def test_scores_of_plus_infinity_give_nan() -> None:
    p = AttentionProblem(1, 3, 150, 1, 1, 16)
    q, k, v = make_inputs(p)
    q[...] = 1
    k[:, 77] = np.inf
    for config in configs_for(p):
        o, _ = run(p, [q, k, v], config)
        assert np.isnan(o).all()


@every_dtype
def test_infinite_scores_under_a_softcap_are_the_cap(dtype: str) -> None:
    p = AttentionProblem(1, 20, 150, 2, 1, 16, dtype, softcap=2.0)
    q, k, v = make_inputs(p)
    q[...] = np.abs(q.astype(np.float32)) + 0.5
    k[:, ::3] = np.inf
    k[:, 1::3] = -np.inf
    for config in configs_for(p):
        o, _ = check(p, [q, k, v], config)
        assert np.isfinite(o.astype(np.float32)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_one_key_gives_back_every_bit_pattern_of_v(dtype: str) -> None:
    """V has all 65,536 elements: subnormals, the largest, infinities, NaN."""
    p = AttentionProblem(1, 1, 1, 256, 256, 256, dtype)
    every = np.arange(2**16, dtype=np.uint16).view(dtype_of(dtype)).reshape(p.q_shape)
    zeros = np.zeros_like(every)
    for config in configs_for(p):
        o, lse = run(p, [zeros, zeros, every], config)
        np.testing.assert_array_equal(o.astype(np.float32), every.astype(np.float32))
        assert (lse == 0).all()


@every_dtype
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30], ids=str)
def test_large_and_small_values_of_v(dtype: str, scale: float) -> None:
    if dtype == "float16":
        scale = float(np.clip(scale, 1e-4, 1e4))
    p = AttentionProblem(1, 20, 150, 1, 1, 16, dtype)
    q, k, v = make_inputs(p)
    scaled = (v.astype(np.float64) * scale).astype(v.dtype)
    for config in configs_for(p):
        check(p, [q, k, scaled], config, unit=scale)


@every_dtype
@pytest.mark.parametrize(
    "values", ["wide", "one_large_key", "identical_keys", "growing", "soaring"]
)
def test_values_that_exercise_the_rescaling(values: str, dtype: str) -> None:
    check_every_kernel(AttentionProblem(1, 37, 700, 2, 1, 64, dtype, values=values))


def test_inputs_are_only_read() -> None:
    p = AttentionProblem(1, 70, 150, 4, 2, 64, causal=True)
    inputs = make_inputs(p)
    before = [x.copy() for x in inputs]
    run(p, inputs)
    assert all((x == y).all() for x, y in zip(inputs, before))


# ---- Memory ----


@every_dtype
@pytest.mark.parametrize("layout", ["padded", "heads_first", "unaligned"])
def test_layouts(layout: str, dtype: str) -> None:
    p = AttentionProblem(2, 33, 70, 4, 2, 40, dtype, layouts=(layout,) * 4)
    check_every_kernel(p)
    ragged = replace(p, cu_seqlens_q=(0, 33, 50), cu_seqlens_k=(0, 70, 75))
    check_every_kernel(ragged)


def test_q_k_v_packed_in_one_tensor() -> None:
    packed = np.random.default_rng(1).standard_normal((2, 70, 3, 4, 64)).astype(np.float32)
    inputs = [packed[:, :, i] for i in range(3)]
    check_every_kernel(AttentionProblem(2, 70, 70, 4, 4, 64), inputs)


def test_v_is_k() -> None:
    p = AttentionProblem(1, 33, 70, 4, 2, 64)
    q, k, _ = make_inputs(p)
    check_every_kernel(p, [q, k, k])


def test_v_is_a_view_into_wider_rows_of_k() -> None:
    wide = np.random.default_rng(1).standard_normal((1, 70, 2, 96)).astype(np.float32)
    p = AttentionProblem(1, 33, 70, 4, 2, 64)
    check_every_kernel(p, [make_inputs(p)[0], wide[..., :64], wide[..., 32:]])


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["batch", "seq", "head"])
def test_stride_zero_repeats(axis: int) -> None:
    p = AttentionProblem(3, 4, 4, 3, 3, 32)
    inputs = [np.broadcast_to(np.take(x, [0], axis), x.shape) for x in make_inputs(p)]
    assert all(x.strides[axis] == 0 for x in inputs)
    check_every_kernel(p, inputs)


def test_unaligned_lengths() -> None:
    p = AttentionProblem(2, 20, 30, 2, 1, 32, cu_seqlens_q=(0, 3, 20), seqused_k=(11, 30))
    options = p.call_options()
    for name in ("cu_seqlens_q", "seqused_k"):
        values = np.array(options[name], np.int32)
        options[name] = arrange(values.reshape(1, -1), "contiguous")[0]
        odd = np.ndarray(values.shape, np.int32, np.zeros(64, np.uint8), 1)
        odd[...] = values
        options[name] = odd
    expected, _ = run(p)
    assert (flashattn.flash_attn_varlen_func(*make_inputs(p), **options) == expected).all()


@pytest.mark.parametrize("batch, n_heads", [(65_537, 1), (1, 65_537), (66_000, 2)])
def test_batch_and_heads_over_65535(batch: int, n_heads: int) -> None:
    """With one key, O is V and LSE the score, so that no oracle is needed."""
    p = AttentionProblem(batch, 1, 1, n_heads, n_heads, 4)
    q, k, v = make_inputs(p)
    scores = (q.astype(np.float64) * k).sum(axis=-1) / 2
    for config in configs_for(p):
        o, lse = run(p, [q, k, v], config)
        assert (o == v).all()
        np.testing.assert_allclose(lse, scores.transpose(0, 2, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["batch", "seq", "head"])
def test_strides_over_2_to_the_31(axis: int) -> None:
    """Four tensors in a sparse mapping have elements more than 2^31 elements apart."""
    p = AttentionProblem(2, 2, 2, 2, 2, 8, "float16")
    for config in configs_for(p):
        with _sparse_arrays(p.q_shape, np.float16, axis, 4) as (q, k, v, o):
            for far, near in zip((q, k, v), make_inputs(p)):
                far[...] = near
            expected, _ = run(p, config=config)
            flashattn.flash_attn_func(q, k, v, out=o, config=config)
            assert (o == expected).all()
            del q, k, v, o


class _sparse_arrays:
    """Makes arrays of a shape whose `axis` has a stride of 2^31 + 7 elements."""

    def __init__(self, shape, dtype, axis: int, count: int) -> None:
        item = np.dtype(dtype).itemsize
        strides = [int(np.prod(shape[i + 1 :])) * item for i in range(len(shape))]
        strides[axis] = (2**31 + 7) * item
        near = int(np.prod(shape)) * item
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        try:
            self._memory = mmap.mmap(-1, strides[axis] * shape[axis] + count * near, flags)
        except OSError as error:
            pytest.skip(f"no room for a sparse mapping: {error}")
        self._arrays = [
            np.ndarray(shape, dtype, self._memory, i * near, strides) for i in range(count)
        ]

    def __enter__(self) -> list[np.ndarray]:
        return self._arrays

    def __exit__(self, *_: object) -> None:
        self._arrays.clear()


def _free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(_free_bytes() < 8 * 2**30, reason="needs 8 GiB of free memory")
def test_more_than_2_to_the_31_elements() -> None:
    """O alone has 2^31 + 2^18 elements; Q, K and V repeat one row, and with one key O is V."""
    shape = (2**13 + 1, 1, 2**10, 2**8)
    row = np.linspace(-2, 2, 2**8).astype(ml_dtypes.bfloat16)
    repeated = np.broadcast_to(row, shape)
    o = flashattn.flash_attn_func(repeated, repeated, repeated)
    assert o.size > 2**31
    for sample in (0, 2**12, 2**13 - 1, 2**13):
        assert (o[sample] == row).all()


# ---- Heads ----


@every_dtype
@pytest.mark.parametrize("ratio", [1, 3, 5, 7, 8, 12])
def test_grouped_queries(ratio: int, dtype: str) -> None:
    p = AttentionProblem(1, 27, 70, 2 * ratio, 2, 48, dtype, causal=True)
    check_every_kernel(p)
    check_every_kernel(replace(p, seqlen_q=1))


def test_every_family_was_exercised() -> None:
    """This guards this file: the problems above ran on every family that this machine can run."""
    p = AttentionProblem(dtype="bfloat16")
    families = {kernel.config.arch for kernel in runnable_kernels()}
    assert {flashattn.Config.parse(config).arch for config in configs_for(p)} == families
