"""flashattn.hf: models of transformers against their own eager attention, with random weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from subprocesses import run_python

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import flashattn.hf  # noqa: E402
from flashattn.hf import _attention, _masks, _padding, _registry  # noqa: E402
from flashattn.hf._masks import PatternMask, mask_of  # noqa: E402
from transformers import masking_utils  # noqa: E402
from transformers import modeling_flash_attention_utils as loading  # noqa: E402

# The tests that expect torch to compute a layer say so; in all others that is an error.
pytestmark = pytest.mark.filterwarnings("error:flashattn.hf")

NAME = "flashattn"
SIZES = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
ENCODER = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
DECODERS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=6),
    "gemma2": lambda: transformers.Gemma2Config(
        **SIZES,
        head_dim=16,
        sliding_window=6,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=5.0,
    ),
    "deepseek": lambda: transformers.DeepseekV3Config(  # heads of V are narrower than those of K
        **{**SIZES, "num_key_value_heads": 4},
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        first_k_dense_replace=2,
        n_routed_experts=2,
        num_experts_per_tok=1,
        n_group=1,
        topk_group=1,
    ),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=100, n_embd=64, n_layer=2, n_head=4),
}
# For gpt-oss, which takes kernels of its own instead of a name with "flash", and for Llama 4.
WITHOUT_FLASH = "libfa"
ENCODERS = {
    "bert": lambda: transformers.BertConfig(**ENCODER),
    "modernbert": lambda: transformers.ModernBertConfig(
        **ENCODER, local_attention=8, global_attn_every_n_layers=2, pad_token_id=0
    ),
}
SEQLEN, N_NEW = 13, 8
ids = torch.randint(3, 100, (2, SEQLEN), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    flashattn.hf.register()
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are tiny
    with torch.no_grad():
        yield
    torch.set_num_threads(n_threads)
    flashattn.hf.unregister()


def decoder(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        DECODERS[name](), attn_implementation="eager"
    ).eval()
    for weights in model.parameters():  # scores large enough for softmax and softcap to matter
        if weights.ndim == 2:
            weights.mul_(4)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model


def padding(side: str) -> torch.Tensor:
    mask = torch.ones_like(ids)
    if side == "left":
        mask[0, :5] = 0
    elif side == "right":
        mask[0, -5:] = 0
    elif side == "between":
        mask[0, 3:6] = 0
    return mask


def logits(model: torch.nn.Module, mask: torch.Tensor, **options: object) -> torch.Tensor:
    """Returns those of the tokens that are no padding."""
    return model(ids, attention_mask=mask, **options).logits[mask.bool()]


def generated(model: torch.nn.Module, mask: torch.Tensor, **options: object) -> torch.Tensor:
    return model.generate(
        ids, attention_mask=mask, max_new_tokens=N_NEW, do_sample=False, **options
    )


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits_are_those_of_eager_attention(name: str, side: str) -> None:
    model, mask = decoder(name), padding(side)
    expected = logits(model, mask)
    model.set_attn_implementation(NAME)
    assert_close(logits(model, mask), expected)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("side", ["none", "left"])
def test_greedy_tokens_are_those_of_eager_attention(name: str, side: str) -> None:
    model, mask = decoder(name), padding(side)
    expected = generated(model, mask)
    model.set_attn_implementation(NAME)
    for cache in ("dynamic", "static"):
        found = generated(model, mask, cache_implementation=cache)
        assert torch.equal(found, expected) and found.shape[1] == SEQLEN + N_NEW


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_name_without_flash_uses_public_interfaces_alone(name: str) -> None:
    flashattn.hf.unregister()
    before = loading._lazy_imports
    flashattn.hf.register("libfa")
    try:
        assert loading._lazy_imports is before
        model, mask = decoder(name), padding("left")
        expected = logits(model, mask), generated(model, mask)
        model.set_attn_implementation("libfa")
        assert_close(logits(model, mask), expected[0])
        for cache in ("dynamic", "static"):
            found = generated(model, mask, cache_implementation=cache)
            assert torch.equal(found, expected[1])
    finally:
        flashattn.hf.unregister("libfa")


@pytest.mark.parametrize("name", ["llama", "mistral"])
@pytest.mark.parametrize("side", ["left", "between"])
def test_steps_of_a_static_cache_are_one_graph(name: str, side: str) -> None:
    """Padding between tokens makes the mask an array."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    config = transformers.CompileConfig(fullgraph=True, backend=backend, mode=None)
    config._compile_all_devices = True
    model, mask = decoder(name), padding(side)
    expected = generated(model, mask, disable_compile=True, cache_implementation="static")
    flashattn.hf.register(WITHOUT_FLASH)  # transformers takes fullgraph from names with "flash"
    try:
        model.set_attn_implementation(WITHOUT_FLASH)
        torch._dynamo.reset()
        found = generated(model, mask, compile_config=config, cache_implementation="static")
    finally:
        flashattn.hf.unregister(WITHOUT_FLASH)
    assert torch.equal(found, expected)
    attention = torch.ops.flashattn.fwd.default
    n_layers = model.config.num_hidden_layers
    assert graphs and all(graph.count(attention) == n_layers for graph in graphs)
    # torch compiles again for the second value of a number, which transformers keeps for windows.
    assert len(graphs) <= 2


