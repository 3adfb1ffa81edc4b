"""Decode of latent attention: one K/V head or few, of 576 columns, of which V is the first 512. Few
and many query heads, masks across pieces, ALiBi and masks of any pattern, lengths and pages that
only the device knows, and what is not finite. test_gpu_caches.py has pages, batches and graphs.

Latent tokens (flashattn.latent) are rounded to bf16 on the device. What is expected is computed
from rounded tokens; the bits are also those of a cache of bf16 with the same numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import replace

import flashattn
import numpy as np
import pytest
import torch
from bias_cases import BiasCase
from bias_graphs import check_replays
from block_cases import BlockCase
from cache_families import (
    BIASED_PROBLEMS,
    BIASES,
    D_HEAD,
    D_HEAD_V,
    FEW_BIASED_PROBLEMS,
    FEW_PROBLEMS,
    MLA,
    biased,
    latent_tensors,
    of_first_rows,
)
from device_memory import fill_with_nan, torch_dtype, upload
from expectation import Expected
from flashattn import Arch, DType, Feature, latent
from gpu_problems import (
    CONTIGUOUS,
    MLA_FAMILIES,
    check_outputs,
    device_options,
    expected_of,
    host_inputs,
    is_for_hopper_alone,
    numbers_of,
    run,
    same_bits,
)
from memory import LATENT, dtype_of
from problems import AttentionProblem

ROWS, DENSE, PAGED = MLA.rows, MLA.dense, MLA.paged
BATCH, PROBLEMS, CACHES, _of_row = MLA.batch, MLA.problems, MLA.checks, MLA.of_row


pytestmark = pytest.mark.skipif(not ROWS, reason="needs compute capability 8.0 or newer")
every_dense_row = pytest.mark.parametrize("config", DENSE, ids=str)
every_biased_row = pytest.mark.parametrize("config", biased(DENSE), ids=str)
every_bias = pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)


def _every(cases: Iterable[tuple[str, AttentionProblem, flashattn.Config]]):
    parameters = [pytest.param(p, config, id=f"{name}-{config}") for name, p, config in cases]
    return pytest.mark.parametrize("p, config", parameters)


every_case = _every(of_first_rows(DENSE, PROBLEMS, FEW_PROBLEMS))
every_biased_case = _every(
    of_first_rows(biased(DENSE), {n: PROBLEMS[n] for n in BIASED_PROBLEMS}, FEW_BIASED_PROBLEMS)
)


@functools.lru_cache(maxsize=64)
def _expected(p: AttentionProblem, d_head_v: int) -> Expected:
    q, k, _ = host_inputs(p)
    k = numbers_of(p, k)
    return expected_of(q, k, k[..., :d_head_v], o_dtype=dtype_of(p.types[2]), **p.options())


def _check(
    p: AttentionProblem, config: object, d_head_v: int = D_HEAD_V, **options: object
) -> None:
    """Compares a call with the oracle."""
    q, k, _ = host_inputs(p)
    tensors = latent_tensors(upload(q, p.layouts[0]), upload(k, p.layouts[1]), d_head_v=d_head_v)
    expected = _expected(replace(p, layouts=CONTIGUOUS), d_head_v)
    check_outputs(p, run(p, tensors, config, **options), expected, config, f"replay: {p}")


# ---- Against the oracle ----


@every_case
def test_lengths_on_the_device(p: AttentionProblem, config: flashattn.Config) -> None:
    _check(_of_row(p, config), config)


@every_dense_row
def test_padding_at_the_left(config: flashattn.Config) -> None:
    padded = replace(BATCH, causal=True, leftpad_k=(0, 0, 1, 63, 64, 128, 70, 900, 1, 500))
    _check(_of_row(padded, config), config)


@every_dense_row
def test_lengths_on_the_host(config: flashattn.Config) -> None:
    for sizes in ((3, 1, 700, 16, 1), (1, 4, 3000, 32, 1), (70, 1, 200, 128, 1), (2, 3, 0, 8, 1)):
        p = AttentionProblem(*sizes, D_HEAD)
        _check(_of_row(p, config), config)
        _check(_of_row(replace(p, causal=True), config), config)


@every_dense_row
@pytest.mark.parametrize("lengths", ["equal", "cut", "one long", "none"])
def test_more_tiles_than_multiprocessors(lengths: str, config: flashattn.Config) -> None:
    """Blocks may walk parts of the batch: whole sequences of one length, and pieces of others."""
    of_kind = {
        "equal": lambda i: 320,
        "cut": lambda i: 320 + 64 * (i % 7),
        "one long": lambda i: 1500 if i == 5 else 50,
        "none": lambda i: 0,
    }
    used = tuple(of_kind[lengths](i) for i in range(9))
    p = AttentionProblem(9, 1, max(used), 66, 1, D_HEAD, seqused_k=used)
    for multiprocessors in (2, 5, 12):
        few = {"n_multiprocessors": multiprocessors}
        _check(_of_row(p, config), config, **few)
        _check(replace(_of_row(p, config), o_dtype="float32"), config, **few)
        masked = replace(p, seqlen_q=3, n_heads=22, causal=True, window_size=(250, 0))
        _check(_of_row(masked, config), config, **few)


@every_dense_row
def test_ragged_batches(config: flashattn.Config) -> None:
    p = AttentionProblem(
        5, 4, 1200, 24, 1, D_HEAD, causal=True, cu_seqlens_q=(0, 4, 4, 5, 7, 10),
        cu_seqlens_k=(0, 1200, 1240, 1240, 1900, 1939),
    )  # fmt: skip
    _check(_of_row(p, config), config)
    _check(_of_row(replace(p, cu_seqlens_k=None, seqused_k=(900, 0, 64, 1200, 39)), config), config)


@every_dense_row
@pytest.mark.parametrize("values", ["growing", "one_large_key", "identical_keys", "wide"])
def test_values(values: str, config: flashattn.Config) -> None:
    _check(_of_row(AttentionProblem(2, 2, 1500, 40, 1, D_HEAD, values=values), config), config)


@every_dense_row
@pytest.mark.parametrize("layout", ["padded", "heads_first"])
def test_layouts(layout: str, config: flashattn.Config) -> None:
    p = AttentionProblem(2, 2, 700, 40, 2, D_HEAD, layouts=(layout,) * 4, causal=True)
    _check(_of_row(p, config), config)


@every_dense_row
def test_outputs_anywhere_and_wide(config: flashattn.Config) -> None:
    layout = "contiguous" if config.persistent else "shifted"
    for keys in (100, 1500):  # whole and cut
        p = AttentionProblem(1, 2, keys, 40, 1, D_HEAD, layouts=("contiguous",) * 3 + (layout,))
        _check(_of_row(p, config), config)
        _check(replace(_of_row(p, config), o_dtype="float32"), config)
        if config.dtype in (DType.E4M3, DType.LATENT_E4M3):
            _check(replace(_of_row(p, config), o_dtype="float16"), config)


@pytest.mark.parametrize("config", [c for c in DENSE if c.persistent], ids=str)
def test_walks_refuse_what_they_cannot_do(config: flashattn.Config) -> None:
    p = AttentionProblem(1, 2, 100, 40, 1, D_HEAD, layouts=("contiguous",) * 3 + ("shifted",))
    with pytest.raises(NotImplementedError, match="four elements of O at a time"):
        _check(_of_row(p, config), config)
    p = replace(p, layouts=CONTIGUOUS)
    with pytest.raises(NotImplementedError, match="FLASH_FLAG_BATCH_INVARIANT does not allow"):
        _check(_of_row(p, config), config, batch_invariant=True)


@pytest.mark.parametrize("config", [c for c in DENSE if c.dtype != DType.LATENT_E4M3], ids=str)
@pytest.mark.parametrize("d_head, d_head_v", [(512, 512), (568, 504), (320, 256), (264, 4)])
def test_smaller_head_dimensions(d_head: int, d_head_v: int, config: flashattn.Config) -> None:
    columns = 16 if config.dtype == DType.E4M3 else 8  # of 16 bytes, as TMA needs them
    p = AttentionProblem(1, 2, 1500, 40, 1, d_head // columns * columns, causal=True)
    _check(_of_row(p, config), config, d_head_v=d_head_v)


@pytest.mark.parametrize("config", [c for c in DENSE if c.dtype == DType.E4M3], ids=str)
def test_scales_of_k_and_v(config: flashattn.Config) -> None:
    p = _of_row(replace(BATCH, causal=True, softcap=20.0), config)
    scales = tuple((0.25 * (i + 1),) for i in range(p.batch))
    _check(replace(p, k_descale=scales, v_descale=scales[::-1]), config)
    for q, o in (("float16", "float16"), ("float16", "bfloat16"), ("bfloat16", "float16")):
        _check(replace(p, k_descale=-0.5, v_descale=3.0, q_dtype=q, o_dtype=o), config)


# ---- Latent tokens ----

LATENT_ROWS = [config for config in ROWS if config.dtype == DType.LATENT_E4M3]
every_latent_row = pytest.mark.parametrize("config", LATENT_ROWS, ids=str)


def _in_bf16(config: flashattn.Config) -> flashattn.Config:
    """Returns the row that multiplies the same numbers without converting them."""
    fields = ("arch", "B_r", "B_c", "features")
    for row in ROWS:
        if row.dtype == DType.BF16 and all(getattr(row, x) == getattr(config, x) for x in fields):
            return row
    assert config.arch == Arch.SM80_MLA and is_for_hopper_alone()
    pytest.skip("a library for compute capability 9.0 alone has no such row")


def _assert_bits_of_bf16(p: AttentionProblem, tokens: np.ndarray, config: object) -> None:
    """Runs latent tokens [batch, seqlen_k, n_heads_kv, 656], and the same numbers in bf16."""
    q = upload(host_inputs(p)[0])
    found = run(p, latent_tensors(q, upload(tokens)), config)
    same = replace(p, dtype="bfloat16", q_dtype=None, o_dtype=None)
    in_bf16 = latent_tensors(q, upload(numbers_of(p, tokens)))
    assert same_bits(found, run(same, in_bf16, _in_bf16(config)))


@pytest.mark.parametrize("config", [c for c in LATENT_ROWS if c in DENSE], ids=str)
@pytest.mark.parametrize("name", ["full", "causal window", "softcap", "one long, many heads"])
def test_bits_are_those_of_the_same_numbers_in_bf16(name: str, config: flashattn.Config) -> None:
    p = _of_row(PROBLEMS[name], config)
    _assert_bits_of_bf16(p, host_inputs(p)[1], config)


@pytest.mark.parametrize("config", [c for c in LATENT_ROWS if c in DENSE], ids=str)
def test_every_code_and_any_scale(config: flashattn.Config) -> None:
    p = _of_row(AttentionProblem(256, 1, 1, 16, 1, D_HEAD), config)
    tokens = host_inputs(p)[1]
    codes = np.arange(256)[:, None] + 5 * np.arange(D_HEAD_V) & 0xFF
    codes[(codes & 0x7F) == 0x7F] = 0
    tokens[..., :D_HEAD_V] = codes[:, None, None]
    scales = tokens[..., D_HEAD_V : D_HEAD_V + 16].view(np.float32)
    scales[...] = np.random.default_rng(1).uniform(-2, 2, scales.shape)
    scales[::5, ..., 1], scales[1::5, ..., 2], scales[2::5, ..., 3] = 0.0, -1e-30, 1e4
    _assert_bits_of_bf16(p, tokens, config)


@every_latent_row
def test_chosen_tokens_are_pages_of_one(config: flashattn.Config) -> None:
    """Sparse attention: each query has tokens of its own, by a table of pages of one token."""
    if config not in PAGED:
        pytest.skip("a row of pages")
    rng = np.random.default_rng(0)
    pool = latent.encode(rng.standard_normal((4096, 1, 1, D_HEAD)))
    counts = (2048, 700, 1, 0, 65)
    chosen = np.stack([rng.permutation(4096)[:2048] for _ in counts]).astype(np.int32)
    p = AttentionProblem(len(counts), 1, 2048, 40, 1, D_HEAD, seqused_k=counts)
    p = _of_row(p, config)
    q = host_inputs(p)[0]
    k = numbers_of(p, pool[chosen, 0])
    expected = expected_of(q, k, k[..., :D_HEAD_V], o_dtype=dtype_of(p.types[2]), **p.options())
    where = {"page_table": torch.from_numpy(chosen).cuda()}
    outputs = run(p, latent_tensors(upload(q), upload(pool)), config, max_seqlen_k=2048, **where)
    check_outputs(p, outputs, expected, config, "chosen tokens")


# ---- What is not finite ----


def _spoil(k: np.ndarray, key: int, column: int, value: float) -> None:
    """Sets a column of a key; of latent tokens a scale, or a column of bf16."""
    if k.dtype != np.uint8:
        k[0, key, 0, column] = value
    elif column < D_HEAD_V:
        k[..., D_HEAD_V : D_HEAD_V + 16].view(np.float32)[0, key, 0, column // 128] = value
    else:
        k[..., -128:].view(dtype_of("bfloat16"))[0, key, 0, column - D_HEAD_V] = value


def _without_what_is_not_finite(k: np.ndarray) -> np.ndarray:
    clean = k.copy()
    if k.dtype != np.uint8:
        clean[~np.isfinite(k.astype(np.float32))] = 0
        return clean
    for part in (
        clean[..., D_HEAD_V : D_HEAD_V + 16].view(np.float32),
        clean[..., -128:].view(dtype_of("bfloat16")),
    ):
        part[~np.isfinite(part.astype(np.float32))] = 0
    return clean


@every_dense_row
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("keys", [60, 1100])
def test_values_that_are_not_finite_reach_only_rows_that_see_them(
    keys: int, value: float, config: flashattn.Config
) -> None:
    """NaN and infinities lie under the diagonal, at the window's edge, and where pieces meet."""
    p = _of_row(AttentionProblem(1, 9, keys, 12, 1, D_HEAD, causal=True), config)
    for options in ({}, {"window_size": (40, 0)}):
        own = replace(p, **options)
        q, k, _ = host_inputs(own)
        for key, column in ((keys - 5, 3), (keys - 3, D_HEAD_V - 1), (keys - 2, D_HEAD - 1)):
            _spoil(k, key, column, value)
        o, _ = run(own, latent_tensors(upload(q), upload(k)), config)
        numbers = numbers_of(own, k)
        expected = expected_of(q, numbers, numbers[..., :D_HEAD_V], **own.options())
        sees_none = np.isfinite(expected.o).all(axis=-1)
        assert sees_none.any() and not sees_none.all()
        assert (np.isfinite(o.astype(np.float32)).all(axis=-1) == sees_none).all()
        clean = upload(_without_what_is_not_finite(k))
        finite, _ = run(own, latent_tensors(upload(q), clean), config)
        assert (o[sees_none] == finite[sees_none]).all()


