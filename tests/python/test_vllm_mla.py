"""flashattn.vllm's backend of latent attention (MLA) on a stand-in for vLLM: decode and prefill
against the float64 oracle, what it takes of vLLM's metadata, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import vllm_mla_stub  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from vllm_mla_cases import (  # noqa: E402
    Batch,
    Choice,
    check_choice,
    check_prefill,
    check_step,
    make_builder,
    make_impl,
    run_step,
)
from vllm_mla_stub import stub, vllm_config  # noqa: E402
from vllm_stub import AttentionType, MLAPrefillBackendEnum  # noqa: E402

CACHES = ["auto", "fp8", "fp8_e4m3", "fp8_ds_mla"]


@pytest.fixture
def backend() -> Iterator[ModuleType]:
    with stub("cpu"):
        from flashattn.vllm import _mla_backend

        yield _mla_backend


STEPS = {
    "tokens": ((30, 1, 200, 0), (1, 1, 1, 1), {}),
    "drafts": ((9, 100, 31), (3, 3, 3), {}),
    "drafts of several lengths": ((9, 100, 31), (1, 3, 2), {}),
    "blocks apart": ((90, 3), (1, 2), {"gap": 5}),
    "a block of drafts": ((9, 100), (4, 4), {"causal": False}),
    "one head": ((40,), (1,), {"n_heads": 1}),
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_step(backend: ModuleType, step: tuple, cache: str) -> None:
    cached, new, options = step
    check_step(backend, Batch(cached, new, cache_dtype=cache, **options))


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_step_of_a_models_types(backend: ModuleType, dtype: Any, cache: str) -> None:
    check_step(backend, Batch((30, 1, 200), (1, 1, 2), cache_dtype=cache, dtype=dtype))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_random_steps(data: st.DataObject) -> None:
    draw, n = data.draw, data.draw(st.integers(1, 4))
    b = Batch(
        tuple(draw(st.lists(st.integers(0, 70), min_size=n, max_size=n))),
        tuple(draw(st.lists(st.integers(1, 4), min_size=n, max_size=n))),
        block_size=draw(st.sampled_from([1, 16, 19, 64, 128])),
        n_heads=draw(st.sampled_from([1, 8, 17])),
        gap=draw(st.integers(0, 3)),
        causal=draw(st.booleans()),
        cache_dtype=draw(st.sampled_from(CACHES)),
        seed=draw(st.integers(0, 2**31)),
    )
    with stub("cpu"):
        from flashattn.vllm import _mla_backend

        check_step(_mla_backend, b)


@pytest.mark.parametrize("dims", [(192, 128), (128, 48)])
def test_prompts(backend: ModuleType, dims: tuple[int, int]) -> None:
    from flashattn.vllm import _mla_prefill

    for dtype in (torch.float32, torch.bfloat16):
        b = Batch((30, 1, 64), (5, 40, 7), n_heads=4, dtype=dtype)
        check_prefill(_mla_prefill, b, dims)


def test_prompts_are_left_to_prefill(backend: ModuleType) -> None:
    """Requests of more queries than a draft has are not decoded."""
    b = Batch((30, 1, 64), (1, 2, 7))
    config = vllm_config(speculative_config__num_speculative_tokens=1)
    builder = make_builder(backend, config)
    metadata = builder.build(0, b.common())
    assert metadata.num_decode_tokens == 3
    assert metadata.decode.query_start_loc.tolist() == [0, 1, 3]
    assert metadata.decode.max_query_len == 2
    assert metadata.prefill.query_start_loc.tolist() == [0, 7]
    assert builder.get_varlen_cudagraph_max_query_len(config, None) == 2


def test_a_draft_step_reads_vllms_own_tensors(backend: ModuleType) -> None:
    """update_draft_decode_metadata() has nothing to do: metadata is made of views."""
    common = Batch((30, 1), (1, 1)).common()
    builder = make_builder(backend, vllm_config())
    metadata = builder.build(0, common)
    builder.update_draft_decode_metadata(metadata)
    common.seq_lens[1], common.query_start_loc[1], common.block_table_tensor[0, 0] = 7, 0, 2
    decode = metadata.decode
    assert decode.seq_lens[1] == 7 and decode.query_start_loc[1] == 0
    assert decode.block_table[0, 0] == 2


# ---- Chosen tokens ----


@pytest.fixture
def sparse() -> Iterator[ModuleType]:
    """vLLM has no attention to chosen tokens on the CPU: this is what it calls on CUDA devices."""
    with stub("cuda"):
        from flashattn.vllm import _mla_sparse_backend

        yield _mla_sparse_backend


CHOICES = {
    "tokens": ((30, 1, 200, 0), (1, 1, 1, 1), {}),
    "drafts": ((9, 100, 31), (3, 1, 2), {}),
    "prompts": ((0, 40), (33, 20), {}),
    "blocks apart": ((90, 3), (1, 2), {"gap": 5}),
    "padding": ((90, 3), (1, 1), {"padding": 3}),
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("step", CHOICES.values(), ids=CHOICES)
def test_chosen_tokens(sparse: ModuleType, step: tuple, cache: str) -> None:
    cached, new, options = step
    check_choice(sparse, Choice(Batch(cached, new, cache_dtype=cache, **options)))


def test_layers_that_share_a_choice(sparse: ModuleType) -> None:
    """vLLM finds the places once for a group of layers, where all tokens are decoded."""
    for new, n_layers, n_calls in (((1, 1), 3, 1), ((1, 1), 1, 0), ((1, 9), 3, 0)):
        group = SimpleNamespace(num_layers=n_layers, n_calls=0)
        check_choice(sparse, Choice(Batch((90, 30), new)), group)
        assert group.n_calls == n_calls


def test_refusals_of_chosen_tokens(sparse: ModuleType) -> None:
    b = Batch((30,), (1,))
    chosen = Choice(b).rows
    with pytest.raises(ValueError, match="no indexer, and no buffer of chosen tokens"):
        make_impl(sparse, b)
    with pytest.raises(NotImplementedError, match="kv_sharing_target_layer_name is not served"):
        make_impl(sparse, b, topk_indices_buffer=chosen, kv_sharing_target_layer_name="x")
    for name, value, complaint in (
        ("parallel_config__decode_context_parallel_size", 2, "decode_context_parallel_size is 2"),
        ("attention_config__hisparse_config", "any", "hisparse_config is set"),
    ):
        vllm_mla_stub.CURRENT.config = vllm_config(**{name: value})
        with pytest.raises(NotImplementedError, match=complaint):
            make_impl(sparse, b, topk_indices_buffer=chosen)
    common = b.common()
    common.causal = False
    with pytest.raises(NotImplementedError, match="causal is False: tokens are chosen"):
        make_builder(sparse, None).build(0, common)


def test_what_the_backend_of_chosen_tokens_says(sparse: ModuleType) -> None:
    backend = sparse.FlashAttnMLASparseBackend
    assert backend.is_mla() and backend.is_sparse() and backend.get_name() == "CUSTOM"
    assert backend.customize_spec("spec") == ("aligned", "spec")
    assert backend.get_supported_head_sizes() == [576]


# ---- What is refused ----


def test_refusals(backend: ModuleType) -> None:
    b = Batch((30,), (1,))
    for options, complaint in (
        ({"attn_type": AttentionType.ENCODER}, "of type encoder is not served"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "a cache of fp8_e5m2 is not served"),
        ({"kv_cache_dtype": "nvfp4_ds_mla"}, "a cache of nvfp4_ds_mla is not served"),
        ({"sliding_window": 5}, "sliding_window is not served"),
        ({"logits_soft_cap": 5.0}, "logits_soft_cap is not served"),
        ({"alibi_slopes": [1.0]}, "alibi_slopes is not served"),
        ({"kv_lora_rank": 256}, "kv_lora_rank is 256 and qk_rope_head_dim 64"),
        ({"qk_rope_head_dim": 0}, "kv_lora_rank is 512 and qk_rope_head_dim 0"),
    ):
        with pytest.raises(NotImplementedError, match=complaint):
            make_impl(backend, b, **options)


def test_ranks_that_share_a_cache_are_refused(backend: ModuleType) -> None:
    vllm_mla_stub.CURRENT.config = vllm_config(parallel_config__decode_context_parallel_size=2)
    with pytest.raises(NotImplementedError, match="decode_context_parallel_size is 2.*no LSE"):
        make_impl(backend, Batch((30,), (1,)))


@pytest.mark.parametrize(
    "name", ["scheduler_config__enable_chunked_prefill", "cache_config__enable_prefix_caching"]
)
def test_caches_that_vllm_does_not_read_on_the_cpu(backend: ModuleType, name: str) -> None:
    vllm_mla_stub.CURRENT.config = vllm_config(**{name: True})
    make_impl(backend, Batch((30,), (1,)))
    for cache in ("fp8", "fp8_ds_mla"):
        with pytest.raises(NotImplementedError, match=f"is on: vLLM does not read .* {cache} on"):
            make_impl(backend, Batch((30,), (1,), cache_dtype=cache))


def test_batches_of_another_meaning_are_refused(backend: ModuleType) -> None:
    for name, value, complaint in (
        ("causal", torch.ones(1, dtype=torch.bool), "causal is a tensor"),
        ("rswa_prefix_lens", torch.ones(1), "R-SWA"),
    ):
        common = Batch((30,), (1,)).common()
        setattr(common, name, value)
        with pytest.raises(NotImplementedError, match=complaint):
            make_builder(backend, vllm_config()).build(0, common)


def test_another_interface_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM takes an ImportError for a backend that is not there, and has its text."""
    monkeypatch.setattr(vllm_mla_stub.MLACommonImpl, "forward_mqa", lambda self, cache, q: None)
    complaint = r"forward_mqa\(\) takes \(cache, q\), not \(q, kv_c_and_k_pe_cache, "
    with stub("cuda"), pytest.raises(ImportError, match=complaint):
        from flashattn.vllm import _mla_backend  # noqa: F401


