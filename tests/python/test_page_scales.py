"""Scales of K and V of e4m3 by page (page_scales): of caches that were quantised page by page."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import flashattn
import numpy as np
import pytest
from bias_cases import BiasCase
from flashattn import _abi, oracle
from flashattn._library import last_error
from memory import E4M3, dtype_of
from paging import PagedProblem, make_pages
from pairwise import Row, pairwise
from problems import AttentionProblem, configs_for, fill_unused, make_inputs, run_call
from test_paging_refusals import PagedCall

KINDS = ("table", "rows", "indptr", "slots", "rows64", "table ends")
# One for each way that a task reads its keys.
PROBLEMS = {
    "one row": AttentionProblem(3, 1, 300, 2, 2, 64, E4M3, seqused_k=(300, 64, 129)),
    "few rows": AttentionProblem(2, 3, 700, 6, 2, 72, E4M3, "float16", causal=True),
    "steps": AttentionProblem(1, 1, 1500, 22, 11, 128, E4M3),
    "decode": AttentionProblem(4, 2, 900, 8, 2, 64, E4M3, causal=True, seqused_k=(900, 1, 0, 65)),
    "split": AttentionProblem(1, 2, 5000, 16, 2, 64, E4M3, causal=True),
    "packed": AttentionProblem(2, 200, 300, 6, 2, 64, E4M3, causal=True),
    "packed window": AttentionProblem(1, 97, 400, 2, 2, 128, E4M3, window_size=(150, 20)),
    "packed softcap": AttentionProblem(2, 130, 290, 2, 1, 72, E4M3, softcap=3.0),
    "private": AttentionProblem(1, 50, 400, 1, 1, 40, E4M3),
    "ragged": AttentionProblem(
        4, 130, 400, 4, 2, 64, E4M3, causal=True, cu_seqlens_q=(0, 1, 1, 131, 135),
        seqused_k=(400, 77, 131, 66),
    ),
    "sinks": AttentionProblem(2, 3, 200, 4, 2, 64, E4M3, sinks=(0.5, -2.0, 3.0, 1.0)),
    "mask": AttentionProblem(1, 140, 300, 4, 2, 64, E4M3, bias=BiasCase(slopes=1, kind="bits")),
    "e4m3 q": AttentionProblem(2, 4, 300, 4, 2, 64, E4M3, E4M3, q_token_scales=3),
}  # fmt: skip
HEADS_LAST = ("contiguous", "padded", "heads_first")


def _draw(n_pages: int, n_heads: int, seed: int, layout: str) -> np.ndarray:
    """Returns scales of both signs and of several magnitudes, of a layout of their own."""
    rng = np.random.default_rng(seed)
    scales = rng.choice([-1, 1], (n_pages, n_heads)) * 2.0 ** rng.uniform(-3, 1, (n_pages, n_heads))
    memory = np.full((n_pages, n_heads + 3), np.nan, np.float32)
    if layout == "heads_first":
        memory = memory.T.copy().T if n_heads else memory
    view = memory[:, :n_heads]
    view[...] = scales
    return view if layout != "contiguous" else np.ascontiguousarray(view)


def _decoded(pool: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Returns the pool's values in float64, with a page of zeros at the end."""
    with np.errstate(invalid="ignore"):
        values = pool.astype(np.float64) * scales.astype(np.float64)[:, None, :, None]
    return np.concatenate([values, np.zeros_like(values[:1])])


