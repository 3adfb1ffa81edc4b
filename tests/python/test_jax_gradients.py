"""Gradients of flashattn.jax have the bits of flashattn.flash_attn_backward, under jit, jax.vmap,
jax.checkpoint, of divided arrays and in jax.shard_map; what has none is refused by name."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import flashattn
import numpy as np
import pytest

pytest.importorskip("jax")

import flashattn.jax  # noqa: E402
import jax  # noqa: E402
import jax.export  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from bias_cases import BiasCase  # noqa: E402
from flashattn.jax import flash_attention  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402
from jax_cases import DERIVED, GradientCase  # noqa: E402
from problems import AttentionProblem  # noqa: E402

P = AttentionProblem(2, 9, 12, 4, 2, 16, causal=True)
CASES = {
    "plain": P,
    "bf16": replace(P, dtype="bfloat16"),
    "wide O": replace(P, dtype="float16", o_dtype="float32"),
    "d_head_v": replace(P, d_head_v=24),
    "lengths": replace(P, seqused_q=(9, 9), seqused_k=(3, 12), leftpad_k=(0, 7)),
    "sinks": replace(P, sinks=(0.5, 1.0, -1.0, 0.0)),
    "softcap": replace(P, softcap=2.0),
    "slopes": replace(P, bias=BiasCase(slopes=2)),
    "mask": replace(P, bias=BiasCase(kind="float32", factors=True)),
    "bool mask": replace(P, bias=BiasCase(kind="bool", repeats="b")),
    "ragged": replace(P, cu_seqlens_q=(0, 5, 14), cu_seqlens_k=(0, 8, 19)),
}


class Case(GradientCase):
    def wanted(self, d_lse: Any = None) -> dict[str, Any]:
        """Returns them by the function for all arrays."""
        q, k, v = (self.arrays[name] for name in "qkv")
        ragged = "cu_seqlens_q" in self.options
        attend = flashattn.flash_attn_varlen_func if ragged else flashattn.flash_attn_func
        o, lse = attend(q, k, v, return_lse=True, **self.options)
        found = flashattn.flash_attn_backward(
            np.asarray(self.d_o), q, k, v, o, lse, d_lse=d_lse, **self.options
        )
        return {name: x for name, x in zip(DERIVED, found) if x is not None}


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        assert found[name].dtype == x.dtype and np.array_equal(found[name], x), name


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    case = Case(CASES[name])
    wanted = case.wanted(np.asarray(case.d_lse))
    assert any(np.any(x != 0) for x in wanted.values())
    assert_same(case.gradients(case.own), wanted)
    assert_same(jax.jit(case.gradients)(case.own), wanted)


def test_an_lse_that_is_not_used_has_no_gradient() -> None:
    case = Case(P)
    wanted = case.wanted()
    found = jax.vjp(lambda own: case.results(own)[0], case.own)[1](case.d_o)[0]
    assert_same(found, wanted)
    case.numbers["return_lse"] = False
    assert_same(jax.vjp(case.results, case.own)[1](case.d_o)[0], wanted)


def test_only_the_gradient_of_lse() -> None:
    case = Case(P)
    found = jax.vjp(lambda own: case.results(own)[1], case.own)[1](case.d_lse)[0]
    d_lse = np.asarray(case.d_lse)
    case.d_o = np.zeros_like(case.d_o)
    assert_same(found, case.wanted(d_lse))


def test_checkpoint() -> None:
    case = Case(CASES["sinks"])
    kept = case.results
    case.results = jax.checkpoint(kept)
    assert_same(case.gradients(case.own), case.wanted(np.asarray(case.d_lse)))


def test_compilation_may_be_disabled() -> None:
    case = Case(P)
    with jax.disable_jit():
        found = case.gradients(case.own)
    assert_same(found, case.wanted(np.asarray(case.d_lse)))


def test_export() -> None:
    case = Case(P)
    names = flashattn.jax.TARGET, flashattn.jax.GRADIENT_TARGET
    allowed = [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]
    exported = jax.export.export(jax.jit(case.gradients), disabled_checks=allowed)(case.own)
    assert_same(exported.call(case.own), case.wanted(np.asarray(case.d_lse)))


def test_tokens_behind_the_last_sequence_have_gradients_of_zero() -> None:
    case = Case(replace(P, cu_seqlens_q=(0, 5, 14), cu_seqlens_k=(0, 8, 19)))
    rest = {name: np.full((3, *x.shape[1:]), 7, x.dtype) for name, x in case.own.items()}
    longer = {n: np.concatenate([x, rest[n]]) if n in "kv" else x for n, x in case.own.items()}
    wanted = case.gradients(case.own)
    for _ in range(3):
        found = jax.jit(case.gradients)(longer)
        for name in "kv":
            assert not found[name][-3:].any()
            assert np.array_equal(found[name][:-3], wanted[name])


def test_the_workspace_follows_the_tokens_of_a_ragged_batch() -> None:
    """The longest sequence that there may be is all tokens: they count once, not for each one."""

    def workspace_bytes(n_sequences: int) -> int:
        q = jnp.ones((4096, 16, 8))
        cu = jnp.linspace(0, 4096, n_sequences + 1).astype(jnp.int32)
        lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
        lengths |= {"max_seqlen_q": 4096, "max_seqlen_k": 4096}
        gradient = jax.grad(lambda q: flash_attention(q, q[:, :1], q[:, :1], **lengths).sum())
        text = jax.jit(gradient).lower(q).as_text()
        return max(int(n) for n in re.findall(r"tensor<(\d+)xui8>", text))

    of_rows = 8 * 16 * 4096
    assert workspace_bytes(1025) - workspace_bytes(1024) < of_rows // 8


def test_v_may_be_the_first_columns_of_k() -> None:
    rng = np.random.default_rng(2)
    q, k = (jnp.asarray(rng.standard_normal((1, 7, n, 24)), jnp.float32) for n in (4, 1))

    def of_latent(q: Any, k: Any) -> Any:
        return (flash_attention(q, k, None, d_head_v=16) ** 2).sum()

    def of_apart(q: Any, k: Any) -> Any:
        return (flash_attention(q, k, k[..., :16]) ** 2).sum()

    for found, wanted in zip(jax.grad(of_latent, (0, 1))(q, k), jax.grad(of_apart, (0, 1))(q, k)):
        assert np.array_equal(found, wanted)


# ---- vmap ----


@pytest.mark.parametrize("name", ["plain", "sinks", "slopes", "bool mask", "ragged"])
@pytest.mark.parametrize("shared", ["nothing", "k"])
def test_vmap(name: str, shared: str) -> None:
    case = Case(CASES[name])
    second = {name: x if name == shared else -x for name, x in case.own.items()}
    mapped = {
        name: x if name == shared else np.stack([x, second[name]]) for name, x in case.own.items()
    }
    axes = {name: None if name == shared else 0 for name in mapped}
    found = jax.vmap(case.gradients, in_axes=(axes,))(mapped)
    for i, own in enumerate((case.own, second)):
        assert_same({name: x[i] for name, x in found.items()}, case.gradients(own))


# ---- Several devices ----

SPECS = {"batch": PartitionSpec("x"), "heads": PartitionSpec(None, None, "x")}


def mesh() -> Mesh:
    assert len(jax.devices()) >= 2
    return Mesh(np.array(jax.devices()[:2]), ("x",))


@pytest.mark.parametrize("along", SPECS)
@pytest.mark.parametrize("name", ["plain", "sinks", "slopes", "bool mask"])
def test_jit_of_divided_arrays(name: str, along: str) -> None:
    case = Case(CASES[name])
    spec, whole = (NamedSharding(mesh(), x) for x in (SPECS[along], PartitionSpec()))
    parts = {n: jax.device_put(x, spec if n in "qkv" else whole) for n, x in case.own.items()}
    found, wanted = jax.jit(case.gradients)(parts), case.gradients(case.own)
    assert [*found["k"].sharding.spec] == [*SPECS[along]]
    if "sinks" in wanted:  # a sum over devices rounds in another order
        assert np.allclose(found.pop("sinks"), wanted.pop("sinks"), rtol=1e-5)
    assert_same(found, wanted)


def test_one_head_of_keys_is_whole_on_each_device() -> None:
    case = Case(replace(P, n_heads_kv=1))
    spec = NamedSharding(mesh(), PartitionSpec(None, None, "x"))
    whole = NamedSharding(mesh(), PartitionSpec())
    parts = {n: jax.device_put(x, spec if n == "q" else whole) for n, x in case.own.items()}
    assert_same(jax.jit(case.gradients)(parts), case.gradients(case.own))


def test_shard_map_adds_up_gradients_of_what_devices_share() -> None:
    case = Case(P)
    q, k, v = case.own.values()

    def loss(q: Any, k: Any, v: Any) -> Any:
        own = jnp.sin(flash_attention(q, k, v, causal=True)).sum()
        return jax.lax.psum(own, "x")

    specs = PartitionSpec("x"), PartitionSpec(), PartitionSpec()
    mapped = jax.shard_map(loss, mesh=mesh(), in_specs=specs, out_specs=PartitionSpec())
    found = jax.grad(mapped, (0, 1, 2))(q, k[:1], v[:1])
    own = jax.grad(lambda *x: jnp.sin(flash_attention(*x, causal=True)).sum(), (0, 1, 2))
    alone = [own(q[i : i + 1], k[:1], v[:1]) for i in range(2)]
    assert np.array_equal(found[0], np.concatenate([x[0] for x in alone]))
    for i in (1, 2):
        assert np.allclose(found[i], alone[0][i] + alone[1][i], rtol=1e-5, atol=1e-6)


def test_shard_map_of_a_masked_call() -> None:
    case = Case(CASES["mask"])
    factors = case.rest["mask_head_scale"]
    arrays = case.rest["attn_mask"], *case.own.values()

    def own(mask: Any, q: Any, k: Any, v: Any) -> Any:
        o = flash_attention(q, k, v, attn_mask=mask, mask_head_scale=factors, causal=True)
        return jnp.sin(o).sum()

    spec = PartitionSpec("x")
    mapped = jax.shard_map(
        lambda *x: jax.lax.psum(own(*x), "x"),
        mesh=mesh(),
        in_specs=spec,
        out_specs=PartitionSpec(),
    )
    found = jax.grad(mapped, (1, 2, 3))(*arrays)
    for i in range(2):
        wanted = jax.grad(own, (1, 2, 3))(*(x[i : i + 1] for x in arrays))
        assert all(np.array_equal(x[i : i + 1], y) for x, y in zip(found, wanted))


# ---- What has no gradient ----


def test_refusals() -> None:
    arrays = Case(P).own
    q, k, v = map(jnp.asarray, arrays.values())
    codes = k.astype(jnp.float8_e4m3fn)
    pages = {"page_table": jnp.zeros((2, 1), jnp.int32), "seqused_k": jnp.full(2, 12, jnp.int32)}
    ways = {
        "attn_mask has no gradient": lambda: jax.grad(
            lambda mask: flash_attention(q, k, v, attn_mask=mask).sum()
        )(jnp.zeros((9, 12))),
        "alibi_slopes has no gradient": lambda: jax.grad(
            lambda slopes: flash_attention(q, k, v, alibi_slopes=slopes).sum()
        )(jnp.ones(4)),
        "page_table is given: keys in pages": lambda: jax.grad(
            lambda q: flash_attention(q, k, v, **pages).sum()
        )(q),
        "k is of float8_e4m3fn": lambda: jax.grad(lambda q: flash_attention(q, codes, codes).sum())(
            q
        ),
        "no second derivative": lambda: jax.grad(
            lambda q: jax.grad(lambda q: flash_attention(q, k, v).sum())(q).sum()
        )(q),
    }
    for words, way in ways.items():
        with pytest.raises(NotImplementedError, match=words):
            way()
            pytest.fail(words)


def test_forward_mode_is_refused() -> None:
    q, k, v = map(jnp.asarray, Case(P).own.values())
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda q: flash_attention(q, k, v), (q,), (q,))


def test_what_needs_no_gradient_has_none() -> None:
    q, k, v = map(jnp.asarray, Case(P).own.values())
    found = jax.grad(lambda x: (x * flash_attention(q, k, jax.lax.stop_gradient(x * v))).sum())(2.0)
    assert found == pytest.approx(float(flash_attention(q, k, 2 * v).sum()), rel=1e-5)
