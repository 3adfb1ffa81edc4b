"""flashattn.sglang on a stand-in for SGLang: the steps of the backend against the float64 oracle,
what it takes of SGLang's batches, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import flashattn.sglang  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from sglang_cases import GRAPHS, Batch, Step, check_other_lengths, check_step, scaled  # noqa: E402
from sglang_stub import AttentionArch, AttentionType, Context, ForwardMode, stub  # noqa: E402


@pytest.fixture
def context() -> Iterator[Context]:
    with stub() as context:
        yield context


@pytest.fixture
def backend(context: Context) -> ModuleType:
    from flashattn.sglang import _backend

    return _backend


BATCHES = {
    "prompts": Batch((0, 0, 0), (5, 40, 97)),
    "prompts behind prefixes": Batch((30, 1, 200), (7, 33, 1)),
    "tokens": Batch((30, 1, 200), (1, 1, 1), "DECODE"),
    "drafts": Batch((9, 100), (4, 4), "TARGET_VERIFY", n_heads=8, n_heads_kv=1),
    "pages of 16": Batch((30, 0, 64), (1, 33, 7), page_size=16),
    "tokens in pages of 16": Batch((30, 0, 64), (1, 1, 1), "DECODE", page_size=16),
    "heads before tokens": Batch((30, 0, 64), (1, 33, 7), page_size=16, hnd=True),
    "a wide table": Batch((30, 1), (1, 1), "DECODE", width=1000),
    "V of another size": Batch((30, 1), (3, 9), d_head_v=16),
    "bfloat16": Batch((30, 0), (1, 60), dtype=torch.bfloat16),
}
every_batch = pytest.mark.parametrize("b", BATCHES.values(), ids=BATCHES)


@every_batch
def test_a_step(backend: ModuleType, context: Context, b: Batch) -> None:
    check_step(backend, context, b)


@every_batch
def test_softcap_sinks_and_windows(backend: ModuleType, context: Context, b: Batch) -> None:
    """SGLang's window of 20 keys is before the query's own."""
    sinks = torch.linspace(-1, 2, b.n_heads, dtype=torch.bfloat16)
    given = {"logit_cap": 3.0, "sliding_window_size": 20}
    check_step(backend, context, b, given, sinks, softcap=3.0, window_size=(20, 0))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_steps(data: st.DataObject) -> None:
    draw, n = data.draw, data.draw(st.integers(1, 4))
    mode = draw(st.sampled_from(["EXTEND", "DECODE", "TARGET_VERIFY"]))
    new = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    new = {"EXTEND": new, "DECODE": [1] * n, "TARGET_VERIFY": new[:1] * n}[mode]
    heads = draw(st.sampled_from([1, 2, 3]))
    b = Batch(
        tuple(draw(st.lists(st.integers(0, 70), min_size=n, max_size=n))),
        tuple(new),
        mode,
        page_size=draw(st.sampled_from([1, 4, 19, 64])),
        n_heads=heads * draw(st.integers(1, 4)),
        n_heads_kv=heads,
        d_head=draw(st.sampled_from([8, 40, 64])),
        d_head_v=draw(st.sampled_from([8, 40, 64])),
        width=draw(st.integers(0, 300)),
        windowed=draw(st.booleans()),
        seed=draw(st.integers(0, 2**31)),
    )
    window = draw(st.integers(-1, 60))
    layer = {"sliding_window_size": window, "layer_id": draw(st.integers(0, int(b.windowed)))}
    with stub() as context:
        from flashattn.sglang import _backend

        sides = (-1, -1) if window < 0 else (window, 0)
        check_step(_backend, context, b, layer, window_size=sides)


@pytest.mark.parametrize("layer_id", [0, 1])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("mode", ["EXTEND", "DECODE"])
def test_layers_with_windows_have_a_pool_of_their_own(
    backend: ModuleType, context: Context, mode: str, page_size: int, layer_id: int
) -> None:
    new = (1, 1, 1) if mode == "DECODE" else (1, 33, 7)
    b = Batch((30, 0, 64), new, mode, page_size=page_size, windowed=True)
    given = {"layer_id": layer_id, "sliding_window_size": 20 if layer_id else -1}
    check_step(backend, context, b, given, window_size=(20, 0) if layer_id else (-1, -1))


@pytest.mark.parametrize("window", [-1, 5])
@pytest.mark.parametrize("kind", [AttentionType.ENCODER_ONLY, AttentionType.DECODER_BIDIRECTIONAL])
def test_attention_in_both_directions(
    backend: ModuleType, context: Context, kind: AttentionType, window: int
) -> None:
    b = Batch((0, 0), (30, 7))
    given = {"attn_type": kind, "sliding_window_size": window}
    check_step(backend, context, b, given, causal=False, window_size=(window, window))


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("mode", ["EXTEND", "DECODE"])
def test_cross_attention(backend: ModuleType, context: Context, mode: str, page_size: int) -> None:
    """A decoder's tokens lie behind those of its encoder, in the same row of the table."""
    new = (1, 1, 1) if mode == "DECODE" else (3, 20, 1)
    b = Batch((5, 0, 40), new, mode, page_size=page_size, of_encoder=(33, 7, 12), width=150)
    check_step(backend, context, b)
    check_step(backend, context, b, {"is_cross_attention": True})


