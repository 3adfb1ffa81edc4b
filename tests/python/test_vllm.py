"""flashattn.vllm on a stand-in for vLLM: the backend's two calls against the float64 oracle, what
it takes of vLLM's metadata, and what it refuses."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, make_dataclass, replace
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import flashattn.vllm  # noqa: E402
from flashattn.vllm import _interface  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from vllm_cases import LAYER, Batch, CrossBatch, check_step, make_impl, run_step  # noqa: E402
from vllm_stub import (  # noqa: E402
    AttentionBackendEnum,
    AttentionType,
    Common,
    MLAPrefillBackendEnum,
    stub,
)


@pytest.fixture
def backend() -> Iterator[ModuleType]:
    with stub("cpu"):
        from flashattn.vllm import _backend

        yield _backend


BATCHES = {
    "prompts": Batch((0, 0, 0), (5, 40, 97)),
    "tokens": Batch((30, 1, 200), (1, 1, 1)),
    "mixed": Batch((30, 0, 64), (1, 33, 7), padding=5),
    "drafts": Batch((9, 100), (4, 4), n_heads=8, n_heads_kv=1),
    "tokens before heads": Batch((20, 0), (3, 50), layout="LBNHC"),
    "bfloat16": Batch((30, 0), (1, 60), dtype=torch.bfloat16),
}


@pytest.mark.parametrize("b", BATCHES.values(), ids=BATCHES)
def test_a_step(backend: ModuleType, b: Batch) -> None:
    check_step(backend, b, {})


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_steps(data: st.DataObject) -> None:
    draw, n = data.draw, data.draw(st.integers(1, 4))
    heads = draw(st.sampled_from([1, 2, 3]))
    b = Batch(
        tuple(draw(st.lists(st.integers(0, 70), min_size=n, max_size=n))),
        tuple(draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))),
        block_size=draw(st.sampled_from([1, 16, 19, 128])),
        n_heads=heads * draw(st.integers(1, 4)),
        n_heads_kv=heads,
        d_head=draw(st.sampled_from([8, 40, 64])),
        padding=draw(st.integers(0, 3)),
        layout=draw(st.sampled_from(["LBHNC", "LBNHC", "LHBNC"])),
        causal=draw(st.booleans()),
        seed=draw(st.integers(0, 2**31)),
    )
    window = draw(st.none() | st.integers(1, 60))
    with stub("cpu"):
        from flashattn.vllm import _backend

        sides = (-1, -1) if window is None else (window - 1, 0 if b.causal else window - 1)
        check_step(_backend, b, {"sliding_window": window}, window_size=sides)


def test_softcap_sinks_and_slopes(backend: ModuleType) -> None:
    b = BATCHES["mixed"]
    sinks = torch.tensor([0.5, -1.0, 3.0, 0.0])
    slopes = [0.5, 0.25, 0.125, 0.0625]
    given = {"logits_soft_cap": 3.0, "sinks": sinks, "alibi_slopes": slopes}
    options = {"softcap": 3.0, "sinks": sinks.double().numpy(), "alibi_slopes": np.array(slopes)}
    check_step(backend, b, given, **options)


@pytest.mark.parametrize("kind", [AttentionType.ENCODER, AttentionType.ENCODER_ONLY])
def test_an_encoder_has_no_cache(backend: ModuleType, kind: AttentionType) -> None:
    b = Batch((0, 0), (30, 7), causal=False)
    check_step(backend, b, {"attn_type": kind})
    check_step(backend, b, {"attn_type": kind, "sliding_window": 5}, window_size=(4, 4))


CROSS = {"attn_type": AttentionType.ENCODER_DECODER}
CROSS_BATCHES = {
    "first": CrossBatch((70, 33, 5), (4, 1, 9), begins=(True, True, True)),
    "later": CrossBatch((70, 33, 5), (1, 1, 1), begins=(False, False, False)),
    "mixed": CrossBatch((70, 33, 5), (1, 40, 1), begins=(False, True, False), padding=3),
    "without an encoder's tokens": CrossBatch((70, 0), (5, 2), begins=(True, False)),
    "none with an encoder's tokens": CrossBatch((0, 0), (5, 2), begins=(False, False)),
}


@pytest.mark.parametrize("b", CROSS_BATCHES.values(), ids=CROSS_BATCHES)
def test_a_decoder_sees_its_encoders_tokens(backend: ModuleType, b: CrossBatch) -> None:
    check_step(backend, b, CROSS)


def test_what_a_decoder_cannot_ask_of_an_encoder(backend: ModuleType) -> None:
    b = CROSS_BATCHES["first"]
    for options in ({"sliding_window": 8}, {"alibi_slopes": [0.5] * b.n_heads}):
        with pytest.raises(NotImplementedError, match="a sliding window or ALiBi slopes"):
            make_impl(backend, b, **CROSS, **options)
    causal = replace(b, causal=True)
    with pytest.raises(NotImplementedError, match="is to be causal"):
        check_step(backend, causal, CROSS)


def test_a_cache_of_e4m3_has_scales(backend: ModuleType) -> None:
    b = BATCHES["mixed"]

    def rounded(x: Any, scale: float) -> Any:
        return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale

    keys = [rounded(x, 0.5) for x in b.k], [rounded(x, 0.25) for x in b.v]
    for dtype in (torch.uint8, torch.float8_e4m3fn):
        impl = make_impl(backend, b, kv_cache_dtype="fp8")
        found = run_step(backend, b, impl, b.cache(dtype))
        np.testing.assert_allclose(found, b.expected(keys), atol=1e-5)


def test_a_cache_of_e4m3_has_scales_of_heads(backend: ModuleType) -> None:
    assert backend.FlashAttnBackend.supports_per_head_quant_scales()
    b = BATCHES["mixed"]
    of_heads = torch.tensor([0.5, 0.125]), torch.tensor([0.25, 2.0])
    layer = SimpleNamespace(_k_scale=of_heads[0], _v_scale=of_heads[1])

    def rounded(x: Any, scale: Any) -> Any:
        scale = scale[:, None]  # of [..., heads, columns]
        return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale

    keys = [rounded(x, of_heads[0]) for x in b.k], [rounded(x, of_heads[1]) for x in b.v]
    impl = make_impl(backend, b, kv_cache_dtype="fp8")
    found = run_step(backend, b, impl, b.cache(torch.uint8), layer)
    np.testing.assert_allclose(found, b.expected(keys), atol=1e-5)


@pytest.mark.parametrize("by", ["number", "head"])
def test_queries_of_e4m3_have_the_scale_of_the_layer(backend: ModuleType, by: str) -> None:
    """vLLM quantises Q for backends that ask for it; the result is that of its values."""
    b = BATCHES["mixed"]
    impl = make_impl(backend, b, kv_cache_dtype="fp8")
    assert impl.supports_quant_query_input is False
    scale = torch.tensor([0.25, 0.5]) if by == "head" else torch.tensor(0.25)
    layer = SimpleNamespace(**vars(LAYER), _q_scale=scale, _q_scale_float=0.25)
    of_rows = scale.expand(2).repeat_interleave(b.n_heads // 2)[:, None]
    rows = b.q.view(-1, b.n_heads, b.d_head)
    codes = (rows / of_rows).clamp(-448, 448).to(torch.float8_e4m3fn)
    values = (codes.float() * of_rows).view_as(b.q)
    quantised, exact = replace(b), replace(b)
    quantised.q, exact.q = codes.view(b.q.shape), values
    cache = b.cache(torch.uint8)
    found = run_step(backend, quantised, impl, cache, layer, output=torch.full_like(b.q, 7.0))
    expected = run_step(backend, exact, impl, cache, layer)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    plain = make_impl(backend, b)
    with pytest.raises(NotImplementedError, match="beside a cache that is not of e4m3"):
        run_step(backend, quantised, plain, b.cache(), layer, output=torch.full_like(b.q, 7.0))


def test_queries_of_e4m3_stay_where_a_kernel_multiplies_them(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine needs no GPU for the decision."""
    from flashattn import Feature
    from flashattn.compat import _scales

    features = Feature.CAUSAL | Feature.WINDOW | Feature.VARLEN | Feature.PAGED
    monkeypatch.setattr(_scales, "_products", lambda: ((64, features),))
    b = BATCHES["mixed"]

    def needs_16_bits(d_head: int, **options: Any) -> bool:
        query = SimpleNamespace(shape=(7, 4, d_head), dtype=torch.float8_e4m3fn, is_cpu=False)
        return make_impl(backend, b, kv_cache_dtype="fp8", **options)._needs_16_bits(query)

    assert not needs_16_bits(64)
    assert not needs_16_bits(32, sliding_window=5)
    assert needs_16_bits(128)
    assert needs_16_bits(40)
    assert needs_16_bits(64, logits_soft_cap=5.0)
    assert needs_16_bits(64, alibi_slopes=[0.5] * b.n_heads)
    monkeypatch.setattr(backend.envs, "VLLM_BATCH_INVARIANT", True, raising=False)
    assert needs_16_bits(64)


