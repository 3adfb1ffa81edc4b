"""This module has the backend of latent attention (MLA) as vLLM knows one, for DeepSeek's models:
decode over vLLM's cache of latent tokens. Prefill is _mla_prefill.

Requests of few queries, one or a draft's, are decoded in one call over vLLM's block table, with
lengths and beginnings of requests on the device, so that a step that was captured in a CUDA graph
serves others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention import mla_attention
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonDecodeMetadata,
    MLACommonImpl,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
    QueryLenSupport,
)
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionCGSupport, max_decode_query_len
from vllm.v1.attention.backends.mla.prefill import base as mla_prefill

from .. import _append, latent
from ..torch_ops import flash_kv_append
from . import _interface, _mla

_interface.check_mla(mla_attention, mla_prefill)


class FlashAttnMLABackend(_mla.Served, MLACommonBackend):
    """Is the backend of layers that attend to all tokens."""

    @staticmethod
    def get_impl_cls() -> type[FlashAttnMLAImpl]:
        return FlashAttnMLAImpl

    @staticmethod
    def get_builder_cls() -> type[FlashAttnMLAMetadataBuilder]:
        return FlashAttnMLAMetadataBuilder

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True


@dataclass
class FlashAttnMLADecodeMetadata(MLACommonDecodeMetadata):
    """Tensors of the requests that are decoded, on their device, and bounds of their lengths."""

    query_start_loc: Tensor  # int32 [requests + 1]
    max_query_len: int
    max_seq_len: int


class FlashAttnMLAMetadataBuilder(MLACommonMetadataBuilder):
    """Adds to vLLM's metadata where the queries of each request begin."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH
    query_len_support: ClassVar[Any] = QueryLenSupport.VARLEN
    supports_non_causal_multi_token_decode: ClassVar[bool] = True
    supports_draft_decode_metadata_update = True  # it is made of vLLM's own tensors

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        _interface.warn_of_another_version()

    @classmethod
    def get_varlen_cudagraph_max_query_len(cls, vllm_config: Any, kv_cache_spec: Any) -> int | None:
        return max_decode_query_len(vllm_config)

    def update_draft_decode_metadata(self, metadata: Any) -> None:
        """Nothing is to be done: lengths, tables and beginnings are read where vLLM has them."""

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> Any:
        _interface.refuse_unread_fields(common_attn_metadata)
        if isinstance(common_attn_metadata.causal, Tensor):
            raise NotImplementedError(
                "causal is a tensor, of each request its own: libflashattn has one causal order "
                "for a call"
            )
        return super().build(common_prefix_len, common_attn_metadata, fast_build)

    def _build_decode(
        self,
        block_table_tensor: Tensor,
        seq_lens_device: Tensor,
        max_seq_len: int,
        query_start_loc_cpu: Tensor,
        query_start_loc_device: Tensor,
        num_decode_tokens: int,
        max_query_len: int,
        dcp_tot_seq_lens_device: Tensor | None,
    ) -> FlashAttnMLADecodeMetadata:
        return FlashAttnMLADecodeMetadata(
            block_table=block_table_tensor,
            seq_lens=seq_lens_device,
            dcp_tot_seq_lens=dcp_tot_seq_lens_device,
            query_start_loc=query_start_loc_device,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
        )


def _refuse_on_cpu(kv_cache_dtype: str) -> None:
    """vLLM's CPU platform asks no backend what it serves, and gathers cached tokens of a prompt
    only if they are numbers."""
    if not current_platform.is_cpu() or kv_cache_dtype in _mla.PLAIN_CACHES:
        return
    vllm_config = get_current_vllm_config()
    for config, name in (
        (vllm_config.scheduler_config, "enable_chunked_prefill"),
        (vllm_config.cache_config, "enable_prefix_caching"),
    ):
        if getattr(config, name):
            raise NotImplementedError(
                f"{name} is on: vLLM does not read the cached tokens of a prompt from a cache of "
                f"{kv_cache_dtype} on the CPU"
            )


class FlashAttnMLAImpl(MLACommonImpl):
    """Computes the decode of a layer, and writes its cache on the CPU, where vLLM has no call that
    does so; prefill is vLLM's own, by FlashAttnMLAPrefill."""

    can_return_lse_for_decode = False
    supports_pcp = False
    supports_dcp = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **mla_args: Any,
    ) -> None:
        _mla.refuse(
            kv_cache_dtype, mla_args, attn_type=attn_type, alibi_slopes=alibi_slopes,
            sliding_window=sliding_window, logits_soft_cap=logits_soft_cap,
        )  # fmt: skip
        _refuse_on_cpu(kv_cache_dtype)
        super().__init__(
            num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window,
            kv_cache_dtype, logits_soft_cap, attn_type, kv_sharing_target_layer_name, **mla_args,
        )  # fmt: skip
        _mla.refuse_ranks(self.dcp_world_size)
        self.supports_quant_query_input = False  # Q stays of the model's type
        _mla.take_prefill()

    def forward_mqa(
        self,
        q: Tensor | tuple[Tensor, Tensor],
        kv_c_and_k_pe_cache: Tensor,
        attn_metadata: MLACommonMetadata,
        layer: Any,
    ) -> tuple[Tensor, None]:
        """Returns O [tokens, heads, 512] of the requests that are decoded, and no LSE. Tokens that
        belong to no request have an O of 0, as those that pad a CUDA graph."""
        batch, q = attn_metadata.decode, _mla.query(q)
        o = q.new_zeros(*q.shape[:2], _mla.V_COLUMNS)
        _mla.attend(
            q,
            kv_c_and_k_pe_cache,
            o,
            self.kv_cache_dtype,
            layer,
            self.scale,
            cu_seqlens_q=batch.query_start_loc,
            max_seqlen_q=batch.max_query_len,
            seqused_k=batch.seq_lens,
            max_seqlen_k=batch.max_seq_len,
            page_table=batch.block_table,
            causal=attn_metadata.causal,
        )
        return o, None

    def do_kv_cache_update(
        self,
        kv_c_normed: Tensor,
        k_pe: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        kv_cache_dtype: str,
        k_scale: Tensor,
        *skip_scale: bool,
    ) -> None:
        """Writes tokens to their slots: on CUDA devices by vLLM's own call, which reads its two
        parts. A slot below 0 is padding. vLLM 0.33 adds whether the scale is 1."""
        if not current_platform.is_cpu():
            super().do_kv_cache_update(
                kv_c_normed, k_pe, kv_cache, slot_mapping, kv_cache_dtype, k_scale, *skip_scale
            )
        elif kv_cache.numel():
            slots = slot_mapping.flatten()
            tokens = torch.cat([kv_c_normed.unsqueeze(1), k_pe], dim=-1)[: slots.shape[0]]
            _write(tokens, kv_cache.unsqueeze(2), slots, kv_cache_dtype, k_scale)


def _write(
    tokens: Tensor, pages: Tensor, slots: Tensor, kv_cache_dtype: str, k_scale: Tensor
) -> None:
    if kv_cache_dtype == _mla.TOKENS:
        _append.flash_kv_append(
            tokens, None, pages, None, kv_dtype=latent.KV_DTYPE, slot_mapping=slots
        )
        return
    scales = {}
    if kv_cache_dtype in _mla.E4M3_CACHES:
        pages, scales = pages.view(torch.float8_e4m3fn), {"k_descale": float(k_scale)}
    flash_kv_append(tokens, None, pages, None, slot_mapping=slots, **scales)