def test_k_and_v_of_an_encoder_are_written_to_its_slots(
    backend: ModuleType, context: Context
) -> None:
    b = Batch((0, 0), (3, 5), of_encoder=(9, 4))
    step = Step(backend, context, b, b.layer(is_cross_attention=True))
    k, v = (b.part(x, [0, 0], [9, 4]) for x in (b.k, b.v))
    for cache in step.pool.kv:
        cache.zero_()
    step.backend.init_forward_metadata(step.batch)
    found = step.forward(k, v)
    np.testing.assert_allclose(step.arrays(found), b.expected(cross=True), atol=1e-5)


def test_attention_in_chunks(backend: ModuleType, context: Context) -> None:
    b = BATCHES["prompts behind prefixes"]
    runner = {"model_config": {"is_local_attention_model": True}, "attention_chunk_size": 16}
    check_step(backend, context, b, {"use_irope": True}, runner=runner, attention_chunk=16)
    check_step(backend, context, b, {"use_irope": False}, runner=runner)


@pytest.mark.parametrize("mode", ["EXTEND", "DECODE"])
def test_a_cache_of_e4m3(backend: ModuleType, context: Context, mode: str) -> None:
    new = (1, 1, 1) if mode == "DECODE" else (1, 33, 7)
    b = Batch((30, 0, 64), new, mode, cache_dtype=torch.float8_e4m3fn)
    check_step(backend, context, b, scaled(), rounded=True)


def test_a_cache_of_e4m3_without_scales(backend: ModuleType, context: Context) -> None:
    b = Batch((30,), (5,), cache_dtype=torch.float8_e4m3fn)
    for x in (*b.k, *b.v):
        x.copy_(x.to(torch.float8_e4m3fn).float())
    check_step(backend, context, b)


def test_a_layer_without_new_keys_reads_what_another_wrote(
    backend: ModuleType, context: Context
) -> None:
    b = BATCHES["tokens"]
    step = Step(backend, context, b, b.layer())
    step.backend.init_forward_metadata(step.batch)
    first = step.forward(*step.new())
    again = step.forward(None, None, save_kv_cache=False)
    assert torch.equal(first, again)
    nothing = torch.full_like(step.new()[0], float("nan"))
    assert torch.equal(first, step.forward(nothing, nothing, save_kv_cache=False))


def test_o_is_written_where_sglang_wants_it(backend: ModuleType, context: Context) -> None:
    b = BATCHES["prompts"]
    step = Step(backend, context, b, b.layer())
    step.batch._attn_output = torch.empty_like(b.q)
    step.backend.init_forward_metadata(step.batch)
    assert step.forward(*step.new()) is step.batch._attn_output
    np.testing.assert_allclose(step.arrays(step.batch._attn_output), b.expected(), atol=1e-5)


def test_lengths_that_the_host_does_not_know(backend: ModuleType, context: Context) -> None:
    b = Batch((30, 1), (7, 3), width=200)
    step = Step(backend, context, b, b.layer())
    step.batch.seq_lens_cpu = step.batch.extend_seq_lens_cpu = None
    step.backend.init_forward_metadata(step.batch)
    np.testing.assert_allclose(step.arrays(step.forward(*step.new())), b.expected(), atol=1e-5)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn], ids=["fp32", "e4m3"])