def test_a_chat_continues_from_its_cache() -> None:
    """Several queries meet a cache that is not empty, with padding in front of it."""
    for name in ("llama", "mistral"):
        model, mask = decoder(name), padding("left")
        found = {}
        for implementation in ("eager", NAME):
            model.set_attn_implementation(implementation)
            cache = transformers.DynamicCache(config=model.config)
            model(ids[:, :8], attention_mask=mask[:, :8], cache=cache)
            found[implementation] = model(ids[:, 8:], attention_mask=mask, cache=cache).logits
        assert_close(found[NAME], found["eager"])


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_encoders(name: str, side: str) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(ENCODERS[name](), attn_implementation="eager")
    model.eval()
    mask = padding(side)
    found = {}
    for implementation in ("eager", NAME):
        model.set_attn_implementation(implementation)
        output = model(ids, attention_mask=mask).last_hidden_state
        found[implementation] = output[mask.bool()]
    assert_close(found[NAME], found["eager"])


def test_an_encoder_and_a_decoder() -> None:
    """Queries of cross-attention all count, whatever the encoder's padding is."""
    torch.manual_seed(0)
    sizes = {
        f"{part}_{of}": size
        for part in ("encoder", "decoder")
        for of, size in (("layers", 1), ("attention_heads", 4), ("ffn_dim", 64))
    }
    config = transformers.BartConfig(
        vocab_size=100, d_model=64, **sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2
    )
    model = transformers.BartModel._from_config(config, attn_implementation="eager").eval()
    for side in ("left", "right"):
        found = {}
        for implementation in ("eager", NAME):
            model.set_attn_implementation(implementation)
            output = model(ids, attention_mask=padding(side), decoder_input_ids=ids.flip(1))
            found[implementation] = output.last_hidden_state
        assert_close(found[NAME], found["eager"])


@pytest.mark.parametrize("name", ["llama", "mistral"])
@pytest.mark.parametrize("use_cache", [False, True])
def test_packed_positions(name: str, use_cache: bool) -> None:
    lengths = (4, 1, 8)
    model = decoder(name)
    expected = torch.cat([model(part).logits for part in ids[:1].split(lengths, 1)], 1)
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    model.set_attn_implementation(NAME)
    assert_close(model(ids[:1], position_ids=positions, use_cache=use_cache).logits, expected)
    cu_seqlens = torch.tensor([0, 4, 5, 13], dtype=torch.int32)
    ragged = {"cu_seq_lens_q": cu_seqlens, "cu_seq_lens_k": cu_seqlens}
    for longest in ({}, {"max_length_q": torch.tensor(8), "max_length_k": 8}):
        given = model(ids[:1], position_ids=positions, **ragged, **longest)
        assert_close(given.logits, expected)


def test_packed_rows_of_a_batch() -> None:
    model = decoder("llama")
    positions = torch.stack([torch.arange(13) % 5, torch.arange(13) % 9])
    expected = model(ids, position_ids=positions, use_cache=False).logits
    model.set_attn_implementation(NAME)
    assert_close(model(ids, position_ids=positions, use_cache=False).logits, expected)