def test_a_layer_that_shares_a_cache_reads_what_the_other_wrote(backend: ModuleType) -> None:
    b = BATCHES["tokens"]
    cache = b.cache()
    first = run_step(backend, b, make_impl(backend, b), cache)
    impl = make_impl(backend, b, kv_sharing_target_layer_name="the first")
    metadata = backend.FlashAttnMetadataBuilder(None, [], None, b.q.device).build(0, b.common())
    nothing = torch.full((b.n_tokens, b.n_heads_kv, b.d_head), float("nan"))
    output = torch.empty_like(b.q)
    impl.forward(LAYER, b.q, nothing, nothing, cache, metadata, output)
    assert np.array_equal(output.view(first.shape).double().numpy(), first)


def test_without_metadata_o_is_zero(backend: ModuleType) -> None:
    b = BATCHES["tokens"]
    output = torch.full_like(b.q, 7.0)
    impl = make_impl(backend, b)
    found = impl.forward(LAYER, b.q, b.k[0], b.v[0], torch.empty(0), None, output)
    assert found is output and (output == 0).all()


# ---- What is refused ----


def test_refusals(backend: ModuleType) -> None:
    b = BATCHES["tokens"]
    for options, complaint in (
        ({"attn_type": "of another type"}, "attention of type of another type is not served"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "a cache of fp8_e5m2 is not served"),
    ):
        with pytest.raises(NotImplementedError, match=complaint):
            make_impl(backend, b, **options)
    with pytest.raises(ValueError, match=r"sinks have shape \(3,\), not \(4,\)"):
        make_impl(backend, b, sinks=torch.zeros(3))
    common = b.common()
    common.causal = torch.ones(3, dtype=torch.bool)
    with pytest.raises(NotImplementedError, match="causal is a tensor"):
        backend.FlashAttnMetadataBuilder(None, [], None, b.q.device).build(0, common)
    with pytest.raises(NotImplementedError, match="output is to be quantised"):
        make_impl(backend, b).forward(LAYER, b.q, b.q, b.q, b.q, None, b.q, output_scale=b.q)


