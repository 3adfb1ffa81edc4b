"""Q of e4m3 beside K and V of it, with scales by head and by token, on every kernel here."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
from flashattn._attention import _launch
from flashattn._problem import Problem
from memory import E4M3, dtype_of
from problems import AttentionProblem, check, configs_for, make_inputs, run

OUTPUTS = ("float16", "bfloat16", "float32")
# Ways of CPU kernels: rows in place, packed keys of a task and of a head, split keys.
PROBLEMS = {
    "one_row": AttentionProblem(2, 1, 300, 4, 2, 64, E4M3),
    "few_rows": AttentionProblem(1, 3, 200, 6, 2, 72, E4M3, causal=True),
    "odd_columns": AttentionProblem(2, 5, 90, 2, 2, 37, E4M3),
    "one_block": AttentionProblem(1, 40, 130, 2, 1, 128, E4M3, causal=True),
    "many_rows": AttentionProblem(2, 150, 170, 4, 2, 64, E4M3),
    "split": AttentionProblem(1, 1, 5000, 8, 2, 64, E4M3),
    "softcap": AttentionProblem(1, 70, 90, 2, 1, 64, E4M3, softcap=2.0, d_head_v=40),
    "ragged": AttentionProblem(
        3, 90, 150, 4, 2, 64, E4M3, cu_seqlens_q=(0, 1, 1, 91), cu_seqlens_k=(0, 40, 60, 210)
    ),
    "in_use": AttentionProblem(
        3, 2, 100, 4, 2, 64, E4M3, causal=True, seqused_q=(2, 1, 0), seqused_k=(0, 1, 77)
    ),
}
PROBLEMS = {name: replace(p, q_dtype=E4M3) for name, p in PROBLEMS.items()}
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


@every_problem
@pytest.mark.parametrize("of_o", OUTPUTS)
@pytest.mark.parametrize("by", ["head", "token"])
def test_agrees_with_the_oracle(name: str, of_o: str, by: str) -> None:
    p = replace(PROBLEMS[name], o_dtype=of_o, seed=4)
    p = replace(p, k_descale=_scales(p, 1), v_descale=_scales(p, 2))
    p = replace(p, **({"q_descale": _scales(p, 3)} if by == "head" else {"q_token_scales": 5}))
    for config in [None, *_configs(p)]:
        check(p, config=config)


@every_problem
def test_bits_are_those_of_the_same_values_in_fp32(name: str) -> None:
    p = replace(PROBLEMS[name], o_dtype="float32", q_descale=0.75)
    q, k, v = make_inputs(p)
    wide = replace(p, q_dtype="float32", q_descale=None)
    for config in _configs(p):
        expected = run(wide, [q.astype(np.float32) * np.float32(0.75), k, v], config)
        for a, b in zip(run(p, [q, k, v], config), expected):
            assert a.tobytes() == b.tobytes(), config


@pytest.mark.parametrize("seqlen_q", [1, 40])
def test_every_code_has_its_value(seqlen_q: int) -> None:
    """LSE of one key is the score, which is one element of Q."""
    p = AttentionProblem(256, seqlen_q, 1, 1, 1, 24, E4M3, q_dtype=E4M3, softmax_scale=1.0)
    codes = np.arange(256, dtype=np.uint8).view(dtype_of(E4M3))
    q, k, v = (np.zeros(shape, dtype_of(E4M3)) for shape in (p.q_shape, p.k_shape, p.v_shape))
    q[..., 7] = codes[:, None, None]
    k[..., 7] = 1
    for config in _configs(p):
        lse = run(p, [q, k, v], config)[1]
        expected = np.broadcast_to(codes.astype(np.float32)[:, None, None], lse.shape)
        assert np.array_equal(lse, expected, equal_nan=True), config


@pytest.mark.parametrize("scale", [0.0, -3.0, 1e-30, 1e-45, np.nan], ids=str)
@pytest.mark.parametrize("seqlen_q", [1, 40])
def test_any_scale(scale: float, seqlen_q: int) -> None:
    p = AttentionProblem(2, seqlen_q, 90, 4, 2, 64, E4M3, q_dtype=E4M3, q_descale=scale)
    for config in _configs(p):
        check(p, config=config)


def test_a_scale_that_is_not_finite_stays_in_its_row() -> None:
    p = AttentionProblem(2, 3, 90, 4, 2, 64, E4M3, q_dtype=E4M3, q_token_scales=1)
    q, k, v = make_inputs(p)
    scales = np.ones((2, 3, 4, 1), np.float32)
    scales[1, 2, 3], scales[0, 0, 1] = np.nan, np.inf
    o = flashattn.flash_attn_func(q, k, v, q_descale=scales, out_dtype="float32")
    bad = np.isnan(o).all(-1)
    assert bad[1, 2, 3] and bad[0, 0, 1] and bad.sum() == 2 and np.isfinite(o[~bad]).all()


def test_head_and_token_scales_multiply_each_other() -> None:
    p = AttentionProblem(2, 3, 90, 4, 2, 64, E4M3, q_dtype=E4M3)
    q, k, v = make_inputs(p)
    rng = np.random.default_rng(0)
    heads = rng.uniform(1, 2, (2, 2)).astype(np.float32)
    tokens = rng.uniform(1, 2, (2, 3, 4, 1)).astype(np.float32)
    both = tokens * np.repeat(heads, 2, 1)[:, None, :, None]
    for config in _configs(p):
        expected = flashattn.flash_attn_func(q, k, v, q_descale=both, config=config)
        call = Problem(q, k, v, {"q_descale": tokens})
        call._quant.struct.q_scale = heads.ctypes.data
        call._quant.struct.q_scale_stride_batch, call._quant.struct.q_scale_stride_head = 2, 1
        out = np.empty_like(expected)
        call.set_output(out, None)
        _launch(call, flashattn.config.resolve(config), q, None)
        assert out.tobytes() == expected.tobytes(), config


def test_scales_may_have_any_strides() -> None:
    p = replace(PROBLEMS["many_rows"], o_dtype="float32")
    q, k, v = make_inputs(p)
    tokens = np.random.default_rng(0).uniform(1, 2, (2, 4, 150)).astype(np.float32)
    turned = np.swapaxes(tokens, 1, 2)[..., None]
    for scale in (turned, np.broadcast_to(turned[:1, :, :1], turned.shape)):
        expected = flashattn.flash_attn_func(q, k, v, q_descale=np.ascontiguousarray(scale))
        found = flashattn.flash_attn_func(q, k, v, q_descale=scale)
        assert found.tobytes() == expected.tobytes()


def test_o_is_bfloat16_unless_it_is_named() -> None:
    q, k, v = make_inputs(PROBLEMS["few_rows"])
    assert flashattn.flash_attn_func(q, k, v).dtype == dtype_of("bfloat16")
    assert flashattn.flash_attn_func(q, k, v, out_dtype="float16").dtype == np.float16


# ---- Refusals ----


@pytest.mark.parametrize(
    "options, message",
    [
        ({"q_descale": np.ones((1, 3), np.float32)}, r"q_descale has shape \(1, 3\), not \(1, 1\)"),
        ({"q_descale": np.ones((1, 4, 2, 2), np.float32)}, r"not \(1, 4, 2, 1\)"),
        ({"q_descale": np.ones((1, 4, 2, 1))}, "q_descale is float64, not float32"),
    ],
    ids=str,
)
def test_scales_must_fit(options: dict[str, object], message: str) -> None:
    q, k, v = make_inputs(AttentionProblem(1, 4, 9, 2, 1, 64, E4M3, q_dtype=E4M3))
    with pytest.raises(ValueError, match=message):
        flashattn.flash_attn_func(q, k, v, **options)


@pytest.mark.parametrize(
    "scale, member",
    [(1.0, "q_scale"), (np.ones((1, 4, 2, 1), np.float32), "q_token_scale")],
    ids=["head", "token"],
)
def test_other_types_have_no_scales(scale: object, member: str) -> None:
    q, k, v = make_inputs(AttentionProblem(1, 4, 9, 2, 1, 64, E4M3))
    with pytest.raises(ValueError, match=rf"quant\.{member} is given, and q\.dtype is 3: Q of"):
        flashattn.flash_attn_func(q, k, v, q_descale=scale)


def test_k_and_v_of_other_types_are_refused() -> None:
    q, k, v = make_inputs(AttentionProblem(1, 4, 9, 2, 1, 64, E4M3, q_dtype=E4M3))
    message = r"q.dtype is FLASH_DTYPE_E4M3 \(4\), and k.dtype is 1"
    with pytest.raises(NotImplementedError, match=message):
        flashattn.flash_attn_func(q, k.astype(np.float16), v.astype(np.float16))


@pytest.mark.parametrize("arch", ["AMX", "AVX512_BF16", "NEON_BF16"])
def test_families_of_bf16_products_leave_it_to_others(arch: str) -> None:
    p = PROBLEMS["many_rows"]
    for kernel in flashattn.kernels():
        if str(kernel.config).startswith(f"{arch} (BF16"):
            support = flashattn.query_support(*make_inputs(p), config=kernel.config)
            assert not support and "dtype" in support.reason
