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
    NEVER = 0


class AttentionBackend:
    forward_includes_kv_cache_update = True


class AttentionLayer:
    _k_scale_float: float
    _v_scale_float: float


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


def _modules(platform: Platform, registered: dict[Any, str]) -> dict[str, ModuleType]:
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
    }
    modules = {}
    for name, members in contents.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(members)
    return modules


def _own(name: str) -> bool:
    return name.split(".")[0] == "vllm" or name.startswith("flashattn.vllm._")


@contextmanager
def stub(kind: str) -> Iterator[dict[Any, str]]:
    """Puts the package in place, for a platform; yields what is registered with it."""
    registered: dict[Any, str] = {}
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if _own(name)}
    sys.modules.update(_modules(Platform(kind), registered))
    try:
        yield registered
    finally:
        for name in [name for name in sys.modules if _own(name)]:
            del sys.modules[name]
        sys.modules.update(hidden)
