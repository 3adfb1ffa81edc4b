"""flashattn.vllm on a CUDA device, on a stand-in for vLLM: steps against the float64 oracle, and a
step that was captured in a CUDA graph and serves other lengths when it is replayed."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from vllm_cases import LAYER, Batch, CrossBatch, check_step, fill, make_impl, run_step
from vllm_stub import AttentionType, stub


@pytest.fixture
def backend() -> Iterator[ModuleType]:
    with stub("cuda"), torch.device("cuda"):
        from flashattn.vllm import _backend

        yield _backend


STEPS = {
    "prompts": ((0, 0, 0), (5, 40, 97), {}),
    "tokens": ((30, 1, 2000), (1, 1, 1), {}),
    "mixed": ((30, 0, 640), (1, 133, 7), {"padding": 5}),
    "drafts": ((9, 1000), (4, 4), {"n_heads": 8, "n_heads_kv": 1}),
    "tokens before heads": ((20, 0), (3, 150), {"layout": "LBNHC"}),
    "large blocks": ((2000, 100), (1, 1), {"block_size": 128}),
}
every_step = pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)


@every_step
@pytest.mark.parametrize("d_head", [64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_step(backend: ModuleType, dtype: torch.dtype, d_head: int, step: tuple) -> None:
    cached, new, options = step
    b = Batch(cached, new, d_head=d_head, dtype=dtype, **options)
    check_step(backend, b, {})
    check_step(backend, b, {"sliding_window": 40}, window_size=(39, 0))


@every_step
def test_softcap_sinks_and_slopes(backend: ModuleType, step: tuple) -> None:
    cached, new, options = step
    b = Batch(cached, new, d_head=128, dtype=torch.bfloat16, **options)
    sinks = torch.linspace(-1, 2, b.n_heads)
    slopes = [2.0**-i for i in range(1, b.n_heads + 1)]
    given = {"logits_soft_cap": 3.0, "sinks": sinks, "alibi_slopes": slopes}
    expected = {"sinks": sinks.double().cpu().numpy(), "alibi_slopes": np.array(slopes)}
    check_step(backend, b, given, softcap=3.0, **expected)


CROSS_STEPS = {
    "first": ((70, 33, 500), (4, 1, 9), (True, True, True)),
    "later": ((70, 33, 500), (1, 1, 1), (False, False, False)),
    "mixed": ((1500, 33, 500), (1, 40, 1), (False, True, False)),
    "without an encoder's tokens": ((70, 0), (5, 2), (True, False)),
}


@pytest.mark.parametrize("d_head", [64, 128])
@pytest.mark.parametrize("step", CROSS_STEPS.values(), ids=CROSS_STEPS)
def test_a_decoder_sees_its_encoders_tokens(backend: ModuleType, step: tuple, d_head: int) -> None:
    lengths, new, begins = step
    b = CrossBatch(lengths, new, begins=begins, d_head=d_head, dtype=torch.bfloat16)
    check_step(backend, b, {"attn_type": AttentionType.ENCODER_DECODER})


@every_step
def test_a_cache_of_e4m3(backend: ModuleType, step: tuple) -> None:
    cached, new, options = step
    b = Batch(cached, new, d_head=128, dtype=torch.bfloat16, **options)

    def rounded(x: torch.Tensor, scale: float) -> torch.Tensor:
        return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale

    keys = [rounded(x, 0.5) for x in b.k], [rounded(x, 0.25) for x in b.v]
    impl = make_impl(backend, b, kv_cache_dtype="fp8_e4m3")
    found = run_step(backend, b, impl, b.cache(torch.uint8))
    np.testing.assert_allclose(found, b.expected(keys), atol=3e-2)


@every_step
def test_queries_of_e4m3_and_scales_of_heads(backend: ModuleType, step: tuple) -> None:
    """The result is that of the values, by kernels that multiply e4m3 and by others."""
    cached, new, options = step
    b = Batch(cached, new, d_head=128, dtype=torch.bfloat16, **options)
    of_heads = torch.tensor([[0.5, 0.125], [0.25, 2.0], [0.25, 0.5]])
    of_heads = of_heads[:, : b.n_heads_kv].contiguous()

    def rounded(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        codes = (x.float() / scale[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        return codes.float() * scale[:, None]

    keys = [rounded(x, of_heads[0]) for x in b.k], [rounded(x, of_heads[1]) for x in b.v]
    of_rows = of_heads[2].repeat_interleave(b.n_heads // b.n_heads_kv)
    codes = (b.q.view(-1, b.n_heads, b.d_head).float() / of_rows[:, None]).to(torch.float8_e4m3fn)
    layer = SimpleNamespace(_k_scale=of_heads[0], _v_scale=of_heads[1], _q_scale=of_heads[2])
    if b.n_heads_kv == 1:
        numbers = {f"_{x}_scale_float": float(y[0]) for x, y in zip("kvq", of_heads)}
        layer = SimpleNamespace(**numbers)
    output = torch.full_like(b.q, 7.0)
    b.q = codes.view(b.q.shape)
    impl = make_impl(backend, b, kv_cache_dtype="fp8_e4m3")
    found = run_step(backend, b, impl, b.cache(torch.uint8), layer, output)
    b.q = (codes.float() * of_rows[:, None]).view(output.shape)
    expected = b.expected(keys)
    assert np.linalg.norm(found - expected) < 0.04 * np.linalg.norm(expected)  # P may be of e4m3


@pytest.mark.parametrize("new", [(1, 1, 1, 1), (4, 4, 4, 4), (1, 60, 3, 1)])
def test_a_captured_step_serves_other_lengths(backend: ModuleType, new: tuple[int, ...]) -> None:
    """vLLM captures with its largest lengths, and writes others into the same tensors: also other
    numbers of new tokens, which are as many in all."""
    size = {"d_head": 128, "n_heads": 8, "dtype": torch.bfloat16}
    largest = Batch((3000,) * 4, new, **size)
    impl, cache, common = make_impl(backend, largest), largest.cache(), largest.common()
    key, value = largest.tokens(largest.k, False), largest.tokens(largest.v, False)
    output = torch.empty_like(largest.q)

    def step() -> None:
        metadata = backend.FlashAttnMetadataBuilder(None, [], None, output.device).build(0, common)
        impl.do_kv_cache_update(LAYER, key, value, cache, metadata.slot_mapping)
        impl.forward(LAYER, largest.q, key, value, cache, metadata, output)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    cached_ones = (3000, 7, 0, 500), (0, 0, 0, 0), (1, 2940, 64, 2000)
    for seed, cached in enumerate(cached_ones):
        b = Batch(cached, new[seed:] + new[:seed], seed=seed, **size)
        table = torch.zeros_like(common.block_table_tensor)
        table[:, : b.table.shape[1]] = b.table
        other = b.common()
        for name in ("query_start_loc", "seq_lens", "slot_mapping"):
            getattr(common, name).copy_(getattr(other, name))
        common.block_table_tensor.copy_(table)
        for to, of in ((key, b.k), (value, b.v)):
            to.copy_(b.tokens(of, False))
        largest.q.copy_(b.q)
        fill(impl, b, cache)
        graph.replay()
        found = output.view(-1, b.n_heads, b.d_head).double().cpu().numpy()
        np.testing.assert_allclose(found, b.expected(), atol=2e-2)
