"""Rows that multiply Q, K and V of e4m3 as such keep what docs/numerics.md says of products in FP8.
test_fp8_accuracy.py has the inputs that show what does not."""

from __future__ import annotations

import functools
from dataclasses import replace

import flashattn
import fp8_rule
import numpy as np
import pytest
import torch
from device_memory import upload
from flashattn import DType, Feature, oracle
from gpu_problems import cuda_kernels, device_options, run
from memory import E4M3, dtype_of
from problems import AttentionProblem, make_inputs

O_TYPES = ("float16", "bfloat16", "float32")
_ALL = [
    kernel.config
    for kernel in cuda_kernels()
    if kernel.is_runnable and kernel.config.operand_dtype == DType.E4M3
]
ROWS = [config for config in _ALL if not config.features & Feature.PAGED]
PAGED = [config for config in _ALL if config.features & Feature.PAGED]
every_row = pytest.mark.parametrize("config", ROWS, ids=str)


def _problem(*sizes: int, **options: object) -> AttentionProblem:
    return AttentionProblem(*sizes, dtype=E4M3, q_dtype=E4M3, **options)


PROBLEMS = {
    "full": _problem(2, 65, 129, 4, 2),
    "tile edges": _problem(1, 128, 256, 2, 2),
    "past tile edges": _problem(1, 129, 257, 3, 1),
    "long": _problem(1, 300, 2100, 4, 1),
    "one key": _problem(2, 70, 1, 2, 2),
    "no key": _problem(2, 70, 0, 2, 2),
    "many tiles": _problem(3, 700, 300, 16, 4),
    "causal": _problem(2, 300, 300, 4, 2, causal=True),
    "causal, more keys": _problem(1, 130, 1000, 2, 1, causal=True),
    "causal, more queries": _problem(1, 400, 150, 2, 2, causal=True),
    "causal, many tiles": _problem(2, 1500, 1500, 12, 4, causal=True),
    "growing": _problem(1, 150, 600, 2, 1, values="growing"),
    "one large key": _problem(1, 150, 600, 2, 1, values="one_large_key"),
    "sinks": _problem(1, 150, 300, 2, 1, sinks=(0.5, -2.0)),
    "scales": _problem(2, 150, 300, 4, 2, k_descale=0.5, v_descale=-1.5, q_descale=2.0),
    "scales of heads": _problem(
        2, 150, 300, 4, 2, causal=True,
        q_descale=((0.5, 2.0), (1.0, 0.25)), k_descale=((2.0, 1.0), (0.5, 0.25)),
        v_descale=((1.0, 3.0), (-2.0, 0.5)),
    ),
    "scales of tokens": _problem(2, 150, 300, 4, 2, q_token_scales=7, k_descale=0.5),
    "window": _problem(1, 500, 700, 4, 2, window_size=(150, 70)),
    "narrow window": _problem(1, 300, 300, 8, 2, window_size=(20, 0)),
    "chunks": _problem(1, 300, 450, 2, 1, causal=True, attention_chunk=100),
    "softcap": _problem(1, 200, 500, 2, 2, softcap=5.0),
    "softcap, scales": _problem(
        2, 200, 300, 2, 2, softcap=3.0, q_descale=0.5, k_descale=2.0, causal=True
    ),
    "ragged": _problem(
        4, 200, 330, 4, 2, causal=True,
        cu_seqlens_q=(0, 70, 70, 161, 361), cu_seqlens_k=(0, 40, 60, 210, 540),
    ),
    "ragged, scales of tokens": _problem(
        3, 150, 330, 4, 2, q_token_scales=5,
        cu_seqlens_q=(0, 70, 71, 221), cu_seqlens_k=(0, 330, 331, 401),
    ),
    "lengths": _problem(3, 100, 300, 4, 1, seqused_k=(1, 300, 129)),
    "padded at the left": _problem(3, 100, 300, 2, 2, causal=True, leftpad_k=(0, 150, 37)),
}  # fmt: skip


def _of_row(p: AttentionProblem, config: flashattn.Config, o: str) -> AttentionProblem:
    return replace(p, d_head=config.d_head, o_dtype=o)


