"""flash_quantise() against numpy, and what quantising costs attention."""

from __future__ import annotations

import ctypes

import flashattn
import ml_dtypes
import numpy as np
import pytest
from flashattn import _abi, oracle
from flashattn._library import last_error, library
from memory import E4M3, dtype_of
from pairwise import combined

DTYPES = ("float16", "bfloat16", "float32")
D_HEADS = (1, 37, 64, 96, 128, 512)
ENDS = (0, 1, 1, 41, 70)


def _random(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * rng.uniform(0.1, 3, shape[-2:]) + rng.standard_normal(
        shape[-1]
    )
    return x.astype(dtype_of(dtype))


def _hadamard(d_head: int) -> np.ndarray:
    """Returns the matrix [d_head, d_head]: blocks of Sylvester's, in float64."""
    n = min(d_head & -d_head, 256)
    block = np.ones((1, 1))
    while len(block) < n:
        block = np.block([[block, block], [block, -block]])
    return np.kron(np.eye(d_head // n), block / np.sqrt(n))


def _decoded(found: flashattn.Quantised, n_heads: int) -> np.ndarray:
    """Returns the values of padded codes in float64."""
    scale = found.descale.astype(np.float64)
    if scale.ndim == 2:
        scale = np.repeat(scale, n_heads // scale.shape[1], 1)[:, None, :, None]
    return found.codes.astype(np.float64) * scale


def _values(x: np.ndarray, *, minus_mean: bool = False, hadamard: bool = False) -> np.ndarray:
    """Returns what is to be quantised of a padded x, in float64."""
    values = x.astype(np.float64)
    if minus_mean:
        values = values - values.mean(1, keepdims=True)
    return values @ _hadamard(x.shape[-1]) if hadamard else values


def _assert_close(found: flashattn.Quantised, values: np.ndarray) -> None:
    """Asserts that each code is the nearest one, and the largest of each scale 448."""
    n_heads = values.shape[-2]
    error = np.abs(_decoded(found, n_heads) - values)
    scale = found.descale.astype(np.float64)
    if scale.ndim == 2:
        scale = np.repeat(scale, n_heads // scale.shape[1], 1)[:, None, :, None]
    step = np.maximum(np.abs(values) * 2.0**-4, scale * 2.0**-10)
    assert (error <= step * 1.0001 + np.abs(values).max() * 1e-6).all()
    codes = np.abs(found.codes.astype(np.float32))
    assert codes.max() == 448 and np.isfinite(codes).all()


@combined(
    dtype=DTYPES,
    d_head=D_HEADS,
    tokens=(False, True),
    minus_mean=(False, True),
    hadamard=(False, True),
)
def test_codes_are_the_nearest(
    dtype: str, d_head: int, tokens: bool, minus_mean: bool, hadamard: bool
) -> None:
    x = _random((2, 70, 4, d_head), dtype)
    options = {"minus_mean": minus_mean, "hadamard": hadamard}
    found = flashattn.quantise(x, tokens=tokens, **options)
    assert found.codes.dtype == dtype_of(E4M3) and found.codes.shape == x.shape
    assert found.descale.shape == ((2, 70, 4, 1) if tokens else (2, 4))
    _assert_close(found, _values(x, **options))
    largest = np.abs(_values(x, **options)).max(-1 if tokens else (1, 3), keepdims=tokens)
    np.testing.assert_allclose(found.descale, largest / 448, rtol=1e-5)
    if minus_mean:
        np.testing.assert_allclose(found.mean, x.astype(np.float64).mean(1), rtol=1e-6, atol=1e-6)
    else:
        assert found.mean is None


@pytest.mark.parametrize("n_scales", [1, 2, 4])
def test_heads_share_a_scale(n_scales: int) -> None:
    x = _random((2, 30, 4, 64))
    found = flashattn.quantise(x, n_scales=n_scales)
    _assert_close(found, _values(x))
    largest = np.abs(x).reshape(2, 30, n_scales, -1).max((1, 3))
    np.testing.assert_array_equal(found.descale, largest / np.float32(448))


@pytest.mark.parametrize("tokens", [False, True])
def test_a_ragged_batch_is_its_sequences(tokens: bool) -> None:
    x = _random((ENDS[-1], 3, 64), "bfloat16")
    options = {"tokens": tokens, "minus_mean": True, "hadamard": True}
    found = flashattn.quantise(x, cu_seqlens=list(ENDS), max_seqlen=40, **options)
    assert found.descale.shape == ((70, 3, 1) if tokens else (4, 3))
    for b, (begin, end) in enumerate(zip(ENDS, ENDS[1:])):
        own = flashattn.quantise(x[None, begin:end], **options)
        assert found.codes[begin:end].tobytes() == own.codes.tobytes()
        scale = found.descale[begin:end] if tokens else found.descale[b]
        assert scale.tobytes() == own.descale.tobytes()
        assert found.mean[b].tobytes() == own.mean.tobytes()


def test_strides_and_threads_change_no_bit() -> None:
    x = _random((2, 200, 6, 128), "float16")
    turned = np.ascontiguousarray(x.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3)
    repeated = np.broadcast_to(x[:, :1], x.shape)
    expected = flashattn.quantise(x, minus_mean=True, hadamard=True)
    before = flashattn.num_threads()
    for threads in (1, 5):
        flashattn.set_num_threads(threads)
        found = flashattn.quantise(turned, minus_mean=True, hadamard=True)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found, expected))
    flashattn.set_num_threads(before)
    found, whole = flashattn.quantise(repeated), flashattn.quantise(repeated.copy())
    assert found.codes.tobytes() == whole.codes.tobytes()


# ---- Numbers at the ends of their range ----


def test_what_is_not_finite_is_nan_and_no_scale_knows_of_it() -> None:
    x = _random((1, 50, 2, 64))
    clean = flashattn.quantise(x)
    x[0, 3, 0, 5], x[0, 9, 1, 7], x[0, 9, 1, 8] = np.nan, np.inf, -np.inf
    found = flashattn.quantise(x)
    bad = ~np.isfinite(x)
    assert np.isnan(found.codes.astype(np.float32))[bad].all()
    assert found.codes[~bad].tobytes() == clean.codes[~bad].tobytes()
    smooth = flashattn.quantise(x, minus_mean=True)
    assert (np.isnan(smooth.codes.astype(np.float32)) == bad).all()
    expected = np.nanmean(np.where(bad, np.nan, x.astype(np.float64)), 1)
    np.testing.assert_allclose(smooth.mean, expected, rtol=1e-5, atol=1e-6)


def test_nan_spreads_over_what_is_turned_together() -> None:
    x = _random((1, 5, 1, 96))
    x[0, 2, 0, 40] = np.nan
    found = np.isnan(flashattn.quantise(x, hadamard=True).codes.astype(np.float32))
    assert found[0, 2, 0, 32:64].all() and found.sum() == 32


@pytest.mark.parametrize("largest", [0.0, 1e-45, 1e-38, 1e-30, 1e30, 3.4e38])
@pytest.mark.parametrize("tokens", [False, True])
def test_any_magnitude(largest: float, tokens: bool) -> None:
    x = (np.linspace(-1, 1, 64).reshape(1, 2, 1, 32) * largest).astype(np.float32)
    found = flashattn.quantise(x, tokens=tokens)
    assert (found.descale >= 2.0**-126).all() and np.isfinite(found.descale).all()
    error = np.abs(_decoded(found, 1) - x).max()
    assert error <= max(largest * 2.0**-4, 2.0**-136)
    assert largest > 0 or (found.descale == 1).all()


@pytest.mark.parametrize("shape", [(0, 5, 2, 8), (2, 0, 2, 8)])
def test_nothing_to_quantise(shape: tuple[int, ...]) -> None:
    found = flashattn.quantise(np.zeros(shape, np.float32), minus_mean=True)
    assert (found.descale == 1).all() and not found.mean.any()


# ---- Attention ----


@pytest.mark.parametrize("q_tokens", [False, True])
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("hadamard", [False, True])
def test_attention_of_quantised_arrays(q_tokens: bool, smooth: bool, hadamard: bool) -> None:
    q, k, v = (
        _random((2, n, h, 64), "bfloat16", i) for i, (n, h) in enumerate([(9, 4)] + [(300, 2)] * 2)
    )
    options = {"q_tokens": q_tokens, "smooth": smooth, "hadamard": hadamard, "causal": True}
    o, lse = flashattn.flash_attn_fp8(q, k, v, return_lse=True, out_dtype="float32", **options)
    assert flashattn.flash_attn_fp8(q, k, v, **options).dtype == q.dtype
    n_scales = None if q_tokens else 2
    of_q = flashattn.quantise(q, n_scales=n_scales, tokens=q_tokens, hadamard=hadamard)
    of_k = flashattn.quantise(k, minus_mean=smooth, hadamard=hadamard)
    values = [_decoded(of_q, 4), _decoded(of_k, 2), _decoded(flashattn.quantise(v), 2)]
    expected, of_scores = oracle.attention(*values, causal=True)
    np.testing.assert_allclose(o, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    if smooth:
        means = np.repeat(of_k.mean, 2, 1).astype(np.float64)
        of_scores += np.einsum("bshd,bhd->bhs", q.astype(np.float64), means) / 8
    np.testing.assert_allclose(lse, of_scores, rtol=1e-5, atol=1e-5)
    exact, _ = oracle.attention(q, k, v, causal=True)
    assert np.linalg.norm(o - exact) <= 0.1 * np.linalg.norm(exact)


ENDS_Q = (0, 3, 3, 9, 20)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("q_tokens", [False, True])
def test_attention_of_ragged_batches(kind: str, q_tokens: bool) -> None:
    """Each sequence is what it is alone: of q and k, of q beside padded k, of padded q."""
    torch = pytest.importorskip("torch") if kind == "torch" else None
    q, k, v = (
        _random((n, h, 64), "float16", i)
        for i, (n, h) in enumerate([(ENDS_Q[-1], 4)] + [(ENDS[-1], 2)] * 2)
    )
    options = {"q_tokens": q_tokens, "causal": True, "return_lse": True}
    of_q = {"cu_seqlens_q": ENDS_Q, "max_seqlen_q": 11}
    of_k = {"cu_seqlens_k": ENDS, "max_seqlen_k": 40}

    def call(q: np.ndarray, k: np.ndarray, v: np.ndarray, **lengths: object) -> list[np.ndarray]:
        if torch is None:
            return flashattn.flash_attn_fp8(q, k, v, **lengths, **options)
        for name in {"cu_seqlens_q", "cu_seqlens_k"} & lengths.keys():
            lengths[name] = torch.tensor(lengths[name], dtype=torch.int32)
        found = flashattn.flash_attn_fp8(*map(torch.from_numpy, (q, k, v)), **lengths, **options)
        return [x.numpy() for x in found]

    def assert_is(found: tuple, alone: tuple) -> None:
        assert found[0].tobytes() == alone[0].tobytes()
        np.testing.assert_allclose(found[1], alone[1], rtol=1e-6, atol=1e-6)

    o, lse = call(q, k, v, **of_q, **of_k)
    for b in range(len(ENDS) - 1):
        at, keys = slice(*ENDS_Q[b : b + 2]), slice(*ENDS[b : b + 2])
        alone = call(q[None, at], k[None, keys], v[None, keys])
        assert_is((o[at], lse[:, at]), (alone[0][0], alone[1][0]))
    padded = [np.stack([x[:40]] * 4) for x in (k, v)]
    o, lse = call(q, *padded, **of_q)
    for b in range(len(ENDS) - 1):
        at = slice(*ENDS_Q[b : b + 2])
        alone = call(q[None, at], *(x[None, 0] for x in padded))
        assert_is((o[at], lse[:, at]), (alone[0][0], alone[1][0]))
    o, lse = call(np.stack([q] * 4), k, v, **of_k)
    for b in range(len(ENDS) - 1):
        keys = slice(*ENDS[b : b + 2])
        alone = call(q[None], k[None, keys], v[None, keys])
        assert_is((o[b], lse[b]), (alone[0][0], alone[1][0]))


def test_smoothing_needs_scores_that_may_shift() -> None:
    q, k, v = (_random((1, 40, 2, 64)) for _ in range(3))
    with pytest.raises(ValueError, match="smooth is True, and softcap is given"):
        flashattn.flash_attn_fp8(q, k, v, smooth=True, softcap=5.0)
    sinks = np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="smooth is True, and sinks is given"):
        flashattn.flash_attn_fp8(q, k, v, smooth=True, sinks=sinks)
    o = flashattn.flash_attn_fp8(q, k, v, sinks=sinks)
    exact, _ = oracle.attention(q, k, v, sinks=sinks)
    assert np.linalg.norm(o - exact) <= 0.08 * np.linalg.norm(exact)


def _channels(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Three columns have a mean of 8, as those of K of language models have."""
    k = rng.standard_normal(shape)
    k[..., :3] += 8
    return k


def test_the_mean_and_the_turn_pay_where_columns_have_means() -> None:
    rng = np.random.default_rng(2)
    q, v = (rng.standard_normal((1, 512, 1, 128)).astype(np.float32) for _ in range(2))
    q[..., :2] *= 4
    k = _channels(q.shape, rng).astype(np.float32)
    exact, _ = oracle.attention(q, k, v)

    def error(**options: bool) -> float:
        o = flashattn.flash_attn_fp8(q, k, v, q_tokens=False, **options)
        return float(np.linalg.norm(o - exact) / np.linalg.norm(exact))

    plain = error(smooth=False, hadamard=False)
    assert error(smooth=True, hadamard=False) < 0.75 * plain
    assert error(smooth=True, hadamard=True) < 0.75 * plain


# ---- torch ----


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    arrays = [_random((2, 40, 2, 64), "float16", i) for i in range(3)]
    tensors = [torch.from_numpy(x) for x in arrays]
    found = flashattn.quantise(tensors[1], minus_mean=True)
    expected = flashattn.quantise(arrays[1], minus_mean=True)
    assert found.codes.dtype == torch.float8_e4m3fn
    assert found.codes.view(torch.uint8).numpy().tobytes() == expected.codes.tobytes()
    o, lse = flashattn.flash_attn_fp8(*tensors, return_lse=True)
    o_of_arrays, lse_of_arrays = flashattn.flash_attn_fp8(*arrays, return_lse=True)
    assert o.numpy().tobytes() == o_of_arrays.tobytes()
    np.testing.assert_allclose(lse.numpy(), lse_of_arrays, rtol=1e-6, atol=1e-6)


# ---- Refusals ----


@pytest.mark.parametrize(
    "options, message",
    [
        ({"n_scales": 3}, "n_scales is 3: it does not divide n_heads, 4"),
        (
            {"n_scales": 2, "tokens": True},
            "n_scales is 2 and n_heads 4: with FLASH_QUANTISE_TOKENS",
        ),
        ({"max_seqlen": 5}, "max_seqlen is given without cu_seqlens"),
    ],
    ids=str,
)
def test_what_python_refuses(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flashattn.quantise(_random((1, 5, 4, 8)), **options)


def test_ragged_arguments_must_fit() -> None:
    x = _random((7, 4, 8))
    with pytest.raises(ValueError, match="cu_seqlens ends at 6, x has 7 tokens"):
        flashattn.quantise(x, cu_seqlens=[0, 6], max_seqlen=6)
    with pytest.raises(ValueError, match="cu_seqlens is given without max_seqlen"):
        flashattn.quantise(x, cu_seqlens=[0, 7])
    with pytest.raises(ValueError, match="x is float8_e4m3fn"):
        flashattn.quantise(np.zeros((1, 5, 4, 8), ml_dtypes.float8_e4m3fn))


INVALID, UNSUPPORTED = _abi.FLASH_ERROR_INVALID_ARGUMENT, _abi.FLASH_ERROR_UNSUPPORTED


@pytest.mark.parametrize(
    "member, value, status, message",
    [
        ("flags", 1, INVALID, "flags is 0x1: unknown bits 0x1"),
        ("flags", _abi.FLASH_QUANTISE_MINUS_MEAN, INVALID, "FLASH_QUANTISE_MINUS_MEAN alone"),
        ("mean", 64, INVALID, "FLASH_QUANTISE_MINUS_MEAN alone"),
        ("device", 5, INVALID, "device is 0x5"),
        ("reserved32", 1, UNSUPPORTED, "reserved is not zero"),
        ("n_scales", 3, INVALID, "not a multiple of n_scales, 3"),
        ("n_heads", 0, INVALID, "n_heads is 0"),
        ("d_head", 0, INVALID, "d_head is 0"),
        ("seqlen", -1, INVALID, "seqlen is -1"),
        ("scale", None, INVALID, "scale is NULL"),
    ],
    ids=str,
)
def test_what_the_library_refuses(member: str, value: object, status: int, message: str) -> None:
    x, codes, scale = (
        np.ones((2, 5, 4, 8), np.float32),
        np.full((2, 5, 4, 8), 7, np.uint8),
        np.ones(8, "f"),
    )

    def tensor(array: np.ndarray, dtype: int) -> _abi.flash_tensor_t:
        return _abi.flash_tensor_t(array.ctypes.data, 160, 32, 8, dtype)

    args = _abi.flash_quantise_args_t(
        x=tensor(x, _abi.FLASH_DTYPE_FP32), codes=tensor(codes, _abi.FLASH_DTYPE_E4M3),
        scale=scale.ctypes.data, batch=2, seqlen=5, n_heads=4, d_head=8,
    )  # fmt: skip
    assert library().flash_quantise(args, None) == 0, last_error()
    codes[...] = 7
    setattr(args, member, value)
    assert library().flash_quantise(args, None) == status
    assert message in last_error() and (codes == 7).all()
    assert ctypes.sizeof(args) == args.struct_size
