"""Dropout of attention weights: which are dropped, the same ones by every kernel and in gradients,
and what is refused."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace

import flashattn
import gradient_problems
import numpy as np
import pytest
from bias_cases import BiasCase
from direct import ForwardCall, assert_refused
from flashattn import _abi, dropout
from gradient_problems import GradientProblem
from hypothesis import given
from hypothesis import strategies as st
from problems import (
    AttentionProblem,
    check,
    check_every_kernel,
    configs_for,
    make_inputs,
    rounds_p,
    run,
)
from strategies import attention_problems, random_problems

STATE = (0x0123456789ABCDEF, 2**35 + 11)
P = AttentionProblem(2, 150, 190, 4, 2, 64, causal=True, dropout_p=0.3, rng_state=STATE)
RAGGED = replace(P, batch=3, cu_seqlens_q=(0, 1, 1, 150), cu_seqlens_k=(0, 77, 190, 300))
TYPES = ("float32", "float16", "bfloat16")


# ---- The bits ----


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_has_the_known_answers(counter: tuple, key: tuple, words: tuple) -> None:
    """They are those of Random123's kat_vectors, philox4x32 10."""
    assert dropout.philox4x32(np.array(counter, np.uint64), key).tolist() == list(words)


@functools.lru_cache(maxsize=1)
def _bits(offset: int = 0, seed: int = 1) -> np.ndarray:
    return dropout.bits((seed, offset), 0, 1, 0, 512, 512)


def test_bits_are_spread_evenly() -> None:
    """By a chi-square of their upper byte, and one of pairs of neighbours, of 5 sigma."""
    bits = _bits()
    for numbers, n in ((bits >> 8, 256), ((bits[:, ::2] >> 12) * 16 + (bits[:, 1::2] >> 12), 256)):
        counts = np.bincount(numbers.astype(int).ravel(), minlength=n)
        expected = numbers.size / n
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi_square - (n - 1)) < 5 * (2 * (n - 1)) ** 0.5


@pytest.mark.parametrize(
    "other",
    [
        dropout.bits((1, 1), 0, 1, 0, 512, 512),
        dropout.bits((1, 2**32), 0, 1, 0, 512, 512),
        dropout.bits((2, 0), 0, 1, 0, 512, 512),
        dropout.bits((1 + 2**32, 0), 0, 1, 0, 512, 512),
        dropout.bits((1, 0), 0, 1, 1, 512, 512),
        dropout.bits((1, 0), 1, 1, 0, 512, 512)[::-1],
    ],
    ids=["offset", "high offset", "seed", "high seed", "head", "sequence"],
)
def test_all_numbers_of_the_state_count(other: np.ndarray) -> None:
    assert abs((_bits() == other).mean() - 2**-16) < 2e-4


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_as_many_weights_stay_as_the_probability_says(p: float) -> None:
    kept = dropout.kept(p, STATE, 2, 3, 400, 300)
    sigma = (p * (1 - p) / kept.size) ** 0.5
    assert abs((1 - kept.mean()) - p) < 5 * sigma + 2**-17


def _weights(p: AttentionProblem, config: str | None) -> np.ndarray:
    """Returns what the kernel multiplied each weight by: with K of zeros and V of ones at one key,
    O is one row of weights."""
    q = np.zeros(p.q_shape, np.float32)
    k = np.zeros(p.k_shape, np.float32)
    v = np.zeros(p.v_shape, np.float32)
    for j in range(p.seqlen_k):
        v[:, j, :, j] = 1
    o, _ = run(p, [q, k, v], config)
    return o.transpose(0, 2, 1, 3)[..., : p.seqlen_k] * p.seqlen_k


@pytest.mark.parametrize("p_drop", [0.25, 0.5])
def test_kernels_drop_what_numpy_says(p_drop: float) -> None:
    p = AttentionProblem(2, 50, 100, 4, 2, 100, dropout_p=p_drop, rng_state=STATE)
    kept = dropout.kept(p_drop, STATE, 2, 4, 50, 100)
    configs = configs_for(p)
    assert len(configs) >= 1
    for config in configs:
        found = _weights(p, config)
        assert ((found != 0) == kept).all(), config
        np.testing.assert_allclose(found[kept], 1 / (1 - p_drop), rtol=1e-5)


# ---- Against the oracle ----


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("p", [P, RAGGED], ids=["padded", "ragged"])
def test_prefill(p: AttentionProblem, dtype: str) -> None:
    p = replace(p, dtype=dtype)
    assert configs_for(p)
    check_every_kernel(p)
    check_every_kernel(replace(p, causal=False, window_size=(60, 10), softcap=2.0))
    check_every_kernel(replace(p, sinks=(0.5, -1.0, 2.0, 0.0), d_head_v=24))