def test_models_that_no_platform_asks_for_are_refused(backend: ModuleType) -> None:
    """vLLM's CPU platform takes a backend without asking what it serves."""
    builder = backend.FlashAttnMetadataBuilder
    plain = SimpleNamespace(kv_transfer_config=None, model_config=None)
    builder(None, [], plain, torch.device("cpu"))
    for changed, complaint in (
        ({"kv_transfer_config": "any"}, "a KV connector is set up"),
        ({"model_config": SimpleNamespace(is_mm_prefix_lm=True)}, "see each other"),
    ):
        with pytest.raises(NotImplementedError, match=complaint):
            builder(None, [], SimpleNamespace(**{**vars(plain), **changed}), torch.device("cpu"))


def test_a_cache_of_another_shape_is_refused(backend: ModuleType) -> None:
    b = BATCHES["tokens"]
    for cache in (b.cache().flatten(2), b.cache()[:, :1], b.cache()[..., 1:]):
        with pytest.raises(NotImplementedError, match="the cache has shape"):
            run_step(backend, b, make_impl(backend, b), cache)


def test_what_the_backend_says_of_itself() -> None:
    for kind, name, fp32, wide in (
        ("cpu", "CPU_ATTN", True, True),
        ("cuda", "CUSTOM", False, False),
    ):
        with stub(kind):
            from flashattn.vllm._backend import FlashAttnBackend as backend

            assert backend.get_name() == name
            assert backend.supports_dtype(torch.float32) == fp32
            assert backend.supports_dtype(torch.bfloat16)
            assert backend.supports_head_size(512) == wide and backend.supports_head_size(256)
            assert all(map(backend.supports_attn_type, AttentionType))
            assert not backend.supports_attn_type("of another type")
            assert "fp8_e5m2" not in backend.supported_kv_cache_dtypes
            assert backend.supports_kv_connector() == (kind == "cuda")


