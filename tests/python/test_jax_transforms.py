"""flashattn.jax under jax.vmap, jax.shard_map, jit of divided arrays, in loops and exported, has
the bits of the calls that it stands for, and gathers no arrays among devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from bias_cases import BiasCase  # noqa: E402
from flashattn.jax import TARGET, flash_attention  # noqa: E402
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec  # noqa: E402
from jax_cases import keywords  # noqa: E402
from paging import PagedProblem, make_pages  # noqa: E402
from problems import AttentionProblem, make_inputs  # noqa: E402

P = AttentionProblem(2, 33, 40, 4, 2, 32, causal=True)
RAGGED = replace(P, cu_seqlens_q=(0, 11, 40), cu_seqlens_k=(0, 25, 60))
CASES = {
    "plain": P,
    "lengths": replace(P, seqused_q=(33, 33), seqused_k=(3, 40), leftpad_k=(0, 7)),
    "sinks": replace(P, sinks=(0.5, 1.0, -1.0, 0.0)),
    "slopes of heads": replace(P, bias=BiasCase(slopes=1)),
    "slopes": replace(P, bias=BiasCase(slopes=2)),
    "mask": replace(P, bias=BiasCase(kind="float32")),
    "mask with factors": replace(P, bias=BiasCase(kind="float32", factors=True)),
    "mask of all sequences": replace(P, bias=BiasCase(kind="bool", repeats="b")),
    "mask of all heads": replace(P, bias=BiasCase(kind="bits", repeats="h")),
    "scale": replace(P, dtype="float8_e4m3fn", k_descale=0.5),
    "scales": replace(P, dtype="float8_e4m3fn", v_descale=((1.0, 2.0), (0.5, 1.5))),
    "ragged": RAGGED,
    "ragged queries": replace(P, cu_seqlens_q=(0, 11, 40)),
}
Case = tuple[dict[str, np.ndarray], dict[str, object]]


def make_case(p: AttentionProblem, seed: int = 0) -> Case:
    """Returns the arrays of a problem, q, k and v among them, and its other arguments."""
    p = replace(p, seed=seed, bias=p.bias and replace(p.bias, seed=seed))
    more, numbers = keywords({**p.call_options(), "return_lse": True})
    return {**dict(zip("qkv", make_inputs(p))), **more}, numbers


def paged_case(kind: str, seed: int = 0) -> Case:
    q = PagedProblem(replace(P, seqused_k=(40, 17), seed=seed), 8, kind, v_apart=kind != "slots")
    pages, options = make_pages(q, make_inputs(q.dense))
    return {**dict(zip("qkv", pages)), **options}, {"causal": True, "return_lse": True}


def attend(arrays: dict[str, Any], numbers: dict[str, object]) -> tuple[Any, Any]:
    return flash_attention(**arrays, **numbers)


def assert_same(found: Any, wanted: Any) -> None:
    for own, other in zip(found, wanted):
        assert np.array_equal(own, other, equal_nan=True)


# ---- vmap ----


def assert_maps(cases: list[dict[str, np.ndarray]], shared: set[str], numbers: Any) -> None:
    """Asserts that a mapped call, in which arrays of the names in `shared` are those of the first
    case, has the bits of a call for each case."""
    mapped = {
        name: cases[0][name] if name in shared else np.stack([case[name] for case in cases])
        for name in cases[0]
    }
    axes = {name: None if name in shared else 0 for name in mapped}
    found = jax.jit(jax.vmap(lambda arrays: attend(arrays, numbers), in_axes=(axes,)))(mapped)
    for i, case in enumerate(cases):
        one = {name: cases[0][name] if name in shared else case[name] for name in case}
        assert_same([x[i] for x in found], attend(one, numbers))


@pytest.mark.parametrize("shares", ["nothing", "k and v", "q", "all but q"])
@pytest.mark.parametrize("name", CASES)
def test_vmap(name: str, shares: str) -> None:
    made = [make_case(CASES[name], seed) for seed in range(3)]
    cases, numbers = [arrays for arrays, _ in made], made[0][1]
    shared = {
        "nothing": set(),
        "k and v": {"k", "v"},
        "q": {"q"},
        "all but q": set(cases[0]) - {"q"},
    }[shares]
    assert_maps(cases, shared, numbers)


@pytest.mark.parametrize("pools", ["shared", "mapped"])
@pytest.mark.parametrize("kind", ["table", "rows", "indptr", "slots"])
def test_vmap_of_pages(kind: str, pools: str) -> None:
    made = [paged_case(kind, 0) for _ in range(3)]
    cases = [{**arrays, "q": arrays["q"] + i} for i, (arrays, _) in enumerate(made)]
    assert_maps(cases, {"k", "v"} if pools == "shared" else set(), made[0][1])


def test_a_mapped_call_is_one_call_of_a_larger_batch() -> None:
    arrays, numbers = make_case(P)
    mapped = {name: np.stack([x] * 3) for name, x in arrays.items()}
    twice = {name: np.stack([x] * 2) for name, x in mapped.items()}
    one = jax.vmap(lambda arrays: attend(arrays, numbers))
    text = jax.jit(jax.vmap(one)).lower(twice).as_text()
    assert text.count(f"@{TARGET}") == 1 and "while" not in text
    assert "tensor<12x33x4x32xf32>" in text


def test_an_axis_may_be_mapped_anywhere() -> None:
    arrays, numbers = make_case(P)
    q = np.stack([arrays["q"]] * 3, axis=2)
    found = jax.vmap(lambda q: attend({**arrays, "q": q}, numbers), in_axes=2, out_axes=1)(q)
    assert found[0].shape == (2, 3, 33, 4, 32)
    assert_same([x[:, 1] for x in found], attend(arrays, numbers))


# ---- Several devices ----

SPECS = {"batch": PartitionSpec("x"), "heads": PartitionSpec(None, None, "x")}
DIVIDED = {name: p for name, p in CASES.items() if p.cu_seqlens_q is None}


def mesh(kind: AxisType = AxisType.Auto) -> Mesh:
    assert len(jax.devices()) >= 2
    return Mesh(np.array(jax.devices()[:2]), ("x",), axis_types=(kind,))


def gathers(function: Callable[..., Any], *arguments: Any) -> bool:
    text = function.lower(*arguments).compile().as_text()
    assert TARGET in text
    return "all-gather" in text or "all-to-all" in text or "all-reduce" in text


def divided(arrays: dict[str, np.ndarray], spec: PartitionSpec, on: Mesh) -> dict[str, Any]:
    """Returns arrays of which q, k and v are divided, and the others on every device."""
    return {
        name: jax.device_put(x, NamedSharding(on, spec if name in "qkv" else PartitionSpec()))
        for name, x in arrays.items()
    }


@pytest.mark.parametrize("along", SPECS)
@pytest.mark.parametrize("name", DIVIDED)
def test_jit_of_divided_arrays(name: str, along: str) -> None:
    arrays, numbers = make_case(DIVIDED[name])
    parts = divided(arrays, SPECS[along], mesh())
    call = jax.jit(lambda arrays: attend(arrays, numbers))
    found = call(parts)
    assert_same(found, attend(arrays, numbers))
    assert not gathers(call, parts)
    assert [*found[0].sharding.spec] == [*SPECS[along]]
    assert found[1].sharding.spec[0 if along == "batch" else 1] == "x"


@pytest.mark.parametrize("name", ["ragged", "ragged queries"])
def test_jit_of_divided_ragged_arrays(name: str) -> None:
    arrays, numbers = make_case(CASES[name])
    q, k = ((None,) * (arrays[name].ndim - 2) for name in "qk")
    on = mesh()
    parts = divided(arrays, PartitionSpec(), on)
    parts["q"] = jax.device_put(arrays["q"], NamedSharding(on, PartitionSpec(*q, "x")))
    for kv in "kv":
        parts[kv] = jax.device_put(arrays[kv], NamedSharding(on, PartitionSpec(*k, "x")))
    call = jax.jit(lambda arrays: attend(arrays, numbers))
    assert_same(call(parts), attend(arrays, numbers))
    assert not gathers(call, parts)


@pytest.mark.parametrize("kind", ["table", "rows", "slots"])
def test_jit_of_a_divided_batch_over_one_pool(kind: str) -> None:
    arrays, numbers = paged_case(kind)
    on = mesh()
    parts = divided(arrays, PartitionSpec(), on)
    parts["q"] = jax.device_put(arrays["q"], NamedSharding(on, PartitionSpec("x")))
    call = jax.jit(lambda arrays: attend(arrays, numbers))
    found = call(parts)
    assert_same(found, attend(arrays, numbers))
    assert not gathers(call, parts) and found[0].sharding.spec[0] == "x"


@pytest.mark.parametrize("n_heads_kv", [1, 2, 3])
def test_heads_are_divided_only_into_whole_groups(n_heads_kv: int) -> None:
    arrays, numbers = make_case(replace(P, n_heads=6, n_heads_kv=n_heads_kv))
    on = mesh()
    parts = divided(arrays, PartitionSpec(), on)
    parts["q"] = jax.device_put(arrays["q"], NamedSharding(on, SPECS["heads"]))
    call = jax.jit(lambda arrays: attend(arrays, numbers))
    assert_same(call(parts), attend(arrays, numbers))
    assert gathers(call, parts) == (n_heads_kv == 3)


def test_axes_that_cannot_be_divided_are_gathered() -> None:
    arrays, numbers = make_case(replace(P, seqlen_q=34))
    parts = divided(arrays, PartitionSpec(None, "x"), mesh())
    call = jax.jit(lambda arrays: attend(arrays, numbers))
    assert_same(call(parts), attend(arrays, numbers))
    assert gathers(call, parts)


@pytest.mark.parametrize("along", SPECS)
def test_types_that_say_how_arrays_are_divided(along: str) -> None:
    arrays, numbers = make_case(P)
    on = mesh(AxisType.Explicit)
    with jax.set_mesh(on):
        parts = divided(arrays, SPECS[along], on)
        call = jax.jit(lambda arrays: attend(arrays, numbers))
        found = call(parts)
        assert not gathers(call, parts)
    assert_same(found, attend(arrays, numbers))
    assert jax.typeof(found[0]).sharding.spec[0 if along == "batch" else 2] == "x"


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("along", SPECS)
def test_shard_map(along: str, check_vma: bool) -> None:
    arrays, numbers = make_case(P)
    results = SPECS[along], PartitionSpec(*([None] * (along == "heads")), "x")
    call = jax.jit(
        jax.shard_map(
            lambda q, k, v: attend({"q": q, "k": k, "v": v}, numbers),
            mesh=mesh(),
            in_specs=SPECS[along],
            out_specs=results,
            check_vma=check_vma,
        )
    )
    parts = divided(arrays, SPECS[along], mesh())
    assert_same(call(*parts.values()), attend(arrays, numbers))
    assert not gathers(call, *parts.values())


def test_shard_map_knows_that_results_vary_where_keys_do() -> None:
    arrays, _ = make_case(P)
    q, k, v = arrays.values()
    specs = PartitionSpec(), PartitionSpec("x"), PartitionSpec("x")

    def one(q: Any, k: Any, v: Any) -> Any:
        return flash_attention(q[:1], k, v)

    found = jax.shard_map(one, mesh=mesh(), in_specs=specs, out_specs=PartitionSpec("x"))(q, k, v)
    assert_same([found], [flash_attention(np.stack([q[0], q[0]]), k, v)])
    with pytest.raises(ValueError, match="replication"):
        jax.shard_map(one, mesh=mesh(), in_specs=specs, out_specs=PartitionSpec())(q, k, v)


# ---- Loops and export ----


def test_scan_and_while() -> None:
    arrays, numbers = make_case(replace(P, seqlen_k=33, n_heads_kv=4))
    q, k, v = map(jnp.asarray, arrays.values())

    def step(q: Any, _: Any) -> tuple[Any, Any]:
        o = flash_attention(q, k, v, causal=True)
        return o, o

    last, steps = jax.jit(lambda q: jax.lax.scan(step, q, length=3))(q)
    wanted = q
    for i in range(3):
        wanted = flash_attention(wanted, k, v, causal=True)
        assert_same([steps[i]], [wanted])
    found = jax.lax.while_loop(
        lambda state: state[0] < 3, lambda state: (state[0] + 1, step(state[1], None)[0]), (0, q)
    )
    assert_same([last, found[1]], [wanted, wanted])


def test_export() -> None:
    from jax import export

    arrays, numbers = make_case(P)
    call = jax.jit(lambda arrays: attend(arrays, numbers))
    with pytest.raises(ValueError, match=TARGET):
        export.export(call)(arrays)
    allowed = [export.DisabledSafetyCheck.custom_call(TARGET)]
    exported = export.export(call, disabled_checks=allowed)(arrays)
    assert_same(exported.call(arrays), attend(arrays, numbers))
    pytest.importorskip("flatbuffers")
    assert_same(export.deserialize(exported.serialize()).call(arrays), attend(arrays, numbers))