def test_a_step_of_a_graph_serves_other_lengths(
    backend: ModuleType, context: Context, cache_dtype: Any, graph: str
) -> None:
    """Here the step is computed again. tests/gpu/test_gpu_sglang.py replays a CUDA graph."""
    check_other_lengths(backend, context, graph, lambda run: run, 200, cache_dtype=cache_dtype)


@pytest.mark.parametrize(("page_size", "end"), [(1, "POST_REPLAY"), (16, "IN_REPLAY")])
def test_sglang_waits_for_the_step_if_its_own_table_is_read(
    backend: ModuleType, context: Context, page_size: int, end: str
) -> None:
    b = Batch((30, 1), (1, 1), "DECODE", page_size=page_size)
    made = Step(backend, context, b, b.layer()).backend
    assert made.shared_read_ends(ForwardMode.DECODE).name == end
    assert made.shared_read_ends(ForwardMode.EXTEND).name == "UNKNOWN"


def test_deterministic_inference_is_batch_invariance(context: Context) -> None:
    """A request's O has the bits that it has alone."""
    from flashattn.sglang import _backend

    context.deterministic = True
    b = BATCHES["tokens"]
    whole = Step(_backend, context, b, b.layer())
    assert whole.backend.batch_invariant
    whole.backend.init_forward_metadata(whole.batch)
    found = whole.forward(*whole.new())
    for name in ("req_pool_indices", "seq_lens", "seq_lens_cpu", "out_cache_loc"):
        setattr(whole.batch, name, getattr(whole.batch, name)[1:2])
    whole.batch.batch_size = 1
    whole.backend.init_forward_metadata(whole.batch)
    k, v = (x[1:2] for x in whole.new())
    alone = whole.backend.forward_decode(b.q[1:2], k, v, whole.layer, whole.batch)
    assert torch.equal(found[1:2], alone)


def test_a_batch_without_requests(backend: ModuleType, context: Context) -> None:
    b = BATCHES["tokens"]
    step = Step(backend, context, b, b.layer())
    step.batch.forward_mode, step.batch.batch_size = ForwardMode.IDLE, 0
    step.batch.seq_lens_cpu = torch.zeros(0, dtype=torch.int64)
    step.backend.init_forward_metadata(step.batch)
    assert step.backend.forward_metadata is None


# ---- What is refused ----

RUNNERS = {
    "latent attention": {"model_config": {"attention_arch": AttentionArch.MLA}},
    "prefill-aware": {"prefill_aware_swa": True},
    "windows beside cross attention": {
        "sliding_window_size": 9,
        "model_config": {"is_encoder_decoder": True},
    },
    "the cache is of mxfp8": {"kv_cache_dtype_str": "mxfp8"},
    "the cache is of fp8_e5m2": {"kv_cache_dtype_str": "fp8_e5m2"},
    "the cache is of torch.float8_e5m2": {"kv_cache_dtype": torch.float8_e5m2},
    "--enable-unified-memory": {"kv_index_translator": SimpleNamespace(is_translating=True)},
    "float32, which has no CUDA kernel": {"device": "cuda"},
    "heads have 512 elements": {
        "device": "cuda",
        "dtype": torch.float16,
        "model_config": {"head_dim": 512},
    },
}


@pytest.mark.parametrize("complaint", RUNNERS)
def test_models_that_are_refused(backend: ModuleType, complaint: str) -> None:
    b = BATCHES["tokens"]
    with pytest.raises(NotImplementedError, match=f"does not serve this: .*{complaint}"):
        backend.FlashAttnBackend(b.runner(b.pool(), **RUNNERS[complaint]))


def test_servers_that_are_refused(backend: ModuleType, context: Context) -> None:
    b = BATCHES["tokens"]
    for where, name, value, complaint in (
        (context.parallel, "attn_cp_size", 2, "--attn-cp-size"),
        (context.parallel, "dcp_enabled", True, "--dcp-size"),
        (context.spec, "speculative_eagle_topk", 4, "drafts form trees"),
    ):
        before = getattr(where, name)
        setattr(where, name, value)
        with pytest.raises(NotImplementedError, match=complaint):
            backend.FlashAttnBackend(b.runner(b.pool()))
        setattr(where, name, before)
    backend.FlashAttnBackend(b.runner(b.pool()))