def batched(model: torch.nn.Module, **options: object) -> list[list[int]]:
    """Returns the tokens that continuous batching generates for the prompts of padding("left")."""
    greedy = transformers.GenerationConfig(
        max_new_tokens=N_NEW, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    small = transformers.ContinuousBatchingConfig(
        page_size=16, num_blocks=16, max_batch_tokens=64, **options
    )
    done = model.generate_batch(
        inputs=[ids[0, 5:].tolist(), ids[1].tolist()],
        generation_config=greedy,
        continuous_batching_config=small,
        progress_bar=False,
    )
    return [done[key].generated_tokens for key in sorted(done)]


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_continuous_batching(name: str) -> None:
    model = decoder(name)
    expected = generated(model, padding("left"))[:, SEQLEN:].tolist()
    model.set_attn_implementation(NAME)
    assert batched(model) == expected


def test_continuous_batching_by_block_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers decodes from block tables on CUDA devices; here it is made to on the CPU."""
    from transformers.generation.continuous_batching import initialization

    monkeypatch.setattr(initialization, "ensure_decode_fast_path_is_available", lambda *_: None)
    calls = []
    with_cache = _attention.attend_cache
    monkeypatch.setattr(
        _attention,
        "attend_cache",
        lambda *args, **kwargs: (calls.append(1), with_cache(*args, **kwargs))[1],
    )
    model = decoder("llama")
    expected = generated(model, padding("left"))[:, SEQLEN:].tolist()
    model.set_attn_implementation(NAME)
    assert batched(model, max_blocks_per_request=4) == expected
    assert len(calls) == model.config.num_hidden_layers * (N_NEW - 1)


def test_new_values_that_are_narrower_than_the_pages() -> None:
    """Caches of transformers have heads as wide for V as for K."""
    caches = torch.randn(2, 6, 4, 2, 16)
    q, k, v = (torch.randn(1, heads, 1, 16) for heads in (4, 2, 2))
    v[..., 8:] = 0
    results = []
    for new in (v, v[..., :8]):
        k_cache, v_cache = caches.clone()
        out, _ = _attention.attention(
            SimpleNamespace(is_causal=True),
            q,
            k,
            new,
            cu_seq_lens_q=torch.tensor([0, 1], dtype=torch.int32),
            cu_seq_lens_k=torch.tensor([0, 10], dtype=torch.int32),
            max_length_q=1,
            max_length_k=1,
            block_table=torch.tensor([[3, 0, 5]], dtype=torch.int32),
            k_cache=k_cache,
            v_cache=v_cache,
        )
        results.append((out, k_cache, v_cache))
    (out, *whole), (narrow_out, *narrow) = results
    assert torch.equal(narrow_out, out[..., :8])
    assert all(torch.equal(a, b) for a, b in zip(whole, narrow))


@pytest.mark.parametrize("s_aux", [None, torch.tensor([0.5, -1.0, 2.0, 0.0])], ids=["", "sinks"])
def test_new_tokens_are_written_to_the_pages_of_a_block_table(s_aux: torch.Tensor | None) -> None:
    n_heads, n_heads_kv, d_head, page_size = 4, 2, 16, 4
    k_cache, v_cache = torch.randn(2, 6, page_size, n_heads_kv, d_head)
    table = torch.tensor([[3, 0, 5], [1, 4, 2]], dtype=torch.int32)
    lengths = [10, 6]  # with the new tokens
    q = torch.randn(1, n_heads, 2, d_head)
    k, v = torch.randn(2, 1, n_heads_kv, 2, d_head)
    out, _ = _attention.attention(
        SimpleNamespace(is_causal=True),
        q,
        k,
        v,
        sliding_window=7,
        s_aux=s_aux,
        cu_seq_lens_q=torch.tensor([0, 1, 2], dtype=torch.int32),
        cu_seq_lens_k=torch.tensor([0, 10, 16], dtype=torch.int32),
        max_length_q=1,
        max_length_k=1,
        block_table=table,
        k_cache=k_cache,
        v_cache=v_cache,
    )
    for b, length in enumerate(lengths):
        keys, values = (
            cache[table[b].long()].flatten(0, 1)[max(length - 7, 0) : length].transpose(0, 1)
            for cache in (k_cache, v_cache)
        )
        assert torch.equal(keys[:, -1], k[0, :, b]) and torch.equal(values[:, -1], v[0, :, b])
        expected = attention_with_sinks(q[0, :, b : b + 1], keys, values, s_aux)
        torch.testing.assert_close(out[0, b], expected[:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right", "gaps"])
@pytest.mark.parametrize("causal", [False, True])
def test_copies_of_the_tokens_give_the_same(
    side: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done for padding between tokens, and on CUDA devices for padding to the right of a
    cache. Padding to the left needs no copies."""
    monkeypatch.setattr(_padding, "_attend_each", _padding._attend_gathered)
    mask = padding(side).bool()
    if side == "gaps":
        mask[1, 3:6] = mask[0, 8] = False
    q, k, v = torch.randn(2, 4, 5, 16), torch.randn(2, 2, 13, 16), torch.randn(2, 2, 13, 16)
    module = SimpleNamespace(is_causal=causal)
    out, _ = _attention.attention(module, q, k, v, mask)
    visible = mask[:, None, None, :].expand(2, 1, 5, 13)
    if causal:
        visible = visible & torch.ones(5, 13, dtype=torch.bool).tril(8)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, enable_gqa=True
    ).transpose(1, 2)
    counted = mask[:, 8:] if causal else torch.ones(2, 5, dtype=torch.bool)
    torch.testing.assert_close(out[counted], expected[counted], rtol=1e-5, atol=1e-5)
    assert (out[~counted] == 0).all()