@every_dense_row
def test_keys_beyond_the_length_may_be_anything(config: flashattn.Config) -> None:
    p = _of_row(AttentionProblem(2, 2, 1100, 40, 1, D_HEAD, seqused_k=(70, 1000)), config)
    tensors = CACHES.inputs(p)
    expected = run(p, tensors, config)
    fill_with_nan(tensors[1][0, 70:])
    fill_with_nan(tensors[1][1, 1000:])
    assert same_bits(run(p, tensors, config), expected)


# ---- ALiBi and masks ----


@every_biased_case
@every_bias
def test_alibi_and_masks(bias: BiasCase, p: AttentionProblem, config: flashattn.Config) -> None:
    _check(_of_row(replace(p, bias=bias), config), config)


@every_biased_case
def test_masks_of_blocks(p: AttentionProblem, config: flashattn.Config) -> None:
    for blocks in (BlockCase(block_q=2, block_k=50), BlockCase(1, 7, n_keys=301, from_end=True)):
        _check(_of_row(replace(p, bias=blocks), config), config)


@every_biased_row
@pytest.mark.parametrize("kind", ["bits", "bfloat16"])
def test_rows_that_see_no_key_are_empty(kind: str, config: flashattn.Config) -> None:
    p = _of_row(replace(BATCH, bias=BiasCase(kind=kind, hidden=1.0)), config)
    o, lse = run(p, CACHES.inputs(p), config)
    assert (o.astype(np.float32) == 0).all() and (lse == -np.inf).all()


