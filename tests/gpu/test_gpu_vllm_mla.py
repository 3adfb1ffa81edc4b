"""flashattn.vllm's backend of latent attention (MLA) on a CUDA device, on a stand-in for vLLM:
steps and prompts against the float64 oracle, and a step that was captured in a CUDA graph and
serves other lengths, and other numbers of drafts, when it is replayed."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
import torch
from vllm_mla_cases import (
    LAYER,
    Batch,
    Choice,
    as_forward_has_it,
    check_choice,
    check_prefill,
    check_step,
    fill,
    make_builder,
    make_impl,
    update,
)
from vllm_mla_stub import stub, vllm_config

CAPABILITY = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
CACHES = ["auto", "fp8_e4m3", *(["fp8_ds_mla"] if CAPABILITY == (9, 0) else [])]
pytestmark = pytest.mark.skipif(CAPABILITY < (8, 0), reason="needs compute capability 8.0 or newer")
every_cache = pytest.mark.parametrize("cache", CACHES)


@pytest.fixture
def backend() -> Iterator[ModuleType]:
    with stub("cuda"), torch.device("cuda"):
        from flashattn.vllm import _mla_backend

        yield _mla_backend


@pytest.fixture
def sparse() -> Iterator[ModuleType]:
    with stub("cuda"), torch.device("cuda"):
        from flashattn.vllm import _mla_sparse_backend

        yield _mla_sparse_backend


STEPS = {
    "tokens": ((30, 1, 1300, 0), (1, 1, 1, 1), {}),
    "two queries": ((9, 600, 64), (2, 2, 2), {}),
    "three queries": ((9, 600, 64), (3, 3, 3), {}),
    "drafts of several lengths": ((9, 600, 31), (1, 3, 2), {"padding": 4}),
    "blocks apart": ((900, 3), (1, 2), {"gap": 16}),
    "a block of drafts": ((9, 700), (4, 4), {"causal": False}),
}


@every_cache
@pytest.mark.parametrize(("n_heads", "block_size"), [(16, 16), (16, 64), (16, 128), (128, 64)])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_step(
    backend: ModuleType, step: tuple, n_heads: int, block_size: int, cache: str
) -> None:
    cached, new, options = step
    size = {"n_heads": n_heads, "block_size": block_size, "dtype": torch.bfloat16}
    check_step(backend, Batch(cached, new, cache_dtype=cache, **size, **options))


@pytest.mark.parametrize("cache", ["auto", "fp8_e4m3"])
def test_a_step_of_fp16(backend: ModuleType, cache: str) -> None:
    size = {"n_heads": 32, "block_size": 64, "dtype": torch.float16}
    check_step(backend, Batch((30, 700), (1, 3), cache_dtype=cache, **size))


@pytest.mark.parametrize("dims", [(192, 128), (128, 128), (256, 256)])
def test_prompts(backend: ModuleType, dims: tuple[int, int]) -> None:
    from flashattn.vllm import _mla_prefill

    b = Batch((300, 1, 64), (5, 133, 70), block_size=64, dtype=torch.bfloat16)
    check_prefill(_mla_prefill, b, dims)


@every_cache
@pytest.mark.parametrize("n_heads", [16, 128])
def test_a_captured_step_serves_other_lengths(
    backend: ModuleType, n_heads: int, cache: str
) -> None:
    """vLLM captures with its largest lengths, and writes others into the same tensors: also other
    numbers of drafts, and requests that are not there, whose tokens are padding."""
    size = {"n_heads": n_heads, "block_size": 64, "dtype": torch.bfloat16, "cache_dtype": cache}
    largest = Batch((1600,) * 4, (3,) * 4, **size)
    impl, memory, common = make_impl(backend, largest), largest.cache(), largest.common()
    config = vllm_config(speculative_config__num_speculative_tokens=2)
    metadata = make_builder(backend, config).build(0, common)
    q = tuple(x.contiguous() for x in largest.q.split([512, 64], dim=-1))

    def step() -> torch.Tensor:
        return impl.forward_mqa(q, as_forward_has_it(largest, memory), metadata, LAYER)[0]

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()
    steps = (
        ((1600, 7, 0, 500), (3, 3, 3, 3)),
        ((1, 1540, 64, 900), (1, 3, 2, 1)),
        ((0, 64, 1), (1, 1, 1)),
    )
    for seed, (cached, new) in enumerate(steps):
        b = Batch(cached, new, seed=seed, padding=12 - sum(new), **size)
        other, n = b.common(), len(new)
        common.block_table_tensor.zero_()
        common.block_table_tensor[:n, : b.table.shape[1]] = b.table
        common.seq_lens.zero_()
        common.seq_lens[:n] = other.seq_lens
        common.query_start_loc.fill_(b.n_tokens)
        common.query_start_loc[:n] = other.query_start_loc[:n]
        fill(impl, b, memory)
        update(impl, b, b.new_tokens(), memory, other.slot_mapping)
        for to, of in zip(q, b.q.split([512, 64], dim=-1)):
            to.copy_(of)
        graph.replay()
        assert (output[b.n_tokens :] == 0).all()
        found = output[: b.n_tokens].double().cpu().numpy()
        np.testing.assert_allclose(found, b.expected(), atol=2e-2)


CHOICES = {
    "tokens": ((900, 1, 1500, 0), (1, 1, 1, 1), {}),
    "drafts": ((900, 100), (3, 2), {"gap": 16}),
    "prompts": ((0, 400), (20, 12), {}),
}


@every_cache
@pytest.mark.parametrize("n_heads", [16, 128])
@pytest.mark.parametrize("step", CHOICES.values(), ids=CHOICES)
def test_chosen_tokens(sparse: ModuleType, step: tuple, n_heads: int, cache: str) -> None:
    cached, new, options = step
    size = {"n_heads": n_heads, "block_size": 64, "dtype": torch.bfloat16}
    check_choice(sparse, Choice(Batch(cached, new, cache_dtype=cache, **size, **options), 512))


@every_cache
def test_a_captured_step_serves_other_choices(sparse: ModuleType, cache: str) -> None:
    """Of which one request has none, as those that pad a CUDA graph."""
    size = {"block_size": 64, "dtype": torch.bfloat16, "cache_dtype": cache}
    b = Batch((2000,) * 4, (1,) * 4, **size)
    chosen = Choice(b, 256)
    impl, memory = make_impl(sparse, b, topk_indices_buffer=chosen.rows), b.cache()
    fill(impl, b, memory)
    update(impl, b, b.new_tokens(), memory, b.common().slot_mapping)
    metadata = make_builder(sparse, None).build(0, b.common())
    q = tuple(x.contiguous() for x in b.q.split([512, 64], dim=-1))

    def step() -> torch.Tensor:
        return impl.forward_mqa(q, as_forward_has_it(b, memory), metadata, LAYER)[0]

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()
    for seed in (1, 2):
        other = Choice(b, 256, seed)
        other.rows[seed] = -1
        chosen.rows.copy_(other.rows)
        graph.replay()
        assert (output[seed] == 0).all()
        found = output.double().cpu().numpy()
        np.testing.assert_allclose(found, other.expected(), atol=2e-2)