def test_a_value_may_have_fewer_dimensions_than_a_key() -> None:
    q, k, v = torch.randn(1, 2, 7, 24), torch.randn(1, 2, 7, 24), torch.randn(1, 2, 7, 16)
    out, _ = _attention.attention(SimpleNamespace(is_causal=False), q, k, v)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_autocast() -> None:
    """Its norms leave q and k in float32 beside v in bfloat16."""
    q, k = torch.randn(2, 1, 2, 7, 16)
    v = torch.randn(1, 2, 7, 16, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = _attention.attention(SimpleNamespace(is_causal=False), q, k, v)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v.float()).transpose(1, 2)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=0.02, atol=0.02)


def test_other_masks() -> None:
    mask = torch.ones(2, 1, SEQLEN, SEQLEN, dtype=torch.bool).tril()
    mask[:, :, :4, :4] = True  # a prefix that sees all of itself
    additive = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    for name in ("llama", "gemma2"):  # the second with a softcap
        model = decoder(name)
        given = [mask, additive]
        if name == "gemma2":
            given = [{"full_attention": x, "sliding_attention": x} for x in given]
        expected = model(ids, attention_mask=given[1]).logits
        model.set_attn_implementation(NAME)
        for x in given:
            assert_close(model(ids, attention_mask=x).logits, expected)


