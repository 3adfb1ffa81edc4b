"""This module says which models, servers, batches and layers flashattn.sglang does not serve, and
why. SGLang asks a backend for none of that: what is refused raises here, a model or a server before
SGLang starts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.configs.model_config import AttentionArch
from sglang.srt.runtime_context import get_parallel, get_spec

from ..config import most_d_head_on_cuda

CACHE_TYPES = ("auto", "bf16", "bfloat16", "fp8_e4m3")
ELEMENTS = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)

Reasons = Iterable[tuple[Any, str]]


def _refuse(reasons: Reasons) -> None:
    for is_so, reason in reasons:
        if is_so:
            raise NotImplementedError(f"flashattn.sglang does not serve this: {reason}")


def refuse_runner(runner: Any) -> None:
    """Refuses a model, or a server, by its ModelRunner. Raises NotImplementedError."""
    _refuse(_of_model(runner))
    _refuse(_of_server(runner))
    if torch.device(runner.device).type != "cpu":
        _refuse(_of_model_on_cuda(runner))


def _of_model(runner: Any) -> Reasons:
    config = runner.model_config
    windows = runner.sliding_window_size is not None and runner.sliding_window_size > -1
    yield config.attention_arch == AttentionArch.MLA, "the model has latent attention (MLA)"
    yield (
        getattr(runner, "prefill_aware_swa", False),
        "the windows of the model do not move within its prompt (prefill-aware sliding windows)",
    )
    yield windows and config.is_encoder_decoder, "the model has windows beside cross attention"


def _of_model_on_cuda(runner: Any) -> Reasons:
    d_head = runner.model_config.head_dim
    yield runner.dtype == torch.float32, "the model is of float32, which has no CUDA kernel"
    yield (
        d_head > most_d_head_on_cuda(),
        f"heads have {d_head} elements, and kernels here at most {most_d_head_on_cuda()}",
    )


def _of_server(runner: Any) -> Reasons:
    parallel, cache = get_parallel(), runner.kv_cache_dtype_str
    translator = getattr(runner, "kv_index_translator", None)
    yield parallel.attn_cp_size > 1, "context parallelism (--attn-cp-size) is on"
    yield parallel.dcp_enabled, "decode context parallelism (--dcp-size) is on"
    yield cache not in CACHE_TYPES, f"the cache is of {cache} (--kv-cache-dtype)"
    yield runner.kv_cache_dtype not in ELEMENTS, f"the cache is of {runner.kv_cache_dtype}"
    yield (
        (get_spec().speculative_eagle_topk or 0) > 1,
        "drafts form trees; those of one branch (--speculative-eagle-topk 1, or "
        "--speculative-ngram-max-bfs-breadth 1) are served",
    )
    yield getattr(translator, "is_translating", False), "--enable-unified-memory is on"


def refuse_batch(batch: Any) -> None:
    """Refuses a batch by its ForwardBatch. Raises NotImplementedError."""
    mode, spec = batch.forward_mode, batch.spec_info
    _refuse(
        (
            (mode.is_dllm_extend(), "the model denoises blocks of text (a diffusion model)"),
            (
                mode.is_draft_extend_v2() or (mode.is_decode() and spec is not None),
                "a draft model computes its drafts; --speculative-draft-attention-backend names "
                "another backend for that",
            ),
            (
                mode.is_target_verify() and getattr(spec, "ragged_verify_layout", None) is not None,
                "requests of a batch have different numbers of drafts",
            ),
            (
                getattr(batch, "multi_item_delimiter_indices", None) is not None,
                "several items are scored in one request (--enable-mis)",
            ),
        )
    )


def refuse_layer(layer: Any, options: dict[str, Any]) -> None:
    """Refuses a layer, by its RadixAttention and the options that its model gave for a call. Raises
    NotImplementedError."""
    named = sorted(x for x, value in options.items() if value is not None and value is not False)
    _refuse(
        (
            (named, f"the model gives a layer {', '.join(named)}"),
            (
                (getattr(layer, "xai_temperature_len", None) or -1) > 0,
                "a layer scales scores by the length of the prompt (xai_temperature_len)",
            ),
            (
                layer.logit_cap and layer.logit_capping_method != "tanh",
                f"a layer caps scores by {layer.logit_capping_method}, not by tanh",
            ),
            (
                layer.pos_encoding_mode != "NONE",
                f"a layer encodes positions by {layer.pos_encoding_mode}",
            ),
        )
    )


def refuse_cpu_graph() -> None:
    """Refuses to be compiled on the CPU. Raises NotImplementedError."""
    _refuse([(True, "decoding is to be compiled on the CPU (--enable-torch-compile)")])


def refuse_graph_of(mode: Any) -> None:
    """Refuses to be captured in a CUDA graph by prefill. Raises NotImplementedError."""
    served = mode.is_decode_or_idle() or mode.is_target_verify()
    reason = "whole prefills are to be captured in CUDA graphs; "
    _refuse([(not served, reason + "--cuda-graph-backend-prefill breakable is served")])