def test_an_output_that_is_to_be_quantised_is_refused(backend: ModuleType) -> None:
    from flashattn.vllm import _mla_prefill

    prefill, x = _mla_prefill.FlashAttnMLAPrefill(1.0), torch.zeros(1, 1, 192)
    with pytest.raises(NotImplementedError, match="output is to be quantised"):
        prefill.run_prefill_new_tokens(x, x, x, False, output_scale=x)


def test_a_cache_that_is_not_there_is_not_written(backend: ModuleType) -> None:
    """vLLM measures its memory before it has a cache."""
    x = torch.zeros(3, 512), torch.zeros(3, 1, 64)
    impl = make_impl(backend, Batch((30,), (1,)))
    impl.do_kv_cache_update(*x, torch.tensor([]), torch.zeros(3).long(), "auto", torch.ones(1))


# ---- What the backends say of themselves ----


def test_what_the_backend_says_of_itself() -> None:
    for kind, name, block_size in (("cpu", "CPU_MLA", 16), ("cuda", "CUSTOM", 64)):
        with stub(kind):
            from flashattn.vllm._mla_backend import FlashAttnMLABackend as backend
            from flashattn.vllm._mla_prefill import FlashAttnMLAPrefill as prefill

            assert backend.get_name() == name
            assert backend.get_preferred_block_size(16) == block_size
            assert backend.get_supported_head_sizes() == [576]
            assert backend.supports_dtype(torch.bfloat16)
            assert backend.supports_dtype(torch.float32) == (kind == "cpu")
            assert prefill.supports_dtype(torch.float32) == (kind == "cpu")
            assert not backend.get_impl_cls().supports_dcp
            assert not backend.get_impl_cls().supports_pcp
            wide = SimpleNamespace(qk_nope_head_dim=256, qk_rope_head_dim=64, v_head_dim=128)
            assert prefill.supports_mla_dimensions(wide) == (kind == "cpu")


