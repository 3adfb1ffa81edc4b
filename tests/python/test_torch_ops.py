"""flashattn.torch_ops against the oracle, and bit for bit against the functions for all arrays: any
problem, layout and type, padded, ragged, in pages, by the functions and by the operators.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import flashattn  # noqa: E402
import torch_calls  # noqa: E402
from bias_cases import BiasCase  # noqa: E402
from expectation import assert_agrees  # noqa: E402
from flashattn import torch_ops  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from memory import DTYPES, arrange, dtype_of  # noqa: E402
from paging import KINDS, PagedProblem, make_pages, run_paged  # noqa: E402
from parallel_for import SerialHook  # noqa: E402
from problems import (  # noqa: E402
    AttentionProblem,
    expected,
    fill_unused,
    make_inputs,
    p_type,
    run,
)
from strategies import attention_problems, random_problems, types_of_arrays  # noqa: E402
from torch_calls import WAYS, Recorded, to_array, to_tensor  # noqa: E402

every_way = pytest.mark.parametrize("way", WAYS)
fewer_problems = settings(random_problems, max_examples=200)
P = AttentionProblem(2, 70, 90, 4, 2, 64, "bfloat16", causal=True)

PROBLEMS = {
    "prefill": P,
    "fp32": AttentionProblem(1, 33, 65, 6, 3, 80, softcap=5.0, window_size=(20, 3)),
    "transposed": replace(P, layouts=("heads_first",) * 4),
    "with gaps": replace(P, dtype="float16", layouts=("padded",) * 4),
    "wide O": AttentionProblem(2, 40, 40, 4, 4, 32, "float16", o_dtype="float32"),
    "decode": AttentionProblem(6, 1, 300, 8, 2, 64, "bfloat16", seqused_k=(0, 1, 63, 64, 65, 300)),
    "ragged": AttentionProblem(
        3, 60, 70, 4, 2, 64, "float16", causal=True,
        cu_seqlens_q=(0, 60, 60, 75), cu_seqlens_k=(0, 70, 75, 100),
    ),
    "padded queries, ragged keys": AttentionProblem(
        2, 9, 70, 4, 2, 64, cu_seqlens_k=(0, 70, 75)
    ),
    "ragged queries, keys in use": AttentionProblem(
        2, 40, 70, 4, 2, 64, causal=True, cu_seqlens_q=(0, 40, 41), seqused_k=(70, 33)
    ),
    "chunks": AttentionProblem(2, 40, 70, 4, 2, 64, causal=True, attention_chunk=16),
    "padding": AttentionProblem(2, 40, 70, 4, 2, 64, causal=True, leftpad_k=(3, 50)),
    "ragged, chunks and padding": AttentionProblem(
        2, 40, 70, 4, 2, 64, cu_seqlens_q=(0, 40, 41), cu_seqlens_k=(0, 70, 103), leftpad_k=(9, 0),
        attention_chunk=30,
    ),
    "sinks": AttentionProblem(
        2, 40, 70, 4, 2, 64, "bfloat16", causal=True, sinks=(0.5, 3.0, -2.0, 9.0)
    ),
    "ragged, sinks": AttentionProblem(
        2, 40, 70, 4, 2, 64, cu_seqlens_q=(0, 40, 41), cu_seqlens_k=(0, 70, 103),
        sinks=(0.5, 3.0, -2.0, 9.0),
    ),
    "decode, sinks": AttentionProblem(
        2, 1, 300, 4, 2, 64, "bfloat16", seqused_k=(300, 33), sinks=(0.5, 3.0, -2.0, 9.0)
    ),
    "slopes and mask": AttentionProblem(
        2, 40, 70, 4, 2, 64, causal=True, bias=BiasCase(slopes=2, kind="float16", repeats="h")
    ),
    "bool mask": AttentionProblem(2, 40, 70, 4, 2, 64, bias=BiasCase(kind="bool", repeats="b")),
    "mask with factors": AttentionProblem(
        2, 40, 70, 4, 2, 64, bias=BiasCase(kind="float16", repeats="bh", factors=True)
    ),
    "ragged, mask with factors": AttentionProblem(
        2, 40, 70, 4, 2, 64, cu_seqlens_q=(0, 40, 41), cu_seqlens_k=(0, 70, 103),
        bias=BiasCase(kind="float32", n_keys=39, from_end=True, factors=True),
    ),
    "ragged, bits": AttentionProblem(
        2, 40, 70, 4, 2, 64, cu_seqlens_q=(0, 40, 41), cu_seqlens_k=(0, 70, 103),
        bias=BiasCase(slopes=1, kind="bits", n_keys=39, from_end=True),
    ),
    "decode, mask": AttentionProblem(
        2, 8, 300, 4, 2, 64, seqused_k=(300, 33),
        bias=BiasCase(kind="bits", n_keys=8, from_end=True),
    ),
    "queries in use": AttentionProblem(2, 40, 70, 4, 2, 64, seqused_q=(40, 3)),
    "narrow v": AttentionProblem(2, 40, 70, 4, 2, 48, "bfloat16", causal=True, d_head_v=32),
    "wide v": AttentionProblem(2, 40, 70, 4, 2, 24, d_head_v=40),
    "ragged, narrow v": AttentionProblem(
        2, 40, 70, 4, 2, 48, cu_seqlens_q=(0, 40, 41), cu_seqlens_k=(0, 70, 103), d_head_v=32
    ),
    "e4m3": AttentionProblem(
        2, 40, 70, 4, 2, 64, "float8_e4m3fn", "bfloat16", causal=True,
        k_descale=((0.5, 1.0), (2.0, -1.0)), v_descale=2.0,
    ),
    "e4m3 queries": AttentionProblem(
        2, 40, 70, 4, 2, 64, "float8_e4m3fn", "float8_e4m3fn", causal=True, o_dtype="float16",
        q_descale=((0.5, 1.0), (2.0, -1.0)),
    ),
    "e4m3 queries, scales of tokens": AttentionProblem(
        2, 40, 70, 4, 2, 64, "float8_e4m3fn", "float8_e4m3fn", k_descale=0.5, q_token_scales=1,
    ),
    "ragged, e4m3 queries": AttentionProblem(
        2, 40, 70, 4, 2, 64, "float8_e4m3fn", "float8_e4m3fn", q_token_scales=2, v_descale=2.0,
        cu_seqlens_q=(0, 40, 41), cu_seqlens_k=(0, 70, 103),
    ),
    "no queries": AttentionProblem(2, 0, 70, 4, 2, 64),
    "no keys": AttentionProblem(2, 5, 0, 4, 2, 64),
}  # fmt: skip
every_problem = pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)


def _same_bits(found: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(found, expected))


def _tensors(p: AttentionProblem) -> list[torch.Tensor]:
    return [to_tensor(x) for x in make_inputs(p)]


# ---- Values ----


@every_way
@every_problem
def test_results_are_the_oracles(p: AttentionProblem, way: str) -> None:
    o, lse = torch_calls.run(p, way)
    assert _same_bits((o, lse), run(p))
    fill_unused(p, o, lse)
    assert_agrees(o, lse, expected(p, make_inputs(p), p_type(p, None), 4), f"replay: {p}")


@fewer_problems
@given(attention_problems(types_of_arrays), st.sampled_from(WAYS))
def test_random_problem_has_the_bits_of_the_other_functions(p: AttentionProblem, way: str) -> None:
    assert _same_bits(torch_calls.run(p, way), run(p))


@every_way
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["decode", "ragged queries, keys in use", "e4m3", "decode, sinks", "decode, mask"]
)
def test_keys_in_pages(name: str, kind: str, way: str) -> None:
    for q in (
        PagedProblem(PROBLEMS[name], 16, kind),
        PagedProblem(PROBLEMS[name], 3, kind, v_apart=True),
    ):
        _check_pages(q, way)


@fewer_problems
@given(
    attention_problems(types_of_arrays),
    st.integers(1, 40),
    st.sampled_from(KINDS),
    st.booleans(),
    st.sampled_from(WAYS),
    st.data(),
)
def test_random_pages(
    p: AttentionProblem, page_size: int, kind: str, v_apart: bool, way: str, data: st.DataObject
) -> None:
    used = tuple(data.draw(st.integers(0, p.seqlen_k)) for _ in range(p.batch))
    layouts = (p.layouts[0], "contiguous", "contiguous", p.layouts[3])
    leftpad = p.leftpad_k if kind.startswith("slots") else None
    p = replace(p, cu_seqlens_k=None, seqused_k=used, leftpad_k=leftpad, layouts=layouts)
    _check_pages(PagedProblem(p, page_size, kind, v_apart), way)


def _check_pages(q: PagedProblem, way: str) -> None:
    inputs, pages = make_pages(q, make_inputs(q.dense))
    p = replace(q.p, seqused_k=None)
    assert _same_bits(torch_calls.run(p, way, inputs, pages), run_paged(q)), f"{q}"


@pytest.mark.parametrize("limit", [17, 300, 10_000])
def test_longest_sequence_in_pages(limit: int) -> None:
    """A bound below what the table holds refuses lengths beyond it; one above changes nothing."""
    q = PagedProblem(replace(PROBLEMS["decode"], seqused_k=(9, 1, 0, 17, 2, 3)), 16)
    inputs, pages = make_pages(q, make_inputs(q.dense))
    q_, k, v = map(to_tensor, inputs)
    where = {name: to_tensor(x) for name, x in pages.items()}
    decode = torch.ops.flashattn.decode.default
    o = decode(q_, k, v, where["seqused_k"], where["page_table"], max_seqlen_k=limit)
    assert torch.equal(o, torch_ops.flash_attn_func(q_, k, v, **where))
    where["seqused_k"][0] = limit + 1
    with pytest.raises(flashattn.FlashAttnValueError, match=r"seqused_k\[0\]"):
        decode(q_, k, v, where["seqused_k"], where["page_table"], max_seqlen_k=limit)


@pytest.mark.parametrize("dtype", DTYPES)
@every_way
def test_repeated_keys(dtype: str, way: str) -> None:
    """Strides of 0 are always meant in torch."""
    p = replace(P, dtype=dtype)
    q, k, v = _tensors(p)
    k, v = k[:1].expand_as(k), v[:, :, :1].expand_as(v)
    options = torch_calls.options_of(p)
    o = torch_calls.call(q, k, v, way, options)
    assert torch.equal(o, torch_calls.call(q, k.contiguous(), v.contiguous(), way, options))


@fewer_problems
@given(
    shape=st.tuples(
        st.integers(0, 6), st.integers(0, 3), st.integers(0, 20), st.integers(1, 5),
        st.integers(1, 70),
    ),
    dtypes=st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES)),
    layout=st.sampled_from(["contiguous", "heads_first", "padded"]),
    has_sinks=st.booleans(),
    way=st.sampled_from(WAYS),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_random_partial_results(shape, dtypes, layout, has_sinks, way, seed) -> None:
    n, batch, seqlen, heads, _ = shape
    rng = np.random.default_rng(seed)
    o = arrange(rng.standard_normal(shape).astype(dtype_of(dtypes[0])), layout)
    lse = (5 * rng.standard_normal((n, batch, heads, seqlen))).astype(np.float32)
    sinks = (5 * rng.standard_normal(heads)).astype(np.float32) if has_sinks else None
    expected = flashattn.flash_combine(o, lse, sinks=sinks, dtype=dtypes[1], return_lse=True)
    strided = arrange(lse, layout)
    tensors = to_tensor(o), to_tensor(strided)
    options = {"dtype": getattr(torch, dtypes[1]), "return_lse": True}
    if has_sinks:
        options["sinks"] = to_tensor(sinks)
    if way == "operator":
        with Recorded() as recorded:
            found = torch_ops.flash_combine(*tensors, **options)
        assert recorded.operators == ["combine.lse"]
    else:
        found = torch_ops.flash_combine(*tensors, **options)
    assert _same_bits([to_array(x) for x in found], expected)


@every_way
def test_text_is_no_flag(way: str) -> None:
    q = torch.randn(1, 5, 4, 8)
    o, lse = q[None], torch.zeros(1, 1, 4, 5)
    cos = torch.ones(9, 4)
    calls = {
        "causal": lambda x: torch_ops.flash_attn_func(q, q, q, causal=x),
        "batch_invariant": lambda x: torch_ops.flash_attn_func(q, q, q, batch_invariant=x),
        "return_lse": lambda x: torch_ops.flash_attn_func(q, q, q, return_lse=x),
        "return_lse of partial results": lambda x: torch_ops.flash_combine(o, lse, return_lse=x),
        "rotary_interleaved": lambda x: torch_ops.flash_kv_append(
            q, q, torch.zeros(1, 9, 4, 8), torch.zeros(1, 9, 4, 8),
            seqused_k=torch.zeros(1, dtype=torch.int32), rotary_cos=cos, rotary_sin=cos,
            rotary_interleaved=x,
        ),
    }  # fmt: skip
    with torch.no_grad(), torch_calls.entered(way):
        for name, call in calls.items():
            call(False)
            with pytest.raises((ValueError, TypeError, RuntimeError), match=name.split()[0]):
                call("no")


@every_way
def test_ragged_partial_results(way: str) -> None:
    o, lse = torch.randn(3, 9, 4, 8), torch.randn(3, 4, 9)
    expected = flashattn.flash_combine(o, lse, return_lse=True)
    out, merged_lse = torch.empty(9, 4, 8), torch.empty(9, 4).T
    with torch.no_grad(), torch_calls.entered(way):
        found = torch_ops.flash_combine(o, lse, return_lse=True)
        assert torch.equal(torch_ops.flash_combine(o, lse), expected[0])
        given = torch_ops.flash_combine(o, lse, out=out, lse=merged_lse)
    assert given[0] is out and given[1] is merged_lse
    for x, y, right in zip(found, given, expected):
        assert torch.equal(x, right) and torch.equal(y, right)
    with pytest.raises(TypeError, match="lse_partial"):
        torch_ops.flash_combine(o, lse.numpy())


@every_way
def test_sinks_of_other_types_and_strides(way: str) -> None:
    q, k, v = torch.randn(3, 1, 5, 4, 8)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.25])
    o, lse = torch_ops.flash_attn_func(q, k, v, return_lse=True)
    expected = flashattn.flash_attn_func(q, k, v, sinks=sinks)
    merged = flashattn.flash_combine(o[None], lse[None], sinks=sinks)
    spread = torch.stack((sinks, sinks + 1), 1)[:, 0]
    with torch.no_grad(), torch_calls.entered(way):
        for x in (sinks.bfloat16(), sinks.double(), spread, torch.nn.Parameter(sinks)):
            assert torch.equal(torch_ops.flash_attn_func(q, k, v, sinks=x), expected)
            assert torch.equal(torch_ops.flash_combine(o[None], lse[None], sinks=x), merged)


@pytest.mark.parametrize("n", [1, 3])
def test_partial_lse_that_are_one_number_each_are_merged(n: int) -> None:
    """The C API takes strides of 0 along all axes but the first for those of contiguous ones."""
    o = torch.randn(n, 2, 5, 4, 8)
    lse = torch.randn(n, 1, 1, 1).expand(n, 2, 4, 5)
    expected = torch_ops.flash_combine(o, lse.contiguous(), return_lse=True)
    for found, right in zip(torch_ops.flash_combine(o, lse, return_lse=True), expected):
        assert torch.equal(found, right)


def test_partial_results_merge_in_place() -> None:
    o, lse = torch.randn(2, 1, 5, 4, 8), torch.randn(2, 1, 4, 5)
    expected = torch_ops.flash_combine(o, lse, return_lse=True)
    results = torch_ops.flash_combine(o, lse, out=o[0], lse=lse[0])
    assert results[0].data_ptr() == o.data_ptr() and torch.equal(o[0], expected[0])
    assert torch.equal(lse[0], expected[1])


# ---- Results ----


@every_way
def test_new_results(way: str) -> None:
    for name in ("prefill", "transposed", "ragged"):
        p = PROBLEMS[name]
        q, k, v = _tensors(p)
        options = {**torch_calls.options_of(p), "out_dtype": None}
        o, lse = torch_calls.call(q, k, v, way, {**options, "return_lse": True})
        assert o.shape == q.shape and o.dtype == q.dtype and o.is_contiguous()
        assert lse.shape == (*q.shape[:-3], q.shape[-2], q.shape[-3]) and lse.is_contiguous()
        assert lse.dtype == torch.float32
        alone = torch_calls.call(q, k, v, way, options)
        assert isinstance(alone, torch.Tensor) and torch.equal(alone, o)
        wide = torch_calls.call(q, k, v, way, {**options, "out_dtype": torch.float32})
        assert wide.dtype == torch.float32 and torch.equal(wide.to(o.dtype), o)


@every_way
@pytest.mark.parametrize("d_head", [1, 8])
def test_new_results_have_no_strides_of_axes_without_length(d_head: int, way: str) -> None:
    """torch takes q for contiguous whatever the strides of such axes are."""
    for batch, seqlen, n_heads in itertools.product((1, 2), repeat=3):
        p = AttentionProblem(batch, seqlen, 3, n_heads, 1, d_head)
        k, v = _tensors(p)[1:]
        q = torch.randn(5, 7, 11, 13)[:batch, :seqlen, :n_heads, :d_head]
        compact = torch.empty(q.shape).stride()
        for x in (q, q.contiguous()):
            o = torch_calls.call(x, k, v, way, {**torch_calls.options_of(p), "out_dtype": None})
            assert o.stride() == compact


@every_way
def test_given_results_are_returned_and_have_a_new_version(way: str) -> None:
    p = PROBLEMS["prefill"]
    q, k, v = _tensors(p)
    options = torch_calls.options_of(p)
    o, lse = torch_calls.call(q, k, v, way, {**options, "return_lse": True})
    out, own_lse = torch.empty_like(o), torch.empty(90, 2, 4).permute(1, 2, 0)[..., :70]
    versions = out._version, own_lse._version
    results = torch_calls.call(q, k, v, way, {**options, "out": out, "lse": own_lse})
    assert results[0] is out and results[1] is own_lse
    assert torch.equal(out, o) and torch.equal(own_lse, lse)
    assert (out._version, own_lse._version) == (versions[0] + 1, versions[1] + 1)
    assert torch_calls.call(q, k, v, way, {**options, "out": out}) is out
    assert torch_calls.call(q, k, v, way, {**options, "lse": own_lse})[1] is own_lse
    with torch.inference_mode():
        assert torch_calls.call(q, k, v, way, {**options, "out": torch.empty_like(o)}).equal(o)


@pytest.mark.parametrize(
    ("name", "operator"), [("prefill", "fwd"), ("ragged", "varlen_fwd"), ("decode", "fwd")]
)
def test_each_function_is_an_operator(name: str, operator: str) -> None:
    p = PROBLEMS[name]
    tensors, options = _tensors(p), torch_calls.options_of(p)
    with Recorded() as recorded:
        torch_calls.call(*tensors, "function", options)
        torch_calls.call(*tensors, "function", {**options, "return_lse": True})
        torch_calls.call(*tensors, "function", {**options, "out": torch.empty_like(tensors[0])})
    assert recorded.operators == [f"{operator}.{o}" for o in ("default", "lse", "out")]


def test_pages_of_padded_queries_are_decode() -> None:
    q = PagedProblem(PROBLEMS["decode"], 16)
    inputs, pages = make_pages(q, make_inputs(q.dense))
    where = {name: to_tensor(x) for name, x in pages.items()}
    with Recorded() as recorded:
        torch_ops.flash_attn_func(*map(to_tensor, inputs), **where)
    assert recorded.operators == ["decode.default"]


def test_plain_tensors_skip_the_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_calls.check_plain_tensors_skip_the_dispatcher("cpu", monkeypatch)


# ---- Calls at the same time ----


def test_threads_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    names = ["prefill", "decode", "ragged", "e4m3", "with gaps"] * 8
    wanted = {name: run(PROBLEMS[name]) for name in set(names)}
    with ThreadPoolExecutor(6) as pool:
        found = pool.map(lambda name: torch_calls.run(PROBLEMS[name], "function"), names)
        assert all(_same_bits(x, wanted[name]) for name, x in zip(names, found))


def test_call_within_a_call() -> None:
    """A task of the outer call computes attention itself, on the same thread."""
    small = PROBLEMS["decode"]
    tensors, options = _tensors(small), torch_calls.options_of(small)
    expected_inner, inner = torch_calls.call(*tensors, "function", options), []

    class Nested(SerialHook):
        def run_tasks(self, n_tasks: int, task) -> None:
            if len(self.calls) == 1:
                inner.append(torch_calls.call(*tensors, "function", options))
            super().run_tasks(n_tasks, task)

    p = replace(P, seqlen_q=300, seqlen_k=300)
    expected_outer = run(p)
    with Nested(n_workers=3):
        assert _same_bits(torch_calls.run(p, "function"), expected_outer)
    assert len(inner) == 1 and torch.equal(inner[0], expected_inner)


def test_large_workspaces_are_not_kept() -> None:
    from flashattn._torch import forward, frame

    q = torch.randn(1, 2000, 8, 128)
    torch_ops.flash_attn_func(q, q, q)
    kept = [f.workspace[1] for f in forward._frames]
    assert kept and max(kept) <= frame._KEPT_BYTES_MAX * 5 // 4