def _serves(p: AttentionProblem, config: flashattn.Config) -> bool:
    needed = Feature.CAUSAL if p.causal else Feature(0)
    if p.window_size != (-1, -1) or p.attention_chunk:
        needed |= Feature.WINDOW
    if p.softcap:
        needed |= Feature.SOFTCAP
    if any(x is not None for x in (p.cu_seqlens_q, p.seqused_k, p.leftpad_k)):
        needed |= Feature.VARLEN
    return not needed & ~Feature(config.features)


@functools.lru_cache(maxsize=8)
def _expected(p: AttentionProblem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return _expected_of(make_inputs(p), p)


def _expected_of(
    inputs: list[np.ndarray], p: AttentionProblem
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns O and LSE of the oracle, and O of exact attention whose P is rounded."""
    exact, lse = oracle.attention(*inputs, **p.options())
    return exact, lse, oracle.of_rounded_p(*inputs, p_dtype=dtype_of(E4M3), **p.options())


def check(
    p: AttentionProblem, config: flashattn.Config | None, inputs: list[np.ndarray] | None = None
) -> None:
    """Asserts what docs/numerics.md says of products in FP8."""
    assert_keeps(*run(p, [upload(x) for x in inputs or make_inputs(p)], config), p, config, inputs)


def assert_keeps(
    o: np.ndarray,
    lse: np.ndarray,
    p: AttentionProblem,
    config: flashattn.Config,
    inputs: list[np.ndarray] | None = None,
) -> None:
    of_any_type = replace(p, o_dtype="float32")
    *exact, rounded = _expected_of(inputs, p) if inputs else _expected(of_any_type)
    rounded = rounded.astype(dtype_of(p.types[2]))
    fp8_rule.assert_keeps(o, lse, tuple(exact), rounded, p.d_head, f"replay: {p}, {config}")


def test_rows_are_there() -> None:
    if torch.cuda.get_device_capability() == (9, 0):
        assert ROWS and PAGED


@every_row
@pytest.mark.parametrize("o", O_TYPES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_row_agrees_with_the_oracle(name: str, o: str, config: flashattn.Config) -> None:
    p = _of_row(PROBLEMS[name], config, o)
    if _serves(p, config):
        check(p, config)


@pytest.mark.skipif(not PAGED, reason="no row reads pages")
@pytest.mark.parametrize("config", PAGED, ids=str)
@pytest.mark.parametrize("page_size", [64, 16, 5])
def test_pages_hold_the_same_keys(page_size: int, config: flashattn.Config) -> None:
    """Keys of sequences of several lengths lie in pages in any order, among NaNs."""
    used = (1000, 0, 333)
    p = _of_row(_problem(3, 40, 1000, 8, 2, causal=True, seqused_k=used), config, "bfloat16")
    q, k, v = (upload(x) for x in make_inputs(p))
    of_sequence = -(-1000 // page_size)
    order = torch.randperm(3 * of_sequence, device="cuda", dtype=torch.int32)
    pools = [torch.full((3 * of_sequence, page_size, *x.shape[2:]), 0x7F, dtype=torch.uint8,
                        device="cuda") for x in (k, v)]  # fmt: skip
    for b, length in enumerate(used):
        for key in range(0, length, page_size):
            page = order[b * of_sequence + key // page_size]
            rows = min(length - key, page_size)
            for pool, x in zip(pools, (k, v)):
                pool[page, :rows] = x[b, key : key + rows].view(torch.uint8)
    k, v = (pool.view(k.dtype) for pool in pools)
    lengths = torch.tensor(used, dtype=torch.int32, device="cuda")
    table = order.view(3, of_sequence)
    o, lse = flashattn.flash_attn_func(
        q, k, v, causal=True, page_table=table, seqused_k=lengths, out_dtype="bfloat16",
        return_lse=True, config=config,
    )  # fmt: skip
    values = o.float().cpu().numpy()
    assert_keeps(values, lse.cpu().numpy(), p, config)


@pytest.mark.parametrize("d_head", sorted({config.d_head for config in ROWS}))
@pytest.mark.parametrize(
    "name", ["full", "causal", "window", "softcap", "ragged", "lengths", "padded at the left"]
)
def test_selection_takes_a_row_that_multiplies_e4m3(name: str, d_head: int) -> None:
    p = replace(PROBLEMS[name], d_head=d_head, o_dtype="bfloat16")
    check(p, None)


@every_row
@pytest.mark.parametrize("narrower", [(16, 0), (0, 16), (64, 32)], ids=str)
def test_smaller_heads_are_padded(narrower: tuple[int, int], config: flashattn.Config) -> None:
    p = _of_row(PROBLEMS["past tile edges"], config, "bfloat16")
    d_head, d_head_v = (max(config.d_head - n, 16) for n in narrower)
    check(replace(p, d_head=d_head, d_head_v=d_head_v), config)


@every_row
@pytest.mark.parametrize("scale", [0.0, -0.0, -3.0, 1e-30, 1e-45, np.nan], ids=str)
@pytest.mark.parametrize("name", ["q_descale", "k_descale"])
def test_any_scale_of_scores(name: str, scale: float, config: flashattn.Config) -> None:
    p = _of_row(replace(PROBLEMS["full"], **{name: scale}), config, "float32")
    check(p, config)


@every_row
@pytest.mark.parametrize("scale", [0.0, -3.0, 1e-30, np.inf, -np.inf, np.nan], ids=str)
def test_any_scale_of_v(scale: float, config: flashattn.Config) -> None:
    p = _of_row(replace(PROBLEMS["full"], v_descale=scale), config, "float32")
    q, k, v = make_inputs(p)
    v = np.abs(v.astype(np.float32)).clip(0.25, 2).astype(v.dtype)  # infinities of one sign
    check(p, config, [q, k, v])


@every_row
def test_every_code_has_its_value(config: flashattn.Config) -> None:
    """All weight is on one key of each query, whose V has every code."""
    d_head, n = config.d_head, 256
    shape = (1, n, 1, d_head)
    codes = (np.arange(n)[:, None] + 5 * np.arange(d_head)) % 256
    codes = np.where(codes % 128 == 127, 0, codes)  # NaN
    v = codes.astype(np.uint8).view(dtype_of(E4M3)).reshape(shape)
    rng = np.random.default_rng(3)
    signs = rng.choice([-1.0, 1.0], (n, d_head))
    q = k = signs.astype(np.float32).astype(dtype_of(E4M3)).reshape(shape)
    p = _of_row(_problem(1, n, n, 1, 1, softmax_scale=8.0), config, "float32")
    o, _ = run(p, [upload(x) for x in (q, k, v)], config)
    np.testing.assert_allclose(o, v.astype(np.float32), rtol=1e-6, atol=1e-30)


@every_row
@pytest.mark.parametrize("place", [0, 1, 127, 128, 200, 299])
def test_nan_is_seen_by_those_who_see_its_key(place: int, config: flashattn.Config) -> None:
    p = _of_row(_problem(1, 300, 300, 2, 1), config, "bfloat16")
    p = replace(p, causal=bool(config.features & Feature.CAUSAL))
    q, k, v = make_inputs(p)
    v[0, place, 0, 5] = np.nan
    check(p, config, [q, k, v])


@every_row
@pytest.mark.parametrize("octaves", [0.7, 0.9, 3, 9, 60, 119, 130, 300])
@pytest.mark.parametrize("is_followed", [True, False], ids=["others follow", "last"])
def test_scores_jump_above_a_reference(
    octaves: float, is_followed: bool, config: flashattn.Config
) -> None:
    """Many keys have weight until then. Blocks are visited from the last to the first."""
    n, d = 900, config.d_head
    p = _of_row(_problem(1, 150, n, 2, 1, softmax_scale=octaves * np.log(2) / d), config, "float32")
    p = replace(p, causal=bool(config.features & Feature.CAUSAL))
    q, k, v = (x.astype(np.float32) for x in make_inputs(p))
    q[...] = 1
    k *= 0.125
    k[:, (256 if is_followed else 0) : 384] += 1
    check(p, config, [x.astype(dtype_of(E4M3)) for x in (q, k, v)])


def _inputs(n_keys: int, std: float, mean: float, lead: float, d: int) -> list[np.ndarray]:
    """As in test_fp8_accuracy.py."""
    rng = np.random.default_rng(int(n_keys + 10 * std + 100 * mean + 1000 * lead))
    q, k, v = (rng.standard_normal((1, n, 1, d)) for n in (128, n_keys, n_keys))
    q *= std
    direction = np.ones(d) / np.sqrt(d)
    q += direction * 4
    k -= (k @ direction)[..., None] * direction
    k[:, :4] += direction * lead * np.sqrt(d) / 4
    return [x.astype(np.float32) for x in (q, k, v + mean)]


@functools.lru_cache(maxsize=4)
def _quantised(
    *options: float,
) -> tuple[list[np.ndarray], dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Returns the codes, their scales, exact attention before and that of rounded P after."""
    x = _inputs(*options)
    found = [flashattn.quantise(array) for array in x]
    codes = [y.codes for y in found]
    names = ("q_descale", "k_descale", "v_descale")
    scales = {name: y.descale for name, y in zip(names, found)}
    exact, _ = oracle.attention(*x)
    return codes, scales, exact, oracle.of_rounded_p(*codes, p_dtype=dtype_of(E4M3), **scales)


@every_row
@pytest.mark.parametrize("lead", [0.0, 8.0])
@pytest.mark.parametrize("mean", [0.0, 1.0])
@pytest.mark.parametrize("std", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("n_keys", [1024, 8192, 32768])
def test_an_error_is_that_of_quantising_and_of_rounded_p(
    n_keys: int, std: float, mean: float, lead: float, config: flashattn.Config
) -> None:
    codes, scales, exact, rounded = _quantised(n_keys, std, mean, lead, config.d_head)
    on_device = {name: torch.from_numpy(np.array(s)).cuda() for name, s in scales.items()}
    o = flashattn.flash_attn_func(
        *(upload(c) for c in codes), **on_device, out_dtype="float32", config=config
    )
    o = o.cpu().numpy().astype(np.float64)
    error, allowed = (fp8_rule.norm(y - exact) / fp8_rule.norm(exact) for y in (o, rounded))
    assert error <= fp8_rule.ALLOWED * allowed, (error, allowed)


@functools.lru_cache(maxsize=4)
def _needle(
    place: int, lead: float, d: int
) -> tuple[list[np.ndarray], dict[str, np.ndarray], np.ndarray]:
    """Returns the codes, their scales and exact attention of them."""
    n_keys = 1 << 17
    q = np.ones((1, 1, 1, d), np.float32)
    k = np.zeros((1, n_keys, 1, d), np.float32)
    k[0, place] = (np.log(n_keys - 1) + lead) / np.sqrt(d)
    v = np.ones_like(k)
    v[0, place] = 3
    found = [flashattn.quantise(array) for array in (q, k, v)]
    codes = [y.codes for y in found]
    scales = {n: y.descale for n, y in zip(("q_descale", "k_descale", "v_descale"), found)}
    return codes, scales, oracle.attention(*codes, **scales)[0]


@every_row
@pytest.mark.parametrize("place", [0, 1, 70_000, 131_071])
@pytest.mark.parametrize("lead, share", [(0.0, 0.5), (8.0, 1.0)])
def test_a_needle_among_many_keys(
    place: int, lead: float, share: float, config: flashattn.Config
) -> None:
    codes, scales, exact = _needle(place, lead, config.d_head)
    on_device = {name: torch.from_numpy(np.array(s)).cuda() for name, s in scales.items()}
    o = flashattn.flash_attn_func(
        *(upload(c) for c in codes), **on_device, out_dtype="float32", config=config
    )
    assert np.abs(o.cpu().numpy() - exact).max() <= 1e-2 * exact.max()
    assert abs(exact.max() - (1 + 2 * share)) < 0.1


@every_row
def test_bits_do_not_depend_on_the_run(config: flashattn.Config) -> None:
    p = _of_row(_problem(2, 1000, 1000, 8, 2), config, "bfloat16")
    tensors = [upload(x) for x in make_inputs(p)]
    results = [run(p, tensors, config) for _ in range(5)]
    for o, lse in results[1:]:
        assert (o.view(np.int16) == results[0][0].view(np.int16)).all()
        assert (lse == results[0][1]).all()
    assert device_options(p)["out_dtype"] == "bfloat16"