@pytest.mark.parametrize(
    ("major", "minor", "cache", "dtype", "complaint"),
    [
        (7, 5, "auto", "bfloat16", "compute capability 7.5 has no kernel"),
        (8, 0, "fp8", "float16", None),
        (9, 0, "fp8_ds_mla", "bfloat16", None),
        (9, 0, "fp8_ds_mla", "float16", "a model of bfloat16, this one is of torch.float16"),
        (10, 0, "auto", "bfloat16", None),
    ],
)
def test_devices(major: int, minor: int, cache: str, dtype: str, complaint: str | None) -> None:
    with stub("cuda"):
        from flashattn.vllm._mla_backend import FlashAttnMLABackend as backend

        capability = SimpleNamespace(major=major, minor=minor)
        found = backend.supports_combination(
            576, getattr(torch, dtype), cache, 64, True, False, False, False, capability
        )
        assert found is None if complaint is None else complaint in found


def test_prefill_is_the_librarys_where_nobody_named_another() -> None:
    with stub("cuda"):
        from flashattn.vllm import _mla_backend

        for named in (None, "another"):
            vllm_mla_stub.CURRENT.config = vllm_config(attention_config__mla_prefill_backend=named)
            make_impl(_mla_backend, Batch((30,), (1,)))
            found = vllm_mla_stub.CURRENT.config.attention_config.mla_prefill_backend
            assert found == (named or MLAPrefillBackendEnum.CUSTOM)


def test_one_name_is_the_backend_that_a_layer_needs() -> None:
    with stub("cuda"):
        from flashattn.vllm import _custom
        from flashattn.vllm._backend import FlashAttnBackend
        from flashattn.vllm._mla_backend import FlashAttnMLABackend
        from flashattn.vllm._mla_sparse_backend import FlashAttnMLASparseBackend

        for backend, use_mla, use_sparse in (
            (FlashAttnBackend, False, False),
            (FlashAttnMLABackend, True, False),
            (FlashAttnMLASparseBackend, True, True),
        ):
            backend.validate_configuration = classmethod(lambda cls, **given: [cls, given])
            backend.full_cls_name = classmethod(lambda cls: cls)
            given = {"use_mla": use_mla, "use_sparse": use_sparse}
            choice = _custom.Backend
            assert choice.get_name() == "CUSTOM"
            found = choice.validate_configuration(**given, a=1)
            assert found == [backend, {**given, "a": 1}]
            assert choice.full_cls_name() is backend
        with pytest.raises(AttributeError, match="has no attribute Other"):
            _custom.Other  # noqa: B018


def test_results_do_not_depend_on_the_batch(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flashattn.vllm import _mla

    monkeypatch.setattr(_mla.envs, "VLLM_BATCH_INVARIANT", True, raising=False)
    both, one = Batch((90, 30), (1, 1)), Batch((90,), (1,))
    one.tokens, one.q = both.tokens[:1], both.q[:1]
    found = [run_step(backend, b, make_impl(backend, b), b.cache())[0] for b in (both, one)]
    assert np.array_equal(*found)
