"""K and V of e4m3 with more rows than decode kernels take, on each row that the device runs: every
code, scales of every kind, Q of both types, and memory that must not be read. test_gpu_caches.py
has their pages.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import flashattn
import numpy as np
import pytest
import torch
from cache_families import E4M3_PREFILL
from device_memory import upload
from flashattn import Arch
from gpu_problems import check, host_inputs, run, same_bits
from memory import E4M3, dtype_of
from problems import AttentionProblem

DENSE, PROBLEMS = E4M3_PREFILL.dense, E4M3_PREFILL.problems
TYPES = list(product(("float16", "bfloat16"), ("float16", "bfloat16", "float32")))
every_dense = pytest.mark.parametrize("config", DENSE, ids=str)
every_type = pytest.mark.parametrize("types", TYPES, ids="-".join)


every_problem = pytest.mark.parametrize("name", PROBLEMS)


def _of_row(
    p: AttentionProblem, config: flashattn.Config, types: tuple[str, str] = ("bfloat16",) * 2
) -> AttentionProblem:
    return replace(p, d_head=config.d_head, q_dtype=types[0], o_dtype=types[1])


def test_rows_are_there() -> None:
    is_sm90 = torch.cuda.get_device_capability() == (9, 0)
    for configs in (DENSE, E4M3_PREFILL.paged):
        archs = {config.arch for config in configs}
        anywhere = {Arch.SM80, Arch.SM80_WIDE}
        on_sm90 = {Arch.SM90, Arch.SM90_DECODE, Arch.SM90_WIDE}
        assert archs == (anywhere | on_sm90 if is_sm90 else anywhere)


# ---- The oracle ----


@every_dense
@every_type
@every_problem
def test_row_agrees_with_the_oracle(
    name: str, types: tuple[str, str], config: flashattn.Config
) -> None:
    check(_of_row(PROBLEMS[name], config, types), config)


@every_dense
@pytest.mark.parametrize("narrower", [16, 32])
def test_smaller_heads_are_padded(narrower: int, config: flashattn.Config) -> None:
    p = _of_row(PROBLEMS["causal"], config)
    check(replace(p, d_head=config.d_head - narrower), config)


@every_dense
@pytest.mark.parametrize("layout", ["padded", "heads_first"])
def test_strides_are_free(layout: str, config: flashattn.Config) -> None:
    check(replace(_of_row(PROBLEMS["causal"], config), layouts=(layout,) * 4), config)


@every_dense
@every_type
def test_every_code_has_its_value(types: tuple[str, str], config: flashattn.Config) -> None:
    """Each query sees only the key beside it, so that O is V, and LSE the score; NaN keys are
    hidden."""
    d_head, shape = config.d_head, (1, 256, 1, config.d_head)
    codes = (np.arange(256)[:, None] + 5 * np.arange(d_head)) % 256
    v = codes.astype(np.uint8).view(dtype_of(E4M3)).reshape(shape)
    k = np.zeros_like(v)
    k[..., d_head // 2] = np.arange(256, dtype=np.uint8).view(k.dtype).reshape(shape[:3])
    q = np.zeros(shape, dtype_of(types[0]))
    q[..., d_head // 2] = 1
    p = AttentionProblem(
        1, 256, 256, 1, 1, d_head, E4M3, *types, window_size=(0, 0), softmax_scale=1.0
    )
    o, lse = run(p, [upload(x) for x in (q, k, v)], config)
    scores = k[..., d_head // 2].astype(np.float32).reshape(256)
    sees_nan = np.isnan(scores)
    o, values = (x.astype(np.float32).reshape(256, d_head) for x in (o, v))
    rounding = 1e-4 if types[1] == "float32" else 0  # of the weight of a large score, 1
    np.testing.assert_allclose(o[~sees_nan], values[~sees_nan], rtol=rounding)
    np.testing.assert_allclose(lse.reshape(256), scores, rtol=1e-5, atol=1e-5)
    assert np.isnan(o[sees_nan]).all()


# ---- Q and scales ----


@every_dense
@pytest.mark.parametrize("exponent", [-100, -30, 30, 100])
def test_q_of_bf16_may_be_beyond_fp16(exponent: int, config: flashattn.Config) -> None:
    p = _of_row(PROBLEMS["causal"], config)
    p = replace(p, softmax_scale=2.0 ** (-exponent - 3))
    q, k, v = host_inputs(p)
    q = (q.astype(np.float64) * 2.0**exponent).astype(q.dtype)
    q[:, 5] = 0
    check(p, config, [q, k, v])


@every_dense
def test_rows_of_q_differ_in_size(config: flashattn.Config) -> None:
    p = _of_row(PROBLEMS["window"], config)
    q, k, v = host_inputs(p)
    sizes = 2.0 ** np.random.default_rng(1).integers(-126, 2, q.shape[:-1])
    check(p, config, [(q.astype(np.float64) * sizes[..., None]).astype(q.dtype), k, v])


@every_dense
@every_type
@pytest.mark.parametrize("k_descale", [0.0, -0.0, -3.0, 1e-30, 1e-45, np.nan], ids=str)
def test_any_scale_of_k(k_descale: float, types: tuple[str, str], config: flashattn.Config) -> None:
    for softcap in (0.0, 2.0):
        p = replace(PROBLEMS["causal"], k_descale=k_descale, softcap=softcap)
        check(_of_row(p, config, types), config)


@every_dense
@every_type
@pytest.mark.parametrize("v_descale", [0.0, -3.0, 1e-30, np.inf, -np.inf, np.nan], ids=str)
def test_any_scale_of_v(v_descale: float, types: tuple[str, str], config: flashattn.Config) -> None:
    p = _of_row(replace(PROBLEMS["full"], v_descale=v_descale), config, types)
    q, k, v = host_inputs(p)
    v = np.abs(v.astype(np.float32)).clip(0.25, 2).astype(v.dtype)  # infinities of one sign
    check(p, config, [q, k, v])


@every_dense
def test_a_scale_that_is_not_finite_stays_in_its_head(config: flashattn.Config) -> None:
    scales = ((1.0, np.nan), (np.inf, 1.0))
    p = _of_row(replace(PROBLEMS["full"], k_descale=scales, v_descale=None), config)
    o = run(p, config=config)[0].astype(np.float32)
    assert np.isfinite(o[0, :, :2]).all() and np.isfinite(o[1, :, 2:]).all()
    assert np.isnan(o[0, :, 2:]).all() and np.isnan(o[1, :, :2]).all()


# ---- NaN ----


@every_dense
@pytest.mark.parametrize("name", ["full", "causal", "window", "softcap_causal"])
def test_codes_of_nan_that_nobody_sees_do_not_matter(name: str, config: flashattn.Config) -> None:
    p = _of_row(PROBLEMS[name], config)
    length = p.seqlen_k - 77
    p = replace(p, seqused_k=(length,) * p.batch)
    q, k, v = host_inputs(p)
    hidden = [x.copy() for x in (k, v)]
    for x in hidden:
        x[:, length:] = np.nan
    assert same_bits(check(p, config, [q, *hidden]), check(p, config, [q, k, v]))


@every_dense
@every_type
@pytest.mark.parametrize("name", ["full", "causal", "window", "softcap_causal"])
def test_codes_of_nan_that_are_seen_are_nan(
    name: str, types: tuple[str, str], config: flashattn.Config
) -> None:
    """Only rows that see them become NaN."""
    p = _of_row(PROBLEMS[name], config, types)
    q, k, v = host_inputs(p)
    v[:, p.seqlen_k - 20, :, 5] = np.nan
    v[:, 7, :, 9] = np.nan
    k[:, p.seqlen_k - 40, 0, 3] = np.nan
    check(p, config, [q, k, v])


# ---- Selection ----


@pytest.mark.parametrize("d_head", [40, 64, 80, 128, 200, 256])
@pytest.mark.parametrize("layout", ["contiguous", "shifted", "padded_by_three"])
def test_what_is_selected_agrees_with_the_oracle(layout: str, d_head: int) -> None:
    check(replace(PROBLEMS["causal"], q_dtype="bfloat16", d_head=d_head, layouts=(layout,) * 4))