@pytest.mark.parametrize("dtype", TYPES)
def test_few_queries_over_many_keys(dtype: str) -> None:
    """Keys are split among tasks, which read them in place."""
    p = replace(P, seqlen_q=1, seqlen_k=5000, dtype=dtype)
    check_every_kernel(p)
    check_every_kernel(replace(p, seqlen_q=3, batch=1))
    check_every_kernel(replace(p, seqlen_k=190, leftpad_k=(0, 100), seqused_k=(150, 190)))


@pytest.mark.parametrize("bias", [BiasCase(slopes=1), BiasCase(kind="bits", slopes=2)], ids=str)
def test_beside_slopes_and_masks(bias: BiasCase) -> None:
    check_every_kernel(replace(P, bias=bias))
    check_every_kernel(replace(RAGGED, bias=bias, diagonal_offset=-5))


@random_problems
@given(
    attention_problems(),
    st.floats(0.001, 0.95),
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    st.data(),
)
def test_random_problems_agree_with_the_oracle(
    p: AttentionProblem, p_drop: float, state: tuple[int, int], data: st.DataObject
) -> None:
    p = replace(p, dropout_p=p_drop, rng_state=state)
    configs = [c for c in configs_for(p) if p.averages_rounding or not rounds_p(p, c)]
    if configs:
        check(p, config=data.draw(st.sampled_from(configs), label="config"), roundings=4)


def _gradient_configs(dtype: str) -> list[tuple[str, str]]:
    """Returns the rows of dQ and of dK and dV of each family that runs here."""
    rows = [
        kernel.config
        for kernel in flashattn.kernels()
        if kernel.is_runnable and kernel.config.arch < flashattn.Arch.SM80
    ]
    drops = flashattn.Feature.DROPOUT
    rows = [c for c in rows if c.features & drops and c.dtype == flashattn.DType[dtype]]
    of = {op: {c.arch: str(c) for c in rows if c.op == op} for op in gradient_problems.OPS}
    dq, dkv = (of[op] for op in gradient_problems.OPS)
    return [(dq[arch], dkv[arch]) for arch in dq]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "p",
    [
        P,
        RAGGED,
        replace(P, causal=False, softcap=2.0, sinks=(0.5, -1.0, 2.0, 0.0)),
        replace(P, window_size=(50, 0), bias=BiasCase(slopes=1, kind="bits")),
        replace(P, seqlen_q=3, leftpad_k=(5, 0), seqused_k=(100, 190), d_head_v=40),
        # dQ and dK are 0 but for the rounding of O: a row of one key has no other weight to give
        replace(P, seqlen_q=239, seqlen_k=1, causal=False),
    ],
    ids=["causal", "ragged", "sinks", "bias", "lengths", "one_key"],
)
def test_gradients(p: AttentionProblem, dtype: str) -> None:
    names = {"float32": "FP32", "float16": "FP16", "bfloat16": "BF16"}
    configs = _gradient_configs(names[dtype])
    assert configs
    for pair in configs:
        g = GradientProblem(replace(p, dtype=dtype), has_d_lse=p.batch == 2)
        gradient_problems.check(g, configs=pair)


def test_gradients_are_those_of_the_forward_pass() -> None:
    """By central differences of the library's own O, with the mask fixed."""
    p = replace(P, batch=1, seqlen_q=20, seqlen_k=30, d_head=8, n_heads=2, n_heads_kv=1)
    rng = np.random.default_rng(1)
    inputs = {n: x.astype(np.float32) for n, x in zip("qkv", make_inputs(p))}
    options = {"causal": True, "dropout_p": 0.3, "rng_state": STATE}
    call = functools.partial(flashattn.flash_attn_func, return_lse=True, **options)
    o, lse = call(**inputs)
    d_o = rng.standard_normal(o.shape).astype(np.float32)
    found = flashattn.flash_attn_backward(d_o, *inputs.values(), o, lse, **options)
    for name, gradient in zip("qkv", found):
        direction = rng.standard_normal(inputs[name].shape).astype(np.float32)
        step = np.float32(0.01)
        losses = [
            (d_o * call(**{**inputs, name: inputs[name] + side * step * direction})[0]).sum(
                dtype=np.float64
            )
            for side in (1, -1)
        ]
        difference = (losses[0] - losses[1]) / (2 * float(step))
        assert abs(difference - (gradient * direction).sum(dtype=np.float64)) < 2e-2, name


# ---- The same weights however a batch lies, and whoever computes ----


