"""What SM80_MLA has beyond what test_gpu_mla.py checks of every row for latent attention: prefill,
tiles that end within a query, and what SM90_MLA cannot address.
"""

from __future__ import annotations

from dataclasses import replace

import flashattn
import pytest
import torch
from bias_cases import BiasCase
from cache_families import D_HEAD, D_HEAD_V, latent_tensors
from device_memory import upload
from flashattn import Arch, DType, Feature
from gpu_problems import (
    check_outputs,
    device_pages,
    expected_of,
    host_inputs,
    is_for_hopper_alone,
    mla_rows,
    numbers_of,
    run,
    same_bits,
    types_of,
)
from memory import dtype_of
from paging import PagedProblem
from problems import AttentionProblem

ROWS = [row.config for row in mla_rows() if row.config.arch == Arch.SM80_MLA]
DENSE = [config for config in ROWS if not config.features & Feature.PAGED]
PREFILL = AttentionProblem(2, 150, 330, 16, 1, D_HEAD, causal=True)
PROBLEMS = {
    "causal": PREFILL,
    "full": replace(PREFILL, causal=False, seqlen_k=70),
    "more queries than keys": replace(PREFILL, seqlen_k=90),
    "window": replace(PREFILL, causal=False, window_size=(100, 30)),
    "chunk": replace(PREFILL, attention_chunk=64),
    "softcap": replace(PREFILL, softcap=2.0),
    "ragged": AttentionProblem(
        4, 200, 300, 10, 1, D_HEAD, causal=True, cu_seqlens_q=(0, 200, 200, 203, 260),
        seqused_k=(300, 5, 200, 57),
    ),
    "two K/V heads": replace(PREFILL, n_heads=14, n_heads_kv=2),
}  # fmt: skip
BIASES = {
    "float16": BiasCase(slopes=2, kind="float16"),
    "float32": BiasCase(kind="float32", n_keys=91, from_end=True),
    "bits": BiasCase(slopes=1, kind="bits", hidden=0.9),
    "factors": BiasCase(kind="float16", repeats="bh", factors=True),
}

pytestmark = pytest.mark.skipif(not ROWS, reason="needs compute capability 8.0 or newer")
every_dense_row = pytest.mark.parametrize("config", DENSE, ids=str)
every_problem = pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)


def _check(p: AttentionProblem, config: flashattn.Config | None = None) -> None:
    q, k, _ = host_inputs(p)
    tensors = latent_tensors(upload(q), upload(k))
    k = numbers_of(p, k)
    expected = expected_of(q, k, k[..., :D_HEAD_V], o_dtype=dtype_of(p.types[2]), **p.options())
    check_outputs(p, run(p, tensors, config), expected, config, f"replay: {p}")


@every_dense_row
@every_problem
def test_prefill(p: AttentionProblem, config: flashattn.Config) -> None:
    _check(replace(p, **types_of(config)), config)


@pytest.mark.parametrize("config", [c for c in DENSE if c.features & Feature.BIAS], ids=str)
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("name", ["full", "window", "ragged"])
def test_prefill_with_alibi_and_masks(name: str, bias: BiasCase, config: flashattn.Config) -> None:
    _check(replace(PROBLEMS[name], bias=bias, **types_of(config)), config)


@every_dense_row
@pytest.mark.parametrize("heads", [1, 5, 17, 33, 100])
def test_tiles_end_within_a_query(heads: int, config: flashattn.Config) -> None:
    p = AttentionProblem(2, 3, 520, heads, 1, D_HEAD, causal=True, seqused_k=(520, 77))
    _check(replace(p, **types_of(config)), config)


@pytest.mark.parametrize("config", [c for c in DENSE if c.dtype == DType.E4M3], ids=str)
@pytest.mark.parametrize("exponent", [60, -60])
def test_a_power_of_two_of_q_changes_no_bit(exponent: int, config: flashattn.Config) -> None:
    """Q of bf16 is multiplied as fp16, which has a smaller range."""
    p = AttentionProblem(1, 2, 700, 40, 1, D_HEAD, causal=True, softmax_scale=1 / 16)
    p = replace(p, **types_of(config))
    q, k, _ = host_inputs(p)
    tensors = latent_tensors(upload(q), upload(k))
    expected = run(p, tensors, config)
    scaled = replace(p, softmax_scale=p.softmax_scale / 2.0**exponent)
    o, lse = run(scaled, [tensors[0] * 2.0**exponent, *tensors[1:]], config)
    assert same_bits((o, lse), expected)


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16, DType.E4M3])
def test_pools_that_tma_cannot_address(dtype: DType) -> None:
    """Pages that are no whole number of tokens apart are those of a pool without such gaps."""
    config = next((c for c in ROWS if c.dtype == dtype and c.features & Feature.PAGED), None)
    if config is None:
        assert is_for_hopper_alone() and dtype != DType.E4M3
        pytest.skip("a library for compute capability 9.0 alone refuses these pools")
    p = AttentionProblem(3, 2, 500, 16, 1, D_HEAD, causal=True, seqused_k=(500, 70, 311))
    p = replace(p, **types_of(config))
    (q, pool, _), where = device_pages(PagedProblem(p, 16))
    page = pool[0].numel()
    gap = 16 // pool.itemsize
    apart = torch.zeros(len(pool), page + gap, dtype=pool.dtype, device="cuda")[:, :page]
    apart = apart.unflatten(1, pool.shape[1:]).copy_(pool)
    in_pages = replace(p, seqused_k=None)
    expected = run(in_pages, latent_tensors(q, pool), config, **where)
    assert same_bits(run(in_pages, latent_tensors(q, apart), config, **where), expected)
    selected = flashattn.select_config(*latent_tensors(q, apart), causal=True, **where)
    assert selected.config.arch == Arch.SM80_MLA


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_selection_takes_fewer_rows_where_there_are_few(dtype: torch.dtype, has_bias: bool) -> None:
    """SM90_MLA comes first on Hopper, but adds no bias where it converts K."""
    hopper = torch.cuda.get_device_capability() == (9, 0)
    is_for_sm90 = hopper and not (has_bias and dtype == torch.float8_e4m3fn)
    for heads, B_r in ((16, 32), (32, 32), (33, 64), (128, 64)):
        q = torch.empty(2, 1, heads, D_HEAD, dtype=torch.bfloat16, device="cuda")
        k = torch.empty(2, 300, 1, D_HEAD, dtype=dtype, device="cuda")
        slopes = torch.ones(heads, device="cuda") if has_bias else None
        config = flashattn.select_config(*latent_tensors(q, k), alibi_slopes=slopes).config
        assert config.arch == (Arch.SM90_MLA if is_for_sm90 else Arch.SM80_MLA)
        assert is_for_sm90 or config.B_r == B_r
        assert bool(config.features & Feature.BIAS) == has_bias
