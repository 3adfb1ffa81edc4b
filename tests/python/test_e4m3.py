"""K and V of e4m3 on every kernel here: every code, scales of every kind, and memory that must not
be read.

The values of the codes are spelled out independently of ml_dtypes, which makes the arrays.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from itertools import product

import flashattn
import numpy as np
import pytest
from flashattn import _tensor, oracle
from flashattn._quant import Quant
from foreign_arrays import CudaArray, DLPackArray, InterfaceArray, TorchTensor, torch_module
from memory import E4M3, dtype_of
from problems import AttentionProblem, check, configs_for, make_inputs, run

# Ways of CPU kernels: few rows in place, packed keys of a task and of a head, split keys.
PROBLEMS = {
    "one_row": AttentionProblem(2, 1, 300, 4, 2, 64, E4M3),
    "single_rows": AttentionProblem(2, 1, 300, 3, 3, 128, E4M3),
    "few_rows": AttentionProblem(1, 3, 200, 6, 2, 72, E4M3, causal=True),
    "odd_columns": AttentionProblem(2, 5, 90, 2, 2, 37, E4M3),
    "one_block": AttentionProblem(1, 40, 130, 2, 1, 128, E4M3, causal=True),
    "many_rows": AttentionProblem(2, 150, 170, 4, 2, 64, E4M3),
    "window": AttentionProblem(1, 150, 170, 2, 2, 96, E4M3, window_size=(33, 5)),
    "split": AttentionProblem(1, 1, 5000, 8, 2, 64, E4M3),
    "split_rows": AttentionProblem(1, 30, 5000, 4, 2, 32, E4M3, causal=True),
    "softcap": AttentionProblem(1, 70, 90, 2, 1, 64, E4M3, softcap=2.0),
    "ragged": AttentionProblem(
        3, 90, 150, 4, 2, 64, E4M3, cu_seqlens_q=(0, 1, 1, 91), cu_seqlens_k=(0, 40, 60, 210)
    ),
    "in_use": AttentionProblem(3, 2, 100, 4, 2, 64, E4M3, causal=True, seqused_k=(0, 1, 77)),
}
TYPES = list(product(("float16", "bfloat16", "float32"), repeat=2))
every_problem = pytest.mark.parametrize("name", PROBLEMS)


def _scales(p: AttentionProblem, seed: int) -> tuple[tuple[float, ...], ...]:
    """Returns scales of both signs, one per batch entry and K/V head."""
    scales = np.random.default_rng(seed).uniform(0.2, 2, (p.batch, p.n_heads_kv))
    scales[:, ::2] *= -1
    return tuple(tuple(float(np.float32(x)) for x in row) for row in scales)


def _configs(p: AttentionProblem) -> list[str]:
    configs = configs_for(p)
    assert any(config.startswith("REFERENCE") for config in configs)
    return configs


def _table() -> np.ndarray:
    """Returns [256] in float64: sign, 4 bits of exponent with a bias of 7, 3 bits of mantissa."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, normal)
    magnitude[codes & 0x7F == 0x7F] = np.nan
    return np.where(codes & 0x80, -magnitude, magnitude)


def _same(actual: np.ndarray, expected: np.ndarray) -> bool:
    return bool(((actual == expected) | (np.isnan(actual) & np.isnan(expected))).all())


# ---- Elements ----