def test_tokens_of_an_image_see_each_other() -> None:
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    config = transformers.Gemma3Config(
        text_config={**SIZES, "head_dim": 16, "sliding_window": 6, "pad_token_id": 0},
        vision_config={**vision, "num_attention_heads": 2, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
        image_token_index=99,
    )
    torch.manual_seed(0)
    model = transformers.Gemma3ForConditionalGeneration._from_config(
        config, attn_implementation="eager"
    ).eval()
    is_image = torch.zeros_like(ids)
    is_image[:, 6:10] = 1
    text = ids.clamp(max=98)
    options = {"attention_mask": padding("left"), "token_type_ids": is_image}
    counted = padding("left").bool()
    expected = model(text, **options).logits[counted]
    with pytest.raises(
        NotImplementedError, match="Gemma3.* is marked not to support FlashAttention"
    ):
        model.set_attn_implementation(NAME)
    flashattn.hf.register(WITHOUT_FLASH)
    try:
        model.set_attn_implementation(WITHOUT_FLASH)
        assert_close(model(text, **options).logits[counted], expected)
    finally:
        flashattn.hf.unregister(WITHOUT_FLASH)


def test_masks() -> None:
    """What the library is told of a mask's pattern and padding."""
    sizes = {"batch_size": 2, "q_length": 4, "kv_length": 4}
    window = masking_utils.sliding_window_causal_mask_function(3)
    for pattern, sides in ((masking_utils.causal_mask_function, (-1, -1)), (window, (2, -1))):
        for tokens in (None, torch.ones(2, 4, dtype=torch.bool)):
            plan = mask_of(**sizes, mask_function=pattern, attention_mask=tokens).plan
            assert plan.options == {"causal": True, "window_size": sides}
            assert plan.padding is plan.packing is plan.lengths is None
    padded = mask_of(**sizes, attention_mask=padding("left")[:, 3:7].bool())
    assert isinstance(padded, PatternMask) and padded.shape == (2, 1, 4, 4)
    assert padded.plan.padding.lengths == [2, 4] and padded.plan.padding.is_left
    assert mask_of(**sizes, attention_mask=padded) is padded
    plan = mask_of(2, 4, 9, mask_function=masking_utils.bidirectional_mask_function).plan
    assert plan.options == {"causal": False, "window_size": (-1, -1)} and plan.n_keys == 9

    longer = torch.ones(2, 20, dtype=torch.bool)
    longer[1, :14] = False  # key 13 is the first of a cache of 4
    plan = mask_of(2, 2, 4, 14, 13, attention_mask=longer).plan
    assert plan.n_keys == 3 and plan.padding.mask.tolist() == [[1, 1, 1], [0, 1, 1]]

    sequence_ids = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    packed = masking_utils.packed_sequence_mask_function(sequence_ids)
    remapped = masking_utils.remap_positions_for_packed_sequence(window, sequence_ids)
    plan = mask_of(**sizes, mask_function=masking_utils.and_masks(remapped, packed)).plan
    assert plan.packing.cu_seqlens.tolist() == [0, 2, 4, 5, 8] and plan.packing.longest == 3


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_detached_mask_is_the_same_mask(written: int) -> None:
    first = mask_of(2, 4, 4, attention_mask=torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]))
    masks = first, first.detach(), first.detach().detach()
    assert all(isinstance(x, PatternMask) and x.plan is first.plan for x in masks)
    assert first.plan is not None and masks[1].clone().equal(first.clone())
    masks[written][:, :, 0, 3] = True
    assert all(x.plan is None for x in masks)
    assert all(x.elements[:, :, 0, 3].all() for x in masks)


def test_masks_of_a_static_cache() -> None:
    """One query: what changes from token to token are the contents of tensors."""
    position = torch.tensor(5)
    plan = mask_of(2, 1, 9, q_offset=position).plan
    used, leftpad = plan.lengths
    assert used.tolist() == [6, 6] and leftpad is None and plan.n_keys == 9
    tokens = torch.ones(2, 6, dtype=torch.bool)
    assert mask_of(2, 1, 9, q_offset=position, attention_mask=tokens).plan.lengths[1] is None
    tokens[0, :2] = False
    used, leftpad = mask_of(2, 1, 9, q_offset=position, attention_mask=tokens).plan.lengths
    assert used.tolist() == [6, 6] and leftpad.tolist() == [2, 0]
    tokens[1, 3] = False
    array = mask_of(2, 1, 9, q_offset=position, attention_mask=tokens)
    assert not isinstance(array, PatternMask) and array.shape == (2, 1, 1, 9)


def test_masks_of_chunks() -> None:
    """Caches drop keys in the middle of a chunk: the rest of it counts as padding."""

    def found(*sizes: int, pads: tuple[int, int], **options: object) -> torch.Tensor:
        pattern = masking_utils.chunked_causal_mask_function(5, torch.tensor(pads))
        return mask_of(2, *sizes, mask_function=pattern, **options)

    plan = found(7, 7, pads=(0, 0)).plan
    assert plan.options["attention_chunk"] == 5 and plan.padding is None
    assert "attention_chunk" not in found(5, 5, pads=(0, 0)).plan.options
    tokens = torch.arange(20) >= torch.tensor([[0], [3]])
    plan = found(1, 5, 13, 9, pads=(0, 3), attention_mask=tokens).plan
    kept = [[0, 1, 1, 1, 1], [0, 0, 0, 0, 1]]  # from 10 on, and from 13 on
    assert plan.padding.mask.tolist() == kept
    for array in (
        found(3, 5, 12, 10, pads=(0, 3), attention_mask=tokens),  # query 12 sees key 10
        found(7, 7, pads=(0, 3), attention_mask=tokens[:, :7] & (torch.arange(7) != 5)),
        found(7, 7, pads=(0, 3)),  # chunks that begin with key 3 of seven tokens
    ):
        assert not isinstance(array, PatternMask) and array.shape[:2] == (2, 1)


def attend(**options: object) -> None:
    tensors = [torch.ones(1, 2, 4, 16) for _ in range(3)]
    _attention.attention(SimpleNamespace(is_causal=True), *tensors, **options)