def test_batches_that_are_refused(backend: ModuleType, context: Context) -> None:
    b = BATCHES["tokens"]
    step = Step(backend, context, b, b.layer())
    ragged = SimpleNamespace(ragged_verify_layout="any")
    for changed, complaint in (
        ({"forward_mode": ForwardMode.DLLM_EXTEND}, "diffusion"),
        ({"forward_mode": ForwardMode.DRAFT_EXTEND_V2}, "--speculative-draft-attention-backend"),
        ({"spec_info": "any"}, "--speculative-draft-attention-backend"),
        (
            {"forward_mode": ForwardMode.TARGET_VERIFY, "spec_info": ragged},
            "different numbers of drafts",
        ),
        ({"multi_item_delimiter_indices": []}, "--enable-mis"),
    ):
        batch = SimpleNamespace(**{**vars(step.batch), **changed})
        with pytest.raises(NotImplementedError, match=complaint):
            step.backend.init_forward_metadata(batch)


def test_graphs_of_whole_prefills_are_refused(backend: ModuleType, context: Context) -> None:
    for name, mode in (("prompts", None), ("tokens", "DECODE"), ("drafts", "TARGET_VERIFY")):
        step = Step(backend, context, BATCHES[name], BATCHES[name].layer())
        if mode:
            step.backend.init_forward_metadata_out_graph(step.batch, in_capture=True)
            continue
        with pytest.raises(NotImplementedError, match="--cuda-graph-backend-prefill"):
            step.backend.init_forward_metadata_out_graph(step.batch, in_capture=True)


def test_decoding_that_is_compiled_on_the_cpu_is_refused(
    backend: ModuleType, context: Context
) -> None:
    step = Step(backend, context, BATCHES["tokens"], BATCHES["tokens"].layer())
    with pytest.raises(NotImplementedError, match="--enable-torch-compile"):
        step.backend.init_cpu_graph_state(4, 4)


def test_layers_that_are_refused(backend: ModuleType, context: Context) -> None:
    b = BATCHES["tokens"]
    step = Step(backend, context, b, b.layer())
    step.backend.init_forward_metadata(step.batch)
    k, v = step.new()
    for options in ({"k_rope": k}, {"score_mod": print}, {"return_lse": True}):
        with pytest.raises(NotImplementedError, match=f"gives a layer {next(iter(options))}"):
            step.forward(k, v, **options)
    step.forward(k, v, return_lse=False, k_rope=None)
    for changed, complaint in (
        ({"xai_temperature_len": 9}, "xai_temperature_len"),
        ({"pos_encoding_mode": "ALIBI"}, "ALIBI"),
        ({"logit_cap": 3.0, "logit_capping_method": "other"}, "by other, not by tanh"),
        ({"tp_k_head_num": 1}, "the cache has shape"),
    ):
        step.layer = b.layer(**changed)
        with pytest.raises(NotImplementedError, match=complaint):
            step.forward(k, v, save_kv_cache=False)


# ---- The registry ----


def test_registration(context: Context) -> None:
    flashattn.sglang.register()
    flashattn.sglang.register()
    assert context.choices == context.deterministic_choices == ["triton", "flashattn"]
    b = BATCHES["tokens"]
    made = context.backends["flashattn"](b.runner(b.pool()))
    assert type(made).__name__ == "FlashAttnBackend"


@pytest.mark.parametrize(
    "lacking",
    ["sglang.srt.arg_groups.choices", "sglang.srt.layers.attention.attention_registry"],
)
def test_an_sglang_without_the_registry_is_refused(
    context: Context, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, _, name = lacking.rpartition(".")
    monkeypatch.delattr(sys.modules[parent], name)
    monkeypatch.delitem(sys.modules, lacking)
    with pytest.raises(ImportError, match="no registry of attention backends"):
        flashattn.sglang.register()
    assert context.choices == ["triton"] and not context.backends


def test_importing_the_package_imports_neither_torch_nor_sglang() -> None:
    code = "import sys, flashattn.sglang; print({'torch', 'sglang'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
