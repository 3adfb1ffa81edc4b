"""flashattn.sglang on a CUDA device, on stand-ins for SGLang's objects: steps against the float64
oracle, and steps that were captured in a CUDA graph and serve other lengths when it is replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from sglang_cases import GRAPHS, Batch, check_other_lengths, check_step, scaled
from sglang_stub import AttentionType, Context, stub


@pytest.fixture
def context() -> Iterator[Context]:
    with stub() as context, torch.device("cuda"):
        yield context


@pytest.fixture
def backend(context: Context) -> ModuleType:
    from flashattn.sglang import _backend

    return _backend


STEPS = {
    "prompts": ((0, 0, 0), (5, 40, 97), {}),
    "prompts behind prefixes": ((30, 1, 640), (7, 133, 1), {}),
    "tokens": ((30, 1, 2000), (1, 1, 1), {"mode": "DECODE"}),
    "drafts": ((9, 1000), (4, 4), {"mode": "TARGET_VERIFY", "n_heads": 8, "n_heads_kv": 1}),
    "pages of 16": ((30, 0, 640), (1, 133, 7), {"page_size": 16}),
    "tokens in pages of 16": ((30, 0, 640), (1, 1, 1), {"mode": "DECODE", "page_size": 16}),
    "heads before tokens": (
        (30, 0, 64),
        (1, 1, 1),
        {"mode": "DECODE", "page_size": 16, "hnd": True},
    ),
}
every_step = pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)


def _batch(step: tuple, **size: Any) -> Batch:
    cached, new, options = step
    return Batch(cached, new, **{"dtype": torch.bfloat16, **options, **size})


@every_step
@pytest.mark.parametrize("d_head", [64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_step(
    backend: ModuleType, context: Context, dtype: torch.dtype, d_head: int, step: tuple
) -> None:
    b = _batch(step, dtype=dtype, d_head=d_head, d_head_v=d_head)
    check_step(backend, context, b)
    check_step(backend, context, b, {"sliding_window_size": 40}, window_size=(40, 0))


@every_step
def test_softcap_and_sinks(backend: ModuleType, context: Context, step: tuple) -> None:
    b = _batch(step, d_head=128, d_head_v=128)
    sinks = torch.linspace(-1, 2, b.n_heads, dtype=torch.bfloat16)
    check_step(backend, context, b, {"logit_cap": 3.0}, sinks, softcap=3.0)


@every_step
def test_a_cache_of_e4m3(backend: ModuleType, context: Context, step: tuple) -> None:
    b = _batch(step, d_head=128, d_head_v=128, cache_dtype=torch.float8_e4m3fn)
    check_step(backend, context, b, scaled(), rounded=True, tolerance=3e-2)


@pytest.mark.parametrize("layer_id", [0, 1])
@every_step
def test_a_pool_of_layers_with_windows(
    backend: ModuleType, context: Context, step: tuple, layer_id: int
) -> None:
    b = _batch(step, d_head=128, d_head_v=128, windowed=True)
    given = {"layer_id": layer_id, "sliding_window_size": 20 if layer_id else -1}
    check_step(backend, context, b, given, window_size=(20, 0) if layer_id else (-1, -1))


@pytest.mark.parametrize("window", [-1, 5])
def test_an_encoder(backend: ModuleType, context: Context, window: int) -> None:
    b = _batch(STEPS["prompts"], d_head=64, d_head_v=64)
    given = {"attn_type": AttentionType.ENCODER_ONLY, "sliding_window_size": window}
    check_step(backend, context, b, given, causal=False, window_size=(window, window))


@pytest.mark.parametrize("new", [(1, 1, 1), (3, 20, 1)])
def test_cross_attention(backend: ModuleType, context: Context, new: tuple[int, ...]) -> None:
    mode = "DECODE" if max(new) == 1 else "EXTEND"
    size = {"d_head": 128, "d_head_v": 128, "of_encoder": (33, 700, 12), "width": 900}
    b = _batch(((5, 0, 140), new, {"mode": mode}), **size)
    check_step(backend, context, b)
    check_step(backend, context, b, {"is_cross_attention": True})


def _captured(run: Callable[[], Any]) -> Callable[[], Any]:
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = run()

    def replay() -> Any:
        graph.replay()
        return o

    return replay


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn], ids=["bf16", "e4m3"])
def test_a_captured_step_serves_other_lengths(
    backend: ModuleType, context: Context, cache_dtype: Any, graph: str
) -> None:
    size = {"d_head": 128, "d_head_v": 128, "n_heads": 8, "dtype": torch.bfloat16}
    check_other_lengths(backend, context, graph, _captured, 3000, cache_dtype=cache_dtype, **size)
