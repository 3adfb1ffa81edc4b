"""flashattn.jax against the oracle, and bit for bit against the functions for all arrays: any
problem and type, padded, ragged, in pages, with masks.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

import flashattn  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from bias_cases import KINDS as MASKS  # noqa: E402
from bias_cases import BiasCase  # noqa: E402
from expectation import assert_agrees  # noqa: E402
from flashattn._argument_list import ATTENTION, OUTPUTS  # noqa: E402
from flashattn._jax.call import ABSENT, OPERANDS  # noqa: E402
from flashattn.jax import flash_attention  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from jax_cases import run_problem  # noqa: E402
from memory import LATENT  # noqa: E402
from paging import KINDS, PagedProblem, make_pages, run_paged  # noqa: E402
from problems import AttentionProblem, expected, fill_unused, make_inputs, p_type, run  # noqa: E402
from strategies import attention_problems, random_problems  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
P = AttentionProblem(2, 70, 90, 4, 2, 64, "bfloat16", causal=True)
PROBLEMS = {
    "bfloat16": P,
    "float16": replace(P, dtype="float16", window_size=(20, 3), causal=False),
    "float32": replace(P, dtype="float32", softcap=5.0, softmax_scale=0.3),
    "float32 O": replace(P, o_dtype="float32"),
    "one head of K and V": replace(P, n_heads=8, n_heads_kv=1, d_head_v=32),
    "sinks": replace(P, sinks=(0.5, -np.inf, 3.0, -2.0)),
    "chunks": replace(P, attention_chunk=32),
    "shifted": replace(P, diagonal_offset=-35, bias=BiasCase(slopes=1)),
    "lengths": replace(P, seqused_q=(70, 3), seqused_k=(80, 90), leftpad_k=(5, 0)),
    "ragged": replace(
        P, batch=3, cu_seqlens_q=(0, 1, 1, 71), cu_seqlens_k=(0, 90, 95, 140)
    ),
    "e4m3": replace(P, dtype="float8_e4m3fn", k_descale=0.5, v_descale=((1.0, 2.0), (0.5, 1.5))),
    "e4m3 queries": replace(
        P, dtype="float8_e4m3fn", q_dtype="float8_e4m3fn", q_descale=((1.0, 2.0), (0.5, 1.5))
    ),
    "e4m3 queries, scales of tokens": replace(
        P, dtype="float8_e4m3fn", q_dtype="float8_e4m3fn", q_token_scales=1, v_descale=0.5
    ),
    "ragged, e4m3 queries": replace(
        P, batch=3, cu_seqlens_q=(0, 1, 1, 71), cu_seqlens_k=(0, 90, 95, 140),
        dtype="float8_e4m3fn", q_dtype="float8_e4m3fn", q_token_scales=1,
    ),
    "slopes": replace(P, bias=BiasCase(slopes=2)),
    "decode": AttentionProblem(3, 1, 3000, 8, 2, 64, "bfloat16", seqused_k=(3000, 0, 65)),
    "q8_0": replace(P, dtype="q8_0", q_dtype="bfloat16"),
    "q4_0 beside float16": replace(P, dtype="q4_0", v_dtype="float16", d_head_v=32),
    "latent tokens": AttentionProblem(
        2, 3, 300, 16, 1, 576, LATENT, "bfloat16", causal=True, seqused_k=(300, 7), d_head_v=512
    ),
}  # fmt: skip


def assert_same_bits(found: tuple[np.ndarray, np.ndarray], p: AttentionProblem, what: str) -> None:
    inputs = make_inputs(p)
    for own, other in zip(found, run(p, inputs)):
        assert own.dtype == other.dtype and own.shape == other.shape
        assert own.tobytes() == other.tobytes() or np.array_equal(
            own.astype(np.float32), other.astype(np.float32), equal_nan=True
        ), f"{what}; replay: {p}"


@pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)
def test_results_are_the_oracles(p: AttentionProblem) -> None:
    inputs = make_inputs(p)
    found = run_problem(p, inputs)
    assert_same_bits(found, p, "other bits")
    o, lse = found
    fill_unused(p, o, lse)
    assert_agrees(o, lse, expected(p, inputs, p_type(p, None)), f"replay: {p}")


@given(attention_problems())
@settings(random_problems, max_examples=40)
def test_random_problems_have_the_bits_of_the_functions_for_all_arrays(p: AttentionProblem) -> None:
    p = replace(p, layouts=("contiguous",) * 4)
    assert_same_bits(run_problem(p, make_inputs(p)), p, "other bits")


@pytest.mark.parametrize("name", ["bfloat16", "q8_0", "latent tokens"])
@pytest.mark.parametrize("v_apart", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_pages(kind: str, v_apart: bool, name: str) -> None:
    p = PROBLEMS[name]
    if v_apart and name == "latent tokens":
        pytest.skip("v is k")
    q = PagedProblem(replace(p, seqused_k=p.seqused_k or (90, 33)), 16, kind, v_apart)
    inputs = make_inputs(q.dense)
    pages, options = make_pages(q, inputs)
    found = run_problem(replace(q.p, seqused_k=None), pages, options)
    for own, other in zip(found, run_paged(q, inputs)):
        assert np.array_equal(own, other)


def test_ends_of_keys_beside_pages_say_the_lengths() -> None:
    q = PagedProblem(replace(P, seqused_k=(90, 33)), 16)
    pages, options = make_pages(q, make_inputs(q.dense))
    wanted = run_problem(replace(P, seqused_k=None), pages, options)
    del options["seqused_k"]
    options |= {"cu_seqlens_k": np.array([0, 90, 123], np.int32), "max_seqlen_k": 90}
    found = run_problem(P, pages, options)
    assert all(np.array_equal(own, other) for own, other in zip(found, wanted))


def test_a_bool_mask_may_have_nobody_to_mask() -> None:
    q, mask = np.zeros((0, 3, 2, 8), np.float32), np.ones((0, 1, 3, 3), bool)
    assert flash_attention(q, q, q, attn_mask=mask).shape == q.shape


def test_k_and_v_may_have_two_types() -> None:
    q, k, v = make_inputs(P)
    v = v.astype(np.float16)
    assert np.array_equal(flash_attention(q, k, v), flashattn.flash_attn_func(q, k, v))


# ---- V in K's columns ----

COLUMNS = {
    "bfloat16": AttentionProblem(2, 3, 90, 16, 1, 576, "bfloat16", causal=True, d_head_v=512),
    "float32": AttentionProblem(2, 40, 90, 4, 2, 64, "float32", d_head_v=40),
    "q8_0": AttentionProblem(2, 1, 90, 4, 1, 96, "q8_0", d_head_v=64),
    "e4m3": AttentionProblem(
        2, 1, 90, 4, 2, 64, "float8_e4m3fn", d_head_v=64, k_descale=0.5, v_descale=0.5
    ),
}


def _first_columns(p: AttentionProblem) -> tuple[list[np.ndarray], dict[str, object]]:
    """Returns q, k and the view of k that is v, and keywords."""
    q, k, _ = make_inputs(p)
    return [q, k, k[..., : p.v_shape[-1]]], {
        name: value for name, value in p.call_options().items() if value is not None
    }


@pytest.mark.parametrize("name", COLUMNS)
def test_v_may_be_the_first_columns_of_k(name: str) -> None:
    p = COLUMNS[name]
    (q, k, v), options = _first_columns(p)
    expected = flashattn.flash_attn_func(q, k, v, return_lse=True, **options)
    attend = jax.jit(
        lambda q, k: flash_attention(q, k, None, d_head_v=p.d_head_v, return_lse=True, **options)
    )
    found = attend(q, k)
    assert all(np.array_equal(own, other) for own, other in zip(found, expected))
    assert " slice(" not in attend.lower(q, k).compile().as_text()


@pytest.mark.parametrize("jit", [False, True])
def test_vmap_over_nothing(jit: bool) -> None:
    k = jnp.ones((1, 8, 4, 64))
    for attend in (lambda q: flash_attention(q, k, k), lambda q: flash_attention(q, q, q)):
        mapped = jax.vmap(attend)
        o = (jax.jit(mapped) if jit else mapped)(jnp.ones((0, 1, 8, 4, 64)))
        assert o.shape == (0, 1, 8, 4, 64)


def test_v_in_ks_columns_under_vmap() -> None:
    p = COLUMNS["float32"]
    (q, k, v), _ = _first_columns(p)
    q, k, v = (np.stack([x, x[::-1]]) for x in (q, k, v))
    expected = [flashattn.flash_attn_func(*x) for x in zip(q, k, v)]
    attend = jax.vmap(lambda q, k: flash_attention(q, k, None, d_head_v=p.d_head_v))
    assert np.array_equal(attend(q, k), expected)


@pytest.mark.parametrize("name", ["q8_0", "latent tokens"])
def test_bytes_under_vmap(name: str) -> None:
    p = replace(PROBLEMS[name], seqused_k=None)
    q, k, v = make_inputs(p)
    v = None if name == "latent tokens" else v
    kv_dtype = p.call_options()["kv_dtype"]
    one = flash_attention(q, k, v, kv_dtype=kv_dtype)
    two = jax.vmap(
        lambda q, k, v: flash_attention(q, k, v, kv_dtype=kv_dtype),
        in_axes=(0, 0, None if v is None else 0),
    )(*(None if x is None else jnp.stack([x, x]) for x in (q, k, v)))
    assert (two == one).all()


def test_latent_tokens_are_k_and_v() -> None:
    p = PROBLEMS["latent tokens"]
    q, k, _ = make_inputs(p)
    options = {"kv_dtype": "latent_e4m3", "causal": True}
    k = jnp.asarray(k)
    o = flash_attention(q, k, None, **options)
    assert (flash_attention(q, k, k, d_head_v=512, **options) == o).all()


# ---- Masks ----


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("repeats", ["", "b", "h", "q", "bhq"])
@pytest.mark.parametrize("kind", MASKS)
def test_masks(kind: str, repeats: str, ragged: bool) -> None:
    p = replace(P, bias=BiasCase(kind=kind, repeats=repeats, seed=3), causal=False)
    if ragged:
        p = replace(p, cu_seqlens_q=(0, 11, 70))
    assert_same_bits(run_problem(p, make_inputs(p)), p, kind)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("from_end", [False, True])
def test_masks_of_some_keys(kind: str, from_end: bool) -> None:
    """Ragged keys have no one length, and the mask covers 45 of them, or the last 20."""
    bias = BiasCase(kind=kind, n_keys=20 if from_end else 45, from_end=from_end)
    p = replace(P, bias=bias, cu_seqlens_k=(0, 90, 130))
    assert_same_bits(run_problem(p, make_inputs(p)), p, kind)


def test_one_column_for_all_keys() -> None:
    q, k, v = make_inputs(P)
    column = np.linspace(-1, 1, 70, dtype=np.float32)[:, None]
    found = flash_attention(q, k, v, attn_mask=column)
    assert np.array_equal(found, flashattn.flash_attn_func(q, k, v, attn_mask=column))
    hidden = np.arange(70)[:, None] % 3 == 0
    found = flash_attention(q, k, v, attn_mask=hidden)
    whole = np.broadcast_to(hidden, (70, 90))
    assert np.array_equal(found, flashattn.flash_attn_func(q, k, v, attn_mask=whole))


def test_eager_calls_and_calls_under_jit_are_the_same() -> None:
    q, k, v = map(jnp.asarray, make_inputs(P))
    eager = flash_attention(q, k, v, causal=True)
    assert isinstance(eager, jax.Array)
    assert (eager == jax.jit(lambda *x: flash_attention(*x, causal=True))(q, k, v)).all()


@pytest.mark.parametrize("wide", [False, True])
def test_types_of_64_bits_may_be_on(wide: bool) -> None:
    p = PROBLEMS["lengths"]
    with jax.enable_x64(wide):
        assert_same_bits(run_problem(p, make_inputs(p)), p, f"enable_x64={wide}")


def test_a_scale_may_be_traced() -> None:
    q, k, v = make_inputs(PROBLEMS["e4m3"])
    attend = jax.jit(lambda scale: flash_attention(q, k, v, k_descale=scale))
    assert (attend(0.25) == flash_attention(q, k, v, k_descale=0.25)).all()


def test_the_number_of_threads_may_change_after_compilation() -> None:
    """The workspace is that of one thread then, and the call has more."""
    p = replace(P, seqlen_q=300, seqlen_k=2000)
    q, k, v = map(jnp.asarray, make_inputs(p))
    flashattn.set_num_threads(1)
    attend = jax.jit(lambda *x: flash_attention(*x, causal=True))
    first = attend(q, k, v)
    for n in (4, 1):
        flashattn.set_num_threads(n)
        assert (attend(q, k, v) == first).all()


# ---- One list of arguments ----


def test_arguments_are_those_of_the_list() -> None:
    parameters = list(inspect.signature(flash_attention).parameters.values())[3:]
    listed = {x.name: x.default for x in (*ATTENTION, *OUTPUTS) if x.name not in ("out", "lse")}
    listed |= {"kv_dtype": None, "d_head_v": None}
    listed = {name: default for name, default in listed.items() if name not in ABSENT}
    assert {x.name: x.default for x in parameters} == listed


def test_operands_have_the_order_of_the_handlers() -> None:
    """Programs that were exported name operands by their bits."""
    text = (ROOT / "src/xla/operands.h").read_text()
    listed = re.findall(r"^    OPERAND_(\w+),$", text, re.MULTILINE)
    assert tuple(name.lower() for name in listed) == OPERANDS
    names = re.findall(r'\[OPERAND_(\w+)\] = \{"(\w+)"', (ROOT / "src/xla/operands.c").read_text())
    assert [name.lower() for name, _ in names] == [name for _, name in names] == list(OPERANDS)