def test_refusals() -> None:
    for options, message in (
        ({"sinks": torch.zeros(1, 2, 4, 1)}, "sinks is given: .* differ from query to query"),
        ({"position_bias": torch.zeros(1)}, "position_bias is given"),
        ({"output_attentions": True}, "output_attentions is given"),
        (
            {"attention_mask": torch.tensor([[True, False, True, True]]), "sliding_window": 2},
            "padding between the tokens",
        ),
    ):
        with pytest.raises(NotImplementedError, match=message):
            attend(**options)
    with pytest.raises(ValueError, match=r"sinks has shape \(3,\), not \(2,\)"):
        attend(s_aux=torch.zeros(3))
    with pytest.raises(ValueError, match=r"attention_mask has shape \(1, 4, 4\)"):
        attend(attention_mask=torch.ones(1, 4, 4))


# ---- Attention sinks ----


def attention_with_sinks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Returns O [n_heads, seqlen_q, d_head] of queries that see all keys."""
    k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v))
    scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    if sinks is not None:
        scores = torch.cat((scores, sinks[:, None, None].expand(-1, q.shape[1], 1)), 2)
    return scores.softmax(2)[..., : k.shape[1]] @ v


@pytest.fixture
def gpt_oss() -> Iterator[torch.nn.Module]:
    """A model with sinks that take much of the weight, one layer with a window and one without."""
    config = transformers.GptOssConfig(
        **SIZES,
        head_dim=16,
        sliding_window=6,
        num_local_experts=2,
        num_experts_per_tok=1,
        pad_token_id=0,
    )
    assert config.layer_types == ["sliding_attention", "full_attention"]
    flashattn.hf.register(WITHOUT_FLASH)
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM._from_config(config, attn_implementation="eager").eval()
    for name, weights in model.named_parameters():
        if name.endswith("sinks"):
            weights.copy_(2 * torch.randn_like(weights) + 1)
        elif weights.ndim > 1:
            weights.normal_(0, 0.1)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    yield model
    flashattn.hf.unregister(WITHOUT_FLASH)


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits_of_gpt_oss(gpt_oss: torch.nn.Module, side: str) -> None:
    mask = padding(side)
    expected = logits(gpt_oss, mask)
    gpt_oss.set_attn_implementation(WITHOUT_FLASH)
    assert_close(logits(gpt_oss, mask), expected)
    for layer in gpt_oss.model.layers:
        layer.self_attn.sinks.fill_(-torch.inf)
    assert (logits(gpt_oss, mask) - expected).abs().max() > 1e-3  # the sinks counted


@pytest.mark.parametrize("side", ["none", "left"])
def test_greedy_tokens_of_gpt_oss(gpt_oss: torch.nn.Module, side: str) -> None:
    mask = padding(side)
    expected = generated(gpt_oss, mask)
    gpt_oss.set_attn_implementation(WITHOUT_FLASH)
    for cache in ("dynamic", "static"):
        assert torch.equal(generated(gpt_oss, mask, cache_implementation=cache), expected)


# ---- Attention in chunks ----


@pytest.fixture
def llama4(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.nn.Module]:
    """A model with a layer in chunks of 5 tokens and one without, for which no 4-D mask is made.
    transformers refuses chunks to names with "flash"."""
    config = transformers.Llama4TextConfig(
        **SIZES,
        intermediate_size_mlp=64,
        head_dim=16,
        num_local_experts=2,
        no_rope_layer_interval=2,
        attention_chunk_size=5,
        floor_scale=4,
        pad_token_id=0,
    )
    assert config.layer_types == ["chunked_attention", "full_attention"]
    flashattn.hf.register(WITHOUT_FLASH)
    torch.manual_seed(0)
    model = transformers.Llama4ForCausalLM._from_config(config, attn_implementation="eager").eval()
    for weights in model.parameters():
        if weights.ndim > 1:
            weights.normal_(0, 0.1)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    without_sdpa = SimpleNamespace(**{**vars(masking_utils), "sdpa_mask": None})
    monkeypatch.setattr(_masks, "masking_utils", without_sdpa)
    yield model
    flashattn.hf.unregister(WITHOUT_FLASH)


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits_of_llama4(llama4: torch.nn.Module, side: str) -> None:
    mask = padding(side)
    expected = logits(llama4, mask)
    llama4.set_attn_implementation(WITHOUT_FLASH)
    assert_close(logits(llama4, mask), expected)


@pytest.mark.parametrize("side", ["none", "left"])
def test_greedy_tokens_of_llama4(llama4: torch.nn.Module, side: str) -> None:
    """Decoding goes on past the ends of two chunks, in caches that hold less than the prompt."""
    mask = padding(side)
    expected = generated(llama4, mask)
    llama4.set_attn_implementation(WITHOUT_FLASH)
    for cache in ("dynamic", "static"):
        assert torch.equal(generated(llama4, mask, cache_implementation=cache), expected)


@pytest.mark.parametrize("first", [1, 4, 5, 6, 8, 12])
def test_a_chat_with_llama4_continues_from_its_cache(llama4: torch.nn.Module, first: int) -> None:
    mask, found = padding("left"), {}
    for implementation in ("eager", WITHOUT_FLASH):
        llama4.set_attn_implementation(implementation)
        cache = transformers.DynamicCache(config=llama4.config)
        llama4(ids[:, :first], attention_mask=mask[:, :first], cache=cache)
        output = llama4(ids[:, first:], attention_mask=mask, cache=cache).logits
        found[implementation] = output[mask[:, first:].bool()]
    assert_close(found[WITHOUT_FLASH], found["eager"])


def test_names() -> None:
    original = loading._lazy_imports.original
    flashattn.hf.register()  # a second time changes nothing
    assert loading._lazy_imports.original is original
    for name in ("sdpa", "eager", "flash_attention_2"):
        with pytest.raises(ValueError, match=f"name is '{name}', which transformers knows"):
            flashattn.hf.register(name)
    for name in ("paged|flash", "owner/flash", ""):
        with pytest.raises(ValueError, match="letters, digits"):
            flashattn.hf.register(name)
    flashattn.hf.register("flash-too")
    flashattn.hf.unregister()
    assert isinstance(loading._lazy_imports, _registry._Loader)
    flashattn.hf.unregister("flash-too")
    assert loading._lazy_imports is original
    flashattn.hf.unregister()  # is not there
    model = decoder("llama")
    with pytest.raises(ValueError, match="flash"):
        model.set_attn_implementation(NAME)


def test_models_are_refused_what_they_are_marked_not_to_support(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = transformers.PreTrainedModel.get_correct_attn_implementation.original
    flashattn.hf.register(WITHOUT_FLASH)
    model = transformers.T5ForConditionalGeneration
    config = transformers.T5Config(vocab_size=100, d_model=32, d_kv=16, d_ff=32, num_layers=1)
    with pytest.raises(NotImplementedError, match="T5.*_supports_flash_attn is False.*'libfa'"):
        model._from_config(config, attn_implementation=NAME)
    model._from_config(config, attn_implementation=WITHOUT_FLASH)
    monkeypatch.setattr(model, "_supports_sdpa", False)
    with pytest.raises(NotImplementedError, match="_supports_sdpa are False.*'eager'"):
        model._from_config(config, attn_implementation=WITHOUT_FLASH)
    config = transformers.GPTNeoConfig(num_layers=2, attention_types=[[["global", "local"], 1]])
    with pytest.raises(NotImplementedError, match="GPTNeo.* has classes of its own"):
        transformers.GPTNeoModel._from_config(config, attn_implementation=NAME)
    flashattn.hf.unregister()
    assert transformers.PreTrainedModel.get_correct_attn_implementation is not original
    flashattn.hf.unregister(WITHOUT_FLASH)
    assert transformers.PreTrainedModel.get_correct_attn_implementation is original


def test_an_unknown_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    flashattn.hf.unregister()
    monkeypatch.delattr(loading, "_lazy_imports")
    with pytest.raises(NotImplementedError, match="register another name"):
        flashattn.hf.register()
    flashattn.hf.register("libfa")
    flashattn.hf.unregister("libfa")
    monkeypatch.delattr(transformers.PreTrainedModel, "get_correct_attn_implementation")
    with pytest.raises(NotImplementedError, match="checks what a model supports"):
        flashattn.hf.register("libfa")


def test_the_package_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, flashattn.hf; assert not {'torch', 'transformers'} & set(sys.modules)"
    assert run_python("-c", code).returncode == 0