@every_biased_row
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("kind", ["bits", "float16", "bfloat16", "float32"])
def test_hidden_scores_do_not_matter(kind: str, poison: float, config: flashattn.Config) -> None:
    """K holds what is no number where the mask hides it from all queries; V is finite."""
    bias = BiasCase(kind=kind, repeats="bhq", hidden=0.3, empty_rows=0)
    p = _of_row(AttentionProblem(2, 2, 1100, 40, 1, D_HEAD, causal=True, bias=bias), config)
    q, k, v = CACHES.inputs(p)
    expected = run(p, [q, k, v], config)
    mask = np.asarray(bias.options(p)["attn_mask"]).reshape(-1).astype(np.float32)
    rest = k[..., D_HEAD_V:]
    if p.dtype == LATENT:  # the last 64 columns of a token
        rest = k[..., -2 * (D_HEAD - D_HEAD_V) :].view(torch.bfloat16)
    poisoned = torch.full((1,), poison, device="cuda").to(rest.dtype)  # e4m3 has NaN alone
    for key in np.flatnonzero(mask <= (0 if kind == "bits" else -math.inf)):
        rest[:, key].copy_(poisoned.expand_as(rest[:, key]))
    assert same_bits(run(p, [q, k, v], config), expected)


@every_biased_row
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_none_reach_their_rows(value: float, config: flashattn.Config) -> None:
    """And no others. A number beyond the causal order does not count."""
    p = _of_row(AttentionProblem(1, 3, 900, 40, 1, D_HEAD, causal=True), config)
    mask = torch.zeros(1, 1, p.seqlen_q, p.seqlen_k, device="cuda")
    mask[..., 1, 5] = value  # seen
    mask[..., 0, p.seqlen_k - 2 :] = value  # not seen
    tensors = CACHES.inputs(p)
    o, _ = run(p, tensors, config, attn_mask=mask)
    plain, _ = run(p, tensors, config)
    assert np.isnan(o[:, 1].astype(np.float32)).all()
    rest = [0, 2]
    np.testing.assert_allclose(
        o[:, rest].astype(np.float32), plain[:, rest].astype(np.float32), atol=2e-2, rtol=2e-2
    )