@pytest.mark.parametrize("d_head", [1, 7, 16, 24, 37, 64, 128, 200])
@pytest.mark.parametrize("packed", [False, True])
def test_every_code_has_its_value(d_head: int, packed: bool) -> None:
    """A query sees one key, so that O is V, and LSE the score. Packed: each of a sequence's
    queries."""
    codes = (np.arange(256)[:, None] + 5 * np.arange(d_head)) % 256
    shape = (1, 256, 1, d_head) if packed else (256, 1, 1, d_head)
    v = codes.astype(np.uint8).view(dtype_of(E4M3)).reshape(shape)
    k = np.zeros_like(v)
    k[..., d_head // 2] = np.arange(256, dtype=np.uint8).view(k.dtype).reshape(shape[:3])
    batch, seqlen = shape[:2]
    p = AttentionProblem(
        batch, seqlen, seqlen, 1, 1, d_head, E4M3, window_size=(0, 0), softmax_scale=1.0
    )
    q = np.zeros(shape, np.float32)
    q[..., d_head // 2] = 1
    table = _table()
    for config in _configs(p):
        o, lse = run(p, [q, k, v], config)
        finite = np.isfinite(table)
        assert _same(lse.reshape(256), table), config
        assert _same(o.reshape(256, d_head)[finite], table[codes][finite]), config
        assert np.isnan(o.reshape(256, d_head)[~finite]).all(), config


@every_problem
@pytest.mark.parametrize("types", TYPES, ids=str)
def test_agrees_with_the_oracle(name: str, types: tuple[str, str]) -> None:
    p = replace(PROBLEMS[name], q_dtype=types[0], o_dtype=types[1])
    p = replace(p, k_descale=_scales(p, 1), v_descale=_scales(p, 2))
    for config in [None, *_configs(p)]:
        check(p, config=config)


@every_problem
def test_bits_are_those_of_the_same_values_in_fp16(name: str) -> None:
    p = replace(PROBLEMS[name], o_dtype="float32", q_dtype="float16")
    wide = replace(p, dtype="float16")
    q, k, v = make_inputs(p)
    halves = [q, k.astype(np.float16), v.astype(np.float16)]
    for config in _configs(p):
        expected = run(wide, halves, config.replace("E4M3", "FP16"))
        for a, b in zip(run(p, [q, k, v], config), expected):
            assert a.tobytes() == b.tobytes(), config


# ---- Scales ----


@every_problem
def test_one_number_is_an_array_of_it_and_strides_are_free(name: str) -> None:
    p = PROBLEMS[name]
    q, k, v = make_inputs(p)
    options = p.call_options()
    shape = (p.batch, p.n_heads_kv)
    full = {"k_descale": np.full(shape, 1.25, np.float32), "v_descale": np.full(shape, 3, "f4")}
    call = flashattn.flash_attn_func if p.cu_seqlens_q is None else flashattn.flash_attn_varlen_func
    names = ("max_seqlen_q", "max_seqlen_k", "cu_seqlens_q", "cu_seqlens_k")
    if p.cu_seqlens_q is None:
        options = {key: value for key, value in options.items() if key not in names}
    else:
        options.update({key: np.array(options[key], np.int32) for key in names[2:]})
    if p.seqused_k is not None:
        options["seqused_k"] = np.array(p.seqused_k, np.int32)
    expected = call(q, k, v, **{**options, **full})
    one = {"k_descale": 1.25, "v_descale": np.float32(3)}
    assert call(q, k, v, **{**options, **one}).tobytes() == expected.tobytes()
    repeated = {key: np.broadcast_to(x[:1, :1], shape) for key, x in full.items()}
    assert call(q, k, v, **{**options, **repeated}).tobytes() == expected.tobytes()
    turned = {key: np.ascontiguousarray(x.T).T for key, x in full.items()}
    assert call(q, k, v, **{**options, **turned}).tobytes() == expected.tobytes()


@pytest.mark.parametrize("k_descale", [0.0, -0.0, -3.0, 1e-30, 1e-45, np.nan], ids=str)
@pytest.mark.parametrize("seqlen_q", [1, 40])
def test_any_scale_of_k(k_descale: float, seqlen_q: int) -> None:
    p = AttentionProblem(2, seqlen_q, 90, 4, 2, 64, E4M3, k_descale=k_descale, causal=True)
    for config in _configs(p):
        check(p, config=config)


@pytest.mark.parametrize("v_descale", [0.0, -3.0, 1e-30, 1e36, np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.parametrize("seqlen_q", [1, 40])
def test_any_scale_of_v(v_descale: float, seqlen_q: int) -> None:
    p = AttentionProblem(2, seqlen_q, 90, 4, 2, 64, E4M3, v_descale=v_descale)
    q, k, v = make_inputs(p)
    v = np.abs(v.astype(np.float32)).clip(0.25, 2).astype(v.dtype)  # infinities of one sign
    for config in _configs(p):
        check(p, [q, k, v], config)


def test_a_scale_that_is_not_finite_stays_in_its_head() -> None:
    scales = ((1.0, np.nan), (np.inf, 1.0))
    p = AttentionProblem(2, 3, 90, 4, 2, 64, E4M3, k_descale=scales)
    for config in _configs(p):
        o = run(p, config=config)[0]
        assert np.isfinite(o[0, :, :2]).all() and np.isfinite(o[1, :, 2:]).all()
        assert np.isnan(o[0, :, 2:]).all() and np.isnan(o[1, :, :2]).all()


# ---- NaN ----


@every_problem
def test_codes_of_nan_that_nobody_sees_do_not_matter(name: str) -> None:
    p = replace(PROBLEMS[name], seed=3)
    if p.cu_seqlens_k is not None or p.seqused_k is not None:
        pytest.skip("lengths of its own")
    p = replace(p, seqused_k=(p.seqlen_k // 2,) * p.batch)
    q, k, v = make_inputs(p)
    hidden = [x.copy() for x in (k, v)]
    for x in hidden:
        x[:, p.seqlen_k // 2 :] = np.nan
    for config in _configs(p):
        expected = run(p, [q, k, v], config)
        for a, b in zip(run(p, [q, *hidden], config), expected):
            assert a.tobytes() == b.tobytes(), config


@every_problem
def test_codes_of_nan_that_are_seen_are_nan(name: str) -> None:
    p = PROBLEMS[name]
    if p.cu_seqlens_k is not None:
        pytest.skip("padded problems alone")
    q, k, v = make_inputs(p)
    v[:, 7, :, 5] = np.nan
    k[:, 50, 0, 3] = np.nan
    for config in _configs(p):
        check(p, [q, k, v], config)


# ---- Selection, and arrays of other libraries ----


def test_families_of_bf16_products_leave_e4m3_to_others() -> None:
    p = AttentionProblem(1, 40, 90, 2, 1, 64, E4M3, "bfloat16")
    q, k, v = make_inputs(p)
    config = flashattn.select_config(q, k, v).config
    assert config.dtype == flashattn.DType.E4M3
    for arch in (flashattn.Arch.AMX, flashattn.Arch.AVX512_BF16, flashattn.Arch.NEON_BF16):
        with pytest.raises(LookupError, match="dtype is 4"):
            flashattn.lookup_kernel(replace(config, arch=arch))


def test_other_types_are_refused() -> None:
    p = AttentionProblem(1, 4, 9, 2, 1, 64, E4M3, "bfloat16")
    q, k, v = make_inputs(p)
    with pytest.raises(NotImplementedError, match="q.dtype is FLASH_DTYPE_E4M3"):
        flashattn.flash_attn_func(v, q, q)
    with pytest.raises(ValueError, match="out_dtype is 'float8_e4m3fn'"):
        flashattn.flash_attn_func(q, k, v, out_dtype=E4M3)
    with pytest.raises(ValueError, match="out is float8_e4m3fn"):
        flashattn.flash_attn_func(q, k, v, out=np.empty(q.shape, k.dtype))
    with pytest.raises(NotImplementedError, match="one of K and V is of FLASH_DTYPE_E4M3, both"):
        flashattn.flash_attn_func(q, k, v.astype(q.dtype))
    with pytest.raises(ValueError, match="k is uint8: not"):
        flashattn.flash_attn_func(q, k.view(np.uint8), v.view(np.uint8))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"k_descale": np.ones((1, 2), np.float32)}, r"k_descale has shape \(1, 2\), not \(1, 1\)"),
        ({"v_descale": np.ones((1, 1))}, "v_descale is float64, not float32"),
        ({"v_descale": np.ones(1, np.float32)}, r"v_descale has shape \(1,\)"),
    ],
    ids=str,
)
def test_scales_must_fit(options: dict[str, object], message: str) -> None:
    q, k, v = make_inputs(AttentionProblem(1, 4, 9, 2, 1, 64, E4M3))
    with pytest.raises(ValueError, match=message):
        flashattn.flash_attn_func(q, k, v, **options)


def test_other_types_have_no_scales() -> None:
    q, k, v = make_inputs(AttentionProblem(1, 4, 9, 2, 1, 64))
    with pytest.raises(ValueError, match="quant.k_scale is given, and k.dtype is 3"):
        flashattn.flash_attn_func(q, k, v, k_descale=1.0)


def test_arrays_of_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = make_inputs(AttentionProblem(1, 4, 9, 2, 1, 64, E4M3))
    scale = np.full((1, 1), 2, np.float32)
    expected = flashattn.flash_attn_func(q, k, v, k_descale=2)
    exported = [DLPackArray(x) for x in (k, v)]
    interfaces = [InterfaceArray(x) for x in (k, v)]
    for x in interfaces:
        x.dtype = k.dtype
    for kv in (exported, interfaces):
        assert (flashattn.flash_attn_func(q, *kv, k_descale=DLPackArray(scale)) == expected).all()
    monkeypatch.setitem(sys.modules, "torch", torch_module())
    tensors = [TorchTensor(x) for x in (q, k, v)]
    o = flashattn.flash_attn_func(*tensors, k_descale=TorchTensor(scale))
    assert (o.array == expected).all()
    assert (flashattn.flash_attn_func(*tensors, k_descale=2).array == expected).all()


def test_a_number_goes_to_the_device_of_q(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_module())
    q = TorchTensor(np.zeros((1, 4, 2, 64), np.float16), "cuda", 0)
    view = _tensor.tensor_view(q, "q", 4)
    quant = Quant(q, view, (1, 1), 0)
    quant.set("v_descale", "v_scale", 2.5)
    assert ctypes.c_float.from_address(quant.struct.v_scale).value == 2.5
    assert quant.struct.k_scale is None
    with pytest.raises(ValueError, match="v_descale is on the CPU, q on CUDA device 0"):
        quant.set("v_descale", "v_scale", np.ones((1, 1), np.float32))
    with pytest.raises(ValueError, match="k_descale is a number, and q a CudaArray in CUDA memory"):
        Quant(CudaArray((1,)), view, (1, 1), 0).set("k_descale", "k_scale", 1)


def test_the_oracle_decodes() -> None:
    p = AttentionProblem(2, 4, 9, 4, 2, 64, E4M3)
    q, k, v = make_inputs(p)
    scales = np.array(_scales(p, 5), np.float32).astype(np.float64)
    decoded = [x.astype(np.float64) * scales[:, None, :, None] for x in (k, v)]
    found = oracle.attention(q, k, v, k_descale=scales, v_descale=scales)
    for a, b in zip(found, oracle.attention(q, *decoded)):
        assert (a == b).all()
