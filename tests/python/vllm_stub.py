"""A package `vllm` with the names that flashattn.vllm imports, for machines without vLLM. Base
classes do nothing. tests/engines/test_vllm.py runs vLLM itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import torch


class AttentionType(str, Enum):
    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"


class AttentionCGSupport(Enum):
    ALWAYS = 3
    UNIFORM_BATCH = 2
    NEVER = 0


class AttentionBackend:
    forward_includes_kv_cache_update = True


class AttentionLayer:
    _k_scale_float: float
    _v_scale_float: float
    _q_scale_float: float


class AttentionImpl:
    def __init__(
        self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None,
        sliding_window=None, kv_cache_dtype="auto", logits_soft_cap=None, attn_type="decoder",
        kv_sharing_target_layer_name=None,
    ): ...  # fmt: skip

    def forward(
        self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None,
        output_block_scale=None,
    ): ...  # fmt: skip


class AttentionMetadataBuilder:
    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        self.device = device

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False): ...


class AttentionBackendEnum(Enum):
    CPU_ATTN = "vLLM's own"
    CPU_MLA = "vLLM's own, of latent attention"
    AMX_MLA = "vLLM's own, of latent attention with AMX"
    CUSTOM = ""


class MLAPrefillBackendEnum(Enum):
    CPU = "vLLM's own"
    ZEN_CPU = "that of a plug-in"
    CUSTOM = ""


@dataclass(frozen=True)
class MultipleOf:
    base: int


@dataclass
class Platform:
    """kind: cpu, cuda or rocm."""

    kind: str

    def is_cpu(self) -> bool:
        return self.kind == "cpu"

    def is_cuda(self) -> bool:
        return self.kind == "cuda"


@dataclass
class Common:
    """What flashattn.vllm reads of CommonAttentionMetadata, and some of the rest."""

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool | torch.Tensor = True
    num_reqs: int = 0
    rswa_prefix_lens: torch.Tensor | None = None
    _cache: torch.Tensor | None = None


def _modules(
    platform: Platform, registered: dict[Any, str], more: dict[str, dict[str, Any]]
) -> dict[str, ModuleType]:
    contents = {
        "vllm": {"envs": SimpleNamespace(), "__version__": "0.33.0"},
        "vllm.platforms": {"current_platform": platform},
        "vllm.v1": {},
        "vllm.v1.attention": {},
        "vllm.v1.attention.backend": {
            "AttentionBackend": AttentionBackend,
            "AttentionImpl": AttentionImpl,
            "AttentionLayer": AttentionLayer,
            "AttentionMetadataBuilder": AttentionMetadataBuilder,
            "AttentionCGSupport": AttentionCGSupport,
            "AttentionType": AttentionType,
            "CommonAttentionMetadata": Common,
            "MultipleOf": MultipleOf,
        },
        "vllm.v1.attention.backends": {},
        "vllm.v1.attention.backends.registry": {
            "AttentionBackendEnum": AttentionBackendEnum,
            "register_backend": registered.__setitem__,
        },
        "vllm.v1.attention.backends.mla": {},
        "vllm.v1.attention.backends.mla.prefill": {},
        "vllm.v1.attention.backends.mla.prefill.registry": {
            "MLAPrefillBackendEnum": MLAPrefillBackendEnum,
            "register_mla_prefill_backend": registered.__setitem__,
        },
    }
    for name, members in more.items():
        contents.setdefault(name, {}).update(members)
    modules = {}
    for name, members in contents.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(members)
    return modules


def _own(name: str) -> bool:
    return name.split(".")[0] == "vllm" or name.startswith("flashattn.vllm._")


def _taken_out() -> dict[str, ModuleType]:
    """Takes these modules out of their places, also out of their packages, and returns them."""
    taken = {name: sys.modules.pop(name) for name in list(sys.modules) if _own(name)}
    for name in taken:
        package, _, member = name.rpartition(".")
        if package == "flashattn.vllm":
            vars(sys.modules[package]).pop(member, None)
    return taken


@contextmanager
def stub(kind: str, more: dict[str, dict[str, Any]] | None = None) -> Iterator[dict[Any, str]]:
    """Puts the package in place, for a platform, with more modules and members; yields what is
    registered with it."""
    registered: dict[Any, str] = {}
    hidden = _taken_out()
    sys.modules.update(_modules(Platform(kind), registered, more or {}))
    try:
        yield registered
    finally:
        _taken_out()
        sys.modules.update(hidden)
