"""This module has what the backends of latent attention (MLA) share: what is served, the refusals,
and the call over a cache of latent tokens.

vLLM keeps one vector of 576 columns per token, K, of which V is the first 512; fp8_ds_mla is its
name for tokens of 656 bytes, which are those of flashattn.latent.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm import envs
from vllm.config import get_current_vllm_config
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionType, MultipleOf
from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum

from .. import _attention, latent
from ..torch_ops import flash_attn_varlen_func

PLAIN_CACHES = ("auto", "float16", "bfloat16")
E4M3_CACHES = ("fp8", "fp8_e4m3")
TOKENS = "fp8_ds_mla"
CACHES = (*PLAIN_CACHES, *E4M3_CACHES, TOKENS)
COLUMNS, V_COLUMNS = latent.COLUMNS, latent.CODES
LEAST_CAPABILITY = 8
PREFERRED_BLOCK_SIZE_ON_CUDA = 64  # smaller pages are read token by token


class Served:
    """Says what the library serves; vLLM refuses other models before it starts, by these."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = [*CACHES]

    @staticmethod
    def get_name() -> str:
        return "CPU_MLA" if current_platform.is_cpu() else "CUSTOM"

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(1)]

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        return default_block_size if current_platform.is_cpu() else PREFERRED_BLOCK_SIZE_ON_CUDA

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [COLUMNS]

    @classmethod
    def supports_dtype(cls, dtype: torch.dtype) -> bool:
        return dtype in cls.supported_dtypes or (
            dtype == torch.float32 and current_platform.is_cpu()
        )

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: Any,
    ) -> str | None:
        return why_not(kv_cache_dtype, dtype, device_capability)


def why_not(kv_cache_dtype: str | None, dtype: torch.dtype, capability: Any) -> str | None:
    """Returns why a CUDA device has no kernel for a cache and a model's type, or None: it has."""
    major, minor = capability.major, capability.minor
    if major < LEAST_CAPABILITY:
        return f"compute capability {major}.{minor} has no kernel of latent attention"
    if kv_cache_dtype == TOKENS and dtype != torch.bfloat16:
        return f"a cache of {TOKENS} is read with a model of bfloat16, this one is of {dtype}"
    return None


def refuse(kv_cache_dtype: str, mla_args: dict[str, Any], **unserved: Any) -> None:
    """Raises NotImplementedError, with the reason, for a layer that is not served."""
    rank, rope = mla_args["kv_lora_rank"], mla_args["qk_rope_head_dim"]
    if (rank, rope) != (V_COLUMNS, COLUMNS - V_COLUMNS):
        raise NotImplementedError(
            f"kv_lora_rank is {rank} and qk_rope_head_dim {rope}: libflashattn's latent attention "
            f"is for {V_COLUMNS} and {COLUMNS - V_COLUMNS}"
        )
    if kv_cache_dtype not in CACHES:
        raise NotImplementedError(f"a cache of {kv_cache_dtype} is not served")
    attn_type = unserved.pop("attn_type")
    if attn_type != AttentionType.DECODER:
        kind = AttentionType(attn_type).value
        raise NotImplementedError(f"latent attention of type {kind} is not served")
    for name, value in unserved.items():
        if value is not None:
            raise NotImplementedError(f"{name} is not served over a latent cache")


def refuse_ranks(dcp_world_size: int) -> None:
    """Raises NotImplementedError where a cache is spread over ranks."""
    if dcp_world_size > 1:
        raise NotImplementedError(
            f"decode_context_parallel_size is {dcp_world_size}: flashattn.vllm gives vLLM no LSE "
            "of latent attention, by which ranks would merge theirs"
        )


def take_prefill() -> None:
    """Names this library for prefill too, where nobody named another. On the CPU vLLM has one,
    which the registry has replaced."""
    config = get_current_vllm_config().attention_config
    if not current_platform.is_cpu() and config.mla_prefill_backend is None:
        config.mla_prefill_backend = MLAPrefillBackendEnum.CUSTOM


def query(q: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    """Returns Q [tokens, heads, 576] of vLLM's two parts."""
    return torch.cat(q, dim=-1) if isinstance(q, tuple) else q


def attend(
    q: Tensor,
    pages: Tensor,
    out: Tensor,
    kv_cache_dtype: str,
    layer: Any,
    scale: float,
    **where: Any,
) -> None:
    """Writes O [..., heads, 512] of Q [..., heads, 576] over pages [pages, page_size, 576], or
    [..., 656] of bytes, into out."""
    pages = pages.unsqueeze(2)
    options = {
        "softmax_scale": scale,
        "batch_invariant": bool(getattr(envs, "VLLM_BATCH_INVARIANT", False)),
        "out": out,
        **where,
    }
    if kv_cache_dtype == TOKENS:
        pages = pages.view(torch.uint8)
        _attention.flash_attn_varlen_func(q, pages, pages, kv_dtype=latent.KV_DTYPE, **options)
        return
    if kv_cache_dtype in E4M3_CACHES:
        pages = pages.view(torch.float8_e4m3fn)
        options["k_descale"] = options["v_descale"] = layer._k_scale_float
    flash_attn_varlen_func(q, pages, pages[..., :V_COLUMNS], **options)