@pytest.mark.parametrize("config", [c for c in biased(DENSE) if c not in LATENT_ROWS], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_least_finite_number_leaves_a_mean(
    dtype: torch.dtype, config: flashattn.Config
) -> None:
    """Where all keys of a row have it, none is hidden."""
    p = _of_row(AttentionProblem(2, 2, 1100, 40, 1, D_HEAD), config)
    q, k, v = CACHES.inputs(p)
    shape = (p.batch, 1, p.seqlen_q, p.seqlen_k)
    mask = torch.full(shape, torch.finfo(dtype).min, dtype=dtype, device="cuda")
    o = flashattn.flash_attn_func(q * 0, k, v, attn_mask=mask, config=config)
    expected = v.float().mean(1, keepdim=True)
    torch.testing.assert_close(o.float(), expected.expand(o.shape), atol=2e-3, rtol=2e-2)


@every_biased_row
def test_a_graph_replays_with_other_slopes_and_masks(config: flashattn.Config) -> None:
    bias = BiasCase(slopes=1, kind="bfloat16")
    p = _of_row(replace(BATCH, causal=True, bias=bias), config)
    tensors, options = CACHES.inputs(p), device_options(p)
    shape = (*tensors[0].shape[:-1], D_HEAD_V)
    o = torch.empty(shape, dtype=torch_dtype(p.types[2]), device="cuda")
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    check_replays(tensors, {**options, "workspace": workspace, "config": config}, o)


# ---- Selection ----


def test_selection_takes_these_rows_where_v_is_in_k() -> None:
    tensors = CACHES.inputs(AttentionProblem(4, 1, 300, 16, 1, D_HEAD, "bfloat16"))
    newest = max(config.arch for config in ROWS)
    assert flashattn.select_config(*tensors).config.arch == newest
    q, k, v = tensors
    row = next(config for config in DENSE if config.dtype == DType.BF16)
    with pytest.raises(NotImplementedError, match="no kernel in this library serves"):
        flashattn.flash_attn_func(q, k, v.contiguous())
    with pytest.raises(NotImplementedError, match="V to be the first columns of K"):
        flashattn.flash_attn_func(q, k, k[..., 64:], config=row)
    with pytest.raises(NotImplementedError, match="a d_head_v that is a multiple of 4"):
        flashattn.flash_attn_func(q, k, k[..., :6], config=row)
    slopes = torch.ones(16, device="cuda")
    biased = flashattn.select_config(*tensors, alibi_slopes=slopes).config
    assert biased.features & Feature.BIAS and biased.arch == newest
    small = CACHES.inputs(AttentionProblem(4, 1, 300, 16, 1, 128, "bfloat16"))
    small[2] = small[1]
    assert flashattn.select_config(*small).config.arch not in MLA_FAMILIES