# ---- The registry ----


ON_CPU = {
    AttentionBackendEnum.CPU_ATTN: flashattn.vllm.BACKEND,
    AttentionBackendEnum.CPU_MLA: flashattn.vllm.MLA_BACKEND,
    AttentionBackendEnum.AMX_MLA: flashattn.vllm.MLA_BACKEND,
    MLAPrefillBackendEnum.CPU: flashattn.vllm.MLA_PREFILL,
    MLAPrefillBackendEnum.ZEN_CPU: flashattn.vllm.MLA_PREFILL,
}
ON_CUDA = {
    AttentionBackendEnum.CUSTOM: flashattn.vllm.CUSTOM,
    MLAPrefillBackendEnum.CUSTOM: flashattn.vllm.MLA_PREFILL,
}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("cpu", None, {}),
        ("cpu", "0", {}),
        ("cpu", "1", ON_CPU),
        ("cuda", None, ON_CUDA),
        ("rocm", "1", {}),
    ],
)
def test_registration(
    kind: str, value: str | None, expected: dict[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLASHATTN_VLLM", raising=False)
    if value is not None:
        monkeypatch.setenv("FLASHATTN_VLLM", value)
    with stub(kind) as registered:
        flashattn.vllm.register()
        flashattn.vllm.register()
        assert registered == expected


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHATTN_VLLM", "yes")
    with stub("cpu"), pytest.raises(ValueError, match="FLASHATTN_VLLM is 'yes': not 0 or 1"):
        flashattn.vllm.register()


@pytest.mark.parametrize("names", ["AttentionBackendEnum", "MLAPrefillBackendEnum"])
def test_a_vllm_without_a_name_starts_with_a_warning(
    names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLASHATTN_VLLM", raising=False)
    with stub("cuda") as registered:
        others = Enum(names, {"CPU_ATTN": 1, "CPU": 2})
        modules = [m for n, m in sys.modules.items() if n.startswith("vllm.") and hasattr(m, names)]
        for module in modules:
            monkeypatch.setattr(module, names, others)
        with pytest.warns(RuntimeWarning, match=f"has no {names}.CUSTOM"):
            flashattn.vllm.register()
        assert modules and registered == {}


def test_a_vllm_without_the_registry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHATTN_VLLM", "1")
    with stub("cpu"):
        monkeypatch.delitem(sys.modules, "vllm.v1.attention.backends.registry")
        with pytest.raises(ImportError, match="no registry of attention backends"):
            flashattn.vllm.register()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_vllm_without_the_registry_starts_where_nothing_was_asked(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLASHATTN_VLLM", raising=False)
    with stub(kind):
        monkeypatch.delitem(sys.modules, "vllm.v1.attention.backends.registry")
        with pytest.warns(RuntimeWarning, match="no registry of attention backends"):
            flashattn.vllm.register()


# ---- Another vLLM ----


def test_the_backend_has_the_interface_that_is_known(backend: ModuleType) -> None:
    """A vLLM that had the backend's own classes as base classes would not differ."""
    for name, arguments in _interface.CALLS.items():
        of_class, method = name.replace("Attention", "FlashAttn", 1).split(".")
        own = list(inspect.signature(getattr(getattr(backend, of_class), method)).parameters)
        assert own[1:][: len(arguments.split())] == arguments.split()
    assert set(_interface.READ) <= {field.name for field in fields(Common)}


def exchange_lengths(self: Any, common_prefix_len: int, fast_build: Any, metadata: Any) -> None: ...


@pytest.mark.parametrize(
    ("of_class", "name", "value", "complaint"),
    [
        ("AttentionMetadataBuilder", "build", exchange_lengths,
         r"AttentionMetadataBuilder.build\(\) takes \(common_prefix_len, fast_build, metadata\), "
         r"not \(common_prefix_len, common_attn_metadata, fast_build\)"),
        ("AttentionImpl", "forward", None, r"AttentionImpl.forward\(\) takes \(\), not \(layer, "),
        ("AttentionBackend", "forward_includes_kv_cache_update", None,
         "AttentionBackend has no forward_includes_kv_cache_update"),
        ("AttentionLayer", "__annotations__", {}, "AttentionLayer has no _k_scale_float; "),
    ],
)  # fmt: skip
def test_another_interface_is_not_registered(
    of_class: str, name: str, value: Any, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHATTN_VLLM", "1")
    with stub("cpu") as registered:
        changed = getattr(sys.modules["vllm.v1.attention.backend"], of_class)
        if value is None:
            monkeypatch.delattr(changed, name)
        else:
            monkeypatch.setattr(changed, name, value)
        with pytest.raises(ImportError, match=f"has another interface: {complaint}"):
            flashattn.vllm.register()
        assert registered == {}


def test_fields_that_are_not_read(backend: ModuleType) -> None:
    common = BATCHES["tokens"].common()
    builder = backend.FlashAttnMetadataBuilder(None, [], None, torch.device("cpu"))
    builder.build(0, replace(common, num_reqs=3, _cache=torch.zeros(1)))
    with pytest.raises(NotImplementedError, match="gives rswa_prefix_lens with a batch: R-SWA"):
        builder.build(0, replace(common, rswa_prefix_lens=torch.zeros(3)))
    later = make_dataclass("Later", [("new_mask", Any, None)], bases=(Common,))
    values = {field.name: getattr(common, field.name) for field in fields(common)}
    builder.build(0, later(**values))
    with pytest.raises(NotImplementedError, match="gives new_mask with a batch: not known here"):
        builder.build(0, later(**values, new_mask=1))


def test_a_version_that_is_not_known_is_named(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = backend.FlashAttnMetadataBuilder
    for version in ("0.32.0", "0.33.1+cpu"):
        monkeypatch.setattr(sys.modules["vllm"], "__version__", version)
        builder(None, [], None, torch.device("cpu"))
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.330.0")
    with pytest.warns(RuntimeWarning, match=r"written for vLLM 0.32 and 0.33, and this is 0.330.0"):
        builder(None, [], None, torch.device("cpu"))


def test_importing_the_package_imports_neither_torch_nor_vllm() -> None:
    code = "import sys, flashattn.vllm; print({'torch', 'vllm'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