def _expected(
    q: PagedProblem, arrays: list[np.ndarray], where: dict, scales: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    def ids(name: str) -> np.ndarray | None:
        table = where.get(name)
        if table is None:
            return None
        outside = (table < 0) | (table >= len(arrays[1]))
        return np.where(outside, len(arrays[1]), table)

    pages = oracle.Pages(
        ids("page_table"), ids("v_page_table"), where.get("page_indptr"), where.get("page_rows")
    )
    options = {**q.dense.options(), "hidden_keys": q.hidden_keys if q.holes else None}
    k, v = (_decoded(pool, of) for pool, of in zip(arrays[1:], scales))
    return oracle.attention(arrays[0], k, v, pages=pages, **options)


def _check(q: PagedProblem, config: str | None, layout: str) -> None:
    arrays, where = make_pages(q, make_inputs(q.dense))
    scales = [_draw(*pool.shape[::2][:2], seed, layout) for seed, pool in enumerate(arrays[1:])]
    p = replace(q.p, seqused_k=None)
    of_pages = {"page_scales": True, "k_descale": scales[0], "v_descale": scales[1]}
    o, lse = run_call(p, arrays, {**where, **of_pages}, config)
    fill_unused(q.dense, o, lse)
    expected, expected_lse = _expected(q, arrays, where, scales)
    fill_unused(q.dense, expected, expected_lse)
    replay = f"replay: {q}, config={config!r}"
    np.testing.assert_array_equal(np.isfinite(lse), np.isfinite(expected_lse), replay)
    seen = np.isfinite(expected_lse)
    np.testing.assert_allclose(lse[seen], expected_lse[seen], 2e-5, 2e-5, err_msg=replay)
    step = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(o.dtype.name, 0)
    bound = 3e-5 * np.abs(expected).max(initial=0) + step * np.abs(expected)
    assert (np.abs(o.astype(np.float64) - expected) <= bound + 1e-6).all(), replay


CASES = pairwise(
    {
        "problem": tuple(PROBLEMS),
        "page_size": (1, 4, 19, 32, 256),
        "kind": KINDS,
        "tables": ("shared", "v_apart"),
        "holes": (0.0, 0.4),
        "layout": HEADS_LAST,
    },
    lambda row: not (row.get("kind") == "slots" and row.get("holes")),
)


@pytest.mark.parametrize("case", CASES, ids=["-".join(map(str, x.values())) for x in CASES])
def test_agrees_with_the_oracle(case: Row) -> None:
    p = PROBLEMS[case["problem"]]
    v_apart = case["tables"] == "v_apart"
    q = PagedProblem(p, case["page_size"], case["kind"], v_apart, case["holes"])
    for config in [None, *configs_for(q.dense)]:
        _check(q, config, case["layout"])


# ---- Numbers, and scales that no key has ----


def _call_of_doors() -> tuple[list[np.ndarray], dict[str, object]]:
    q = PagedProblem(AttentionProblem(3, 2, 90, 4, 2, 64, E4M3, "float16"), 4)
    arrays, where = make_pages(q, make_inputs(q.dense))
    scales = [_draw(*pool.shape[::2][:2], seed, "padded") for seed, pool in enumerate(arrays[1:])]
    return arrays, {**where, "page_scales": True, "k_descale": scales[0], "v_descale": scales[1]}


def test_numbers_are_those_of_all_pages() -> None:
    arrays, options = _call_of_doors()
    numbers = {"k_descale": 0.5, "v_descale": -2.0}
    found = flashattn.flash_attn_func(*arrays, **{**options, **numbers})
    expected = flashattn.flash_attn_func(*arrays, **{**options, **numbers, "page_scales": False})
    np.testing.assert_allclose(found.astype("f"), expected.astype("f"), rtol=2e-3, atol=2e-3)
    alone = flashattn.flash_attn_func(*arrays, **{**options, "k_descale": None})
    ones = np.ones_like(options["k_descale"])
    assert (alone == flashattn.flash_attn_func(*arrays, **{**options, "k_descale": ones})).all()


def test_other_pages_and_keys_that_nobody_sees_do_not_matter() -> None:
    """NaN in the scales of pages that no sequence has, or whose keys a window hides."""
    arrays, options = _call_of_doors()
    used = {int(i) for row in options["page_table"][:3] for i in row[:23]}
    others = sorted(set(range(len(arrays[1]))) - used)
    window = {**options, "window_size": (5, 0)}
    expected = flashattn.flash_attn_func(*arrays, **options)
    expected_of_window = flashattn.flash_attn_func(*arrays, **window)
    assert others
    for name in ("k_descale", "v_descale"):
        options[name][others] = np.nan
    assert (flashattn.flash_attn_func(*arrays, **options) == expected).all()
    hidden = [int(i) for row in options["page_table"][:3] for i in row[:20]]
    for name in ("k_descale", "v_descale"):
        options[name][hidden] = np.nan
    assert (flashattn.flash_attn_func(*arrays, **window) == expected_of_window).all()
    assert np.isnan(flashattn.flash_attn_func(*arrays, **options).astype("f")).all()


# ---- The doors ----


def test_torch_has_it_too() -> None:
    torch = pytest.importorskip("torch")
    from flashattn import torch_ops
    from flashattn._torch import extension

    arrays, options = _call_of_doors()

    def of_torch(x: object) -> object:
        if not isinstance(x, np.ndarray):
            return x
        if x.dtype == dtype_of(E4M3):
            return torch.from_numpy(x.view(np.uint8)).view(torch.float8_e4m3fn)
        return torch.from_numpy(x)

    tensors = [of_torch(x) for x in arrays]
    for descale in (options["k_descale"], 0.5):
        options["k_descale"] = descale
        expected = flashattn.flash_attn_func(*arrays, **options)
        given = {name: of_torch(x) for name, x in options.items()}
        assert (torch_ops.flash_attn_func(*tensors, **given).numpy() == expected).all()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(extension, "forward", None)
            assert (torch_ops.flash_attn_func(*tensors, **given).numpy() == expected).all()
        compiled = torch.compile(torch_ops.flash_attn_func, backend="aot_eager")
        assert (compiled(*tensors, **given).numpy() == expected).all()


def test_jax_has_it_too() -> None:
    jax = pytest.importorskip("jax")
    import flashattn.jax as door

    arrays, options = _call_of_doors()
    expected = flashattn.flash_attn_func(*arrays, **options)
    found = jax.jit(lambda *x: door.flash_attention(*x, **options))(*arrays)
    assert (np.asarray(found) == expected).all()


def test_attention_reads_what_was_appended_by_page() -> None:
    """New tokens are divided by the scales of the pages that they go to, and keys multiplied by
    them again."""
    rng = np.random.default_rng(4)
    n_pages, size, batch, n = 9, 8, 3, 20
    k, v = rng.standard_normal((2, batch, n, 2, 64)).astype(np.float32)
    q = rng.standard_normal((batch, 2, 4, 64)).astype(np.float32)
    k *= 2.0 ** (np.arange(n) // size * 4 - 4)[:, None, None]  # of another size in each page
    pools = [np.zeros((n_pages, size, 2, 64), dtype_of(E4M3)) for _ in "kv"]
    table = rng.permutation(n_pages).reshape(batch, 3).astype(np.int32)
    scales = [np.ones((n_pages, 2), np.float32) for _ in "kv"]
    for x, scale in zip((k, v), scales):
        for b in range(batch):
            for page, first in zip(table[b], range(0, n, size)):
                scale[page] = np.abs(x[b, first : first + size]).max((0, 2)) / 448
    of_pages = {"page_scales": True, "k_descale": scales[0], "v_descale": scales[1]}
    where = {"page_table": table, **of_pages}
    used = np.zeros(batch, np.int32)
    flashattn.flash_kv_append(k, v, *pools, seqused_k=used, **where)
    o = flashattn.flash_attn_func(q, *pools, seqused_k=used + n, **where)
    rounded = [_rounded_by_page(x, table, scale) for x, scale in zip((k, v), scales)]
    expected, _ = oracle.attention(q, *rounded)
    np.testing.assert_allclose(o, expected, 2e-5, 2e-5)


def _rounded_by_page(x: np.ndarray, table: np.ndarray, scales: np.ndarray) -> np.ndarray:
    of_tokens = scales[table].repeat(8, axis=1)[:, : x.shape[1], :, None]
    return (x * (np.float32(1) / of_tokens)).astype(dtype_of(E4M3)).astype(np.float32) * of_tokens


# ---- Refusals ----


def _refuse(call: PagedCall, status: int, words: str) -> None:
    assert call.run() == status, last_error()
    assert words in last_error()
    call.assert_untouched()


def test_what_is_refused() -> None:
    invalid, unsupported = _abi.FLASH_ERROR_INVALID_ARGUMENT, _abi.FLASH_ERROR_UNSUPPORTED
    call = PagedCall()
    call.args.flags |= _abi.FLASH_FLAG_PAGE_SCALES
    _refuse(call, invalid, "FLASH_FLAG_PAGE_SCALES, and quant is NULL: there are no scales")
    call.args.device = _abi.FLASH_DEVICE_CUDA
    quant = _abi.flash_quant_t()
    call.args.quant = ctypes.addressof(quant)
    words = "device is 0x10000: only kernels for the CPU take scales of pages"
    _refuse(call, unsupported, words)
    call.args.device = _abi.FLASH_DEVICE_CPU
    scales = np.ones((5, 2), np.float32)
    quant.k_scale = scales.ctypes.data
    _refuse(call, invalid, "quant.k_scale is given, and k.dtype is 3")
    call.args.paging = None
    _refuse(call, invalid, "FLASH_FLAG_PAGE_SCALES, and paging is NULL: there are no pages")


@pytest.mark.parametrize("name", ["k_descale", "v_descale"])
def test_shapes_and_memory_are_those_of_pages(name: str) -> None:
    arrays, options = _call_of_doors()
    n_pages = len(arrays[1])
    options[name] = options[name][1:]
    with pytest.raises(
        ValueError, match=rf"{name} has shape \({n_pages - 1}, 2\), not \({n_pages}"
    ):
        flashattn.flash_attn_func(*arrays, **options)
    o = np.zeros(arrays[0].shape, np.float32)
    options[name] = o.reshape(-1)[-2 * n_pages :].reshape(n_pages, 2)
    with pytest.raises(ValueError, match=rf"o overlaps quant.{name[0]}_scale"):
        flashattn.flash_attn_func(*arrays, **options, out=o)