def test_layouts_of_a_batch_do_not_matter() -> None:
    """Sequences of a ragged batch have the weights of a padded one's, at the same number."""
    q, k, v = make_inputs(replace(P, batch=3))
    options = {"dropout_p": 0.3, "rng_state": STATE, "causal": True}
    padded = flashattn.flash_attn_func(q, k, v, **options)
    ragged = flashattn.flash_attn_varlen_func(
        *(x.reshape(-1, *x.shape[2:]) for x in (q, k, v)),
        cu_seqlens_q=np.arange(4, dtype=np.int32) * 150,
        cu_seqlens_k=np.arange(4, dtype=np.int32) * 190,
        max_seqlen_q=150,
        max_seqlen_k=190,
        **options,
    )
    assert ragged.reshape(padded.shape).tobytes() == padded.tobytes()


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_threads_do_not_change_bits(n_threads: int) -> None:
    p = replace(P, seqlen_q=40, seqlen_k=2000)
    threads = flashattn.num_threads()
    for config in configs_for(p):
        expected = run(p, config=config)
        try:
            flashattn.set_num_threads(n_threads)
            found = run(p, config=config)
        finally:
            flashattn.set_num_threads(threads)
        assert found[0].tobytes() == expected[0].tobytes(), config


def test_a_probability_of_0_changes_no_bit() -> None:
    q, k, v = make_inputs(P)
    plain = flashattn.flash_attn_func(q, k, v)
    for p_drop in (0.0, 2.0**-18):
        found = flashattn.flash_attn_func(q, k, v, dropout_p=p_drop, rng_state=STATE)
        assert found.tobytes() == plain.tobytes()
    selected = flashattn.select_config(q, k, v, dropout_p=0.0)
    assert "dropout" not in str(selected.config)
    selected = flashattn.select_config(q, k, v, dropout_p=0.1, rng_state=STATE)
    assert "dropout" in str(selected.config)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_arrays_and_numbers_are_the_same_state(dtype: str) -> None:
    q, k, v = make_inputs(P)
    call = functools.partial(flashattn.flash_attn_func, q, k, v, dropout_p=0.3)
    of_array = call(rng_state=np.array(STATE, dtype))
    assert of_array.tobytes() == call(rng_state=STATE).tobytes()
    assert of_array.tobytes() != call(rng_state=(STATE[0], STATE[1] + 1)).tobytes()


def test_pointers_are_added_to_the_numbers() -> None:
    """Modulo 2^64."""
    call, expected = ForwardCall(), ForwardCall()
    more = np.array([2**64 - 5, 7], np.uint64)
    struct = _abi.flash_dropout_t(
        p=0.5, seed=8, offset=1, seed_ptr=more.ctypes.data, offset_ptr=more.ctypes.data + 8
    )
    plain = _abi.flash_dropout_t(p=0.5, seed=3, offset=8)
    results = []
    for of, s in ((call, struct), (expected, plain)):
        of.args.dropout = ctypes.addressof(s)
        assert of.run() == _abi.FLASH_SUCCESS
        results.append(of.o.take().tobytes())
    assert results[0] == results[1]


def test_what_is_added_lies_apart_from_outputs() -> None:
    for name in ("seed_ptr", "offset_ptr"):
        call = ForwardCall()
        struct = _abi.flash_dropout_t(p=0.5, **{name: call.o.array.ctypes.data + 16})
        call.args.dropout = ctypes.addressof(struct)
        words = [f"o overlaps dropout.{name}"]
        assert_refused(call.run(), _abi.FLASH_ERROR_INVALID_ARGUMENT, words)
        call.assert_untouched()


# ---- Refusals ----


@pytest.mark.parametrize("p_drop", [-0.1, 1.0, 1.5, float("nan")])
def test_no_probability(p_drop: float) -> None:
    q, k, v = make_inputs(P)
    with pytest.raises(ValueError, match="dropout.p is"):
        flashattn.flash_attn_func(q, k, v, dropout_p=p_drop, rng_state=STATE)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "rng_state is None"),
        ((1,), "rng_state has 1 values, not 2"),
        ((1, 2**64), "rng_state holds 18446744073709551616, which does not fit 64 bits"),
        (np.zeros(2, np.int32), "rng_state is int32, not int64 or uint64"),
        (np.zeros(3, np.int64), "not two integers beside each other"),
        (np.zeros(4, np.int64)[::2], "not two integers beside each other"),
    ],
)
def test_no_state(state: object, words: str) -> None:
    q, k, v = make_inputs(P)
    with pytest.raises(ValueError, match=words):
        flashattn.flash_attn_func(q, k, v, dropout_p=0.1, rng_state=state)


def test_pages_have_no_dropout() -> None:
    q, k, v = make_inputs(replace(P, batch=1, seqlen_k=64))
    with pytest.raises(NotImplementedError, match="K and V in pages have no dropout"):
        flashattn.flash_attn_func(
            q, k, v, page_table=np.zeros((1, 1), np.int32), seqused_k=np.array([64], np.int32),
            dropout_p=0.1, rng_state=STATE,
        )  # fmt: skip


def test_a_row_without_dropout_is_refused_by_name() -> None:
    q, k, v = make_inputs(P)
    config = "REFERENCE (FP32, any, 16, 1): causal+window+softcap+varlen+paged+bias"
    with pytest.raises(NotImplementedError, match="features"):
        flashattn.flash_attn_func(q, k, v, dropout_p=0.1, rng_state=STATE, config=config)
