"""This module has the backend as vLLM knows one: what it serves, the metadata of a batch, and the
calls of a layer. It is imported by vLLM, which looks it up by its name.

A layer makes two calls: flash_kv_append writes new tokens of K and V to their slots, and
flash_attn_varlen_func reads the cache by vLLM's block table. Lengths, tables and slots are vLLM's
own tensors, read on the device, so that a step that was captured in a CUDA graph serves other
lengths when it is replayed: the kernel and its workspace, which is of the graph's pool, are those
of the bounds that vLLM gave when it captured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm import envs
from vllm.platforms import current_platform
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)

from ..compat._scales import needs_16_bits
from ..config import most_d_head_on_cuda
from ..torch_ops import flash_attn_varlen_func, flash_kv_append
from . import _interface

PLAIN_CACHES = ("auto", "float16", "bfloat16")
E4M3_CACHES = ("fp8", "fp8_e4m3")
WITHOUT_CACHE = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
CROSS = AttentionType.ENCODER_DECODER
SERVED_TYPES = (AttentionType.DECODER, CROSS, *WITHOUT_CACHE)


class FlashAttnBackend(AttentionBackend):
    """Says what the library serves; vLLM refuses other models before it starts, by these."""

    accept_output_buffer = True
    forward_includes_kv_cache_update = False
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = [*PLAIN_CACHES, *E4M3_CACHES]

    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN" if current_platform.is_cpu() else "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[FlashAttnImpl]:
        return FlashAttnImpl

    @staticmethod
    def get_builder_cls() -> type[FlashAttnMetadataBuilder]:
        return FlashAttnMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(1)]

    @classmethod
    def supports_dtype(cls, dtype: torch.dtype) -> bool:
        """CUDA kernels have no cache of fp32."""
        return dtype in cls.supported_dtypes or (
            dtype == torch.float32 and current_platform.is_cpu()
        )

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return current_platform.is_cpu() or head_size <= most_d_head_on_cuda()

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        return True

    @classmethod
    def supports_kv_connector(cls) -> bool:
        """On the CPU connectors know how vLLM's own backend orders K and V within a block, which
        this one does not follow."""
        return not current_platform.is_cpu()

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in SERVED_TYPES


@dataclass
class FlashAttnMetadata:
    """Tensors of a batch, on its device, and bounds of its lengths. Where a decoder attends to an
    encoder, seq_lens, block_table and slot_mapping are of the encoder's tokens, as vLLM puts them
    there; slots are of those requests alone whose encoder ran in this step."""

    num_actual_tokens: int
    query_start_loc: Tensor  # int32 [requests + 1]
    max_query_len: int
    seq_lens: Tensor  # int32 [requests]
    max_seq_len: int
    block_table: Tensor  # int32 [requests, blocks]
    slot_mapping: Tensor  # int64 [tokens]
    causal: bool


def _refuse_what_no_platform_asks_for(vllm_config: Any) -> None:
    """On the CPU vLLM does not ask a backend what it serves: a model that this one does not is
    refused here, before the first step."""
    if not current_platform.is_cpu():
        return
    if getattr(vllm_config, "kv_transfer_config", None) is not None:
        raise NotImplementedError(
            "a KV connector is set up: it would move the cache in the order of vLLM's own CPU "
            "backend, which is not that of flashattn.vllm"
        )
    if getattr(getattr(vllm_config, "model_config", None), "is_mm_prefix_lm", False):
        raise NotImplementedError(
            "the model is a prefix LM, whose images see each other in both directions: "
            "flashattn.vllm does not serve that"
        )


class FlashAttnMetadataBuilder(AttentionMetadataBuilder):
    """Takes from vLLM's metadata of a batch what the calls need, without a copy."""

    _cudagraph_support = AttentionCGSupport.ALWAYS

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        _interface.warn_of_another_version()
        _refuse_what_no_platform_asks_for(vllm_config)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> FlashAttnMetadata:
        common = common_attn_metadata
        _interface.refuse_unread_fields(common)
        if isinstance(common.causal, Tensor):
            raise NotImplementedError(
                "causal is a tensor, of each request its own: libflashattn has one causal order "
                "for a call"
            )
        return FlashAttnMetadata(
            num_actual_tokens=common.num_actual_tokens,
            query_start_loc=common.query_start_loc,
            max_query_len=common.max_query_len,
            seq_lens=common.seq_lens,
            max_seq_len=common.max_seq_len,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            causal=common.causal,
        )


class FlashAttnImpl(AttentionImpl):
    """Computes the attention of a layer. It takes queries of e4m3, but does not ask for them
    (supports_quant_query_input): only chunks of several queries are faster with them, and none as
    exact."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        if attn_type not in SERVED_TYPES:
            raise NotImplementedError(f"attention of type {attn_type} is not served")
        if attn_type == CROSS and (sliding_window is not None or alibi_slopes is not None):
            raise NotImplementedError(
                "attention from a decoder to an encoder has a sliding window or ALiBi slopes: "
                "its queries have no places among its keys"
            )
        if kv_cache_dtype not in (*PLAIN_CACHES, *E4M3_CACHES):
            raise NotImplementedError(f"a cache of {kv_cache_dtype} is not served")
        if sinks is not None and sinks.shape != (num_heads,):
            raise ValueError(f"sinks have shape {tuple(sinks.shape)}, not ({num_heads},)")
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_size = head_size
        self.kv_cache_dtype = kv_cache_dtype
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sliding_window = sliding_window
        self.sinks = sinks
        self.alibi_slopes = None
        if alibi_slopes is not None:
            self.alibi_slopes = torch.tensor(alibi_slopes, dtype=torch.float32)
        self.supports_quant_query_input = False
        self.options = {
            "softmax_scale": float(scale),
            "softcap": float(logits_soft_cap or 0.0),
            "batch_invariant": bool(getattr(envs, "VLLM_BATCH_INVARIANT", False)),
        }

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: Tensor,
        attn_metadata: FlashAttnMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Writes O into output and returns it. query and output: [tokens, num_heads * head_size] or
        [tokens, num_heads, head_size]; tokens beyond the batch's are padding. query may be of e4m3
        beside such a cache: its values have the layer's scale. Where there is a cache, key and
        value are not read, and may be None. Without metadata vLLM measures its memory, and O is
        0."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("output is to be quantised: O is not rounded to FP8 here")
        if attn_metadata is None:
            return output.zero_()
        if self.attn_type == CROSS and attn_metadata.causal:
            raise NotImplementedError("attention from a decoder to an encoder is to be causal")
        n = attn_metadata.num_actual_tokens
        lengths = self._lengths(layer, attn_metadata)
        rows = self._rows(query, n, self.num_heads)
        rows, scales = self._scaled_query(layer, rows, output.dtype, lengths)
        flash_attn_varlen_func(
            rows,
            *self._keys(layer, key, value, kv_cache, n),
            cu_seqlens_q=attn_metadata.query_start_loc,
            max_seqlen_q=attn_metadata.max_query_len,
            causal=attn_metadata.causal,
            window_size=self._window(attn_metadata.causal),
            sinks=self.sinks,
            alibi_slopes=self._slopes(query.device),
            out=self._rows(output, n, self.num_heads),
            **{**lengths, **scales},
            **self.options,
        )
        return output

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Writes as many tokens as there are slots. A slot below 0 is padding."""
        if self.attn_type in WITHOUT_CACHE:
            return
        n = slot_mapping.shape[0]
        flash_kv_append(
            self._rows(key, n, self.num_kv_heads),
            self._rows(value, n, self.num_kv_heads),
            *self._pages(kv_cache),
            slot_mapping=slot_mapping,
            **self._scales(layer, 1),
        )

    def _rows(self, x: Tensor, n: int, n_heads: int) -> Tensor:
        return x[:n].view(n, n_heads, self.head_size)

    def _pages(self, kv_cache: Tensor) -> tuple[Tensor, ...]:
        """Returns K and V [blocks, block_size, num_kv_heads, head_size] of vLLM's cache [blocks,
        num_kv_heads, block_size, 2 * head_size], whose memory may have any order."""
        shape = (kv_cache.shape[1], kv_cache.shape[-1])
        if kv_cache.dim() != 4 or shape != (self.num_kv_heads, 2 * self.head_size):
            raise NotImplementedError(
                f"the cache has shape {tuple(kv_cache.shape)}, not [blocks, {self.num_kv_heads}, "
                f"tokens, {2 * self.head_size}], which vLLM 0.32 and 0.33 have"
            )
        if self.kv_cache_dtype in E4M3_CACHES:
            kv_cache = kv_cache.view(torch.float8_e4m3fn)
        return kv_cache.transpose(1, 2).split(self.head_size, -1)

    def _keys(
        self, layer: Any, key: Tensor | None, value: Tensor | None, kv_cache: Tensor, n: int
    ) -> tuple[Tensor, ...]:
        if self.attn_type in WITHOUT_CACHE:
            return self._rows(key, n, self.num_kv_heads), self._rows(value, n, self.num_kv_heads)
        return self._pages(kv_cache)

    def _lengths(self, layer: Any, metadata: FlashAttnMetadata) -> dict[str, Any]:
        """Returns where the keys of each request are. Those of an encoder are its queries'."""
        if self.attn_type in WITHOUT_CACHE:
            return {
                "cu_seqlens_k": metadata.query_start_loc,
                "max_seqlen_k": metadata.max_query_len,
            }
        return {
            "seqused_k": metadata.seq_lens,
            "max_seqlen_k": metadata.max_seq_len,
            "page_table": metadata.block_table,
            **self._scales(layer, metadata.seq_lens.shape[0]),
        }

    def _scales(self, layer: Any, batch: int) -> dict[str, Any]:
        if self.kv_cache_dtype not in E4M3_CACHES:
            return {}
        return {f"{x}_descale": self._scale(layer, x, batch) for x in "kv"}

    def _scale(self, layer: Any, name: str, batch: int) -> float | Tensor:
        """Returns the layer's scale of q, k or v: its number, or [batch, num_kv_heads] where it has
        one for each K/V head."""
        of_heads = getattr(layer, f"_{name}_scale", None)
        if of_heads is None or of_heads.numel() == 1:
            return getattr(layer, f"_{name}_scale_float")
        return of_heads.view(1, self.num_kv_heads).expand(batch, self.num_kv_heads)

    def _scaled_query(
        self, layer: Any, query: Tensor, dtype: torch.dtype, lengths: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Returns the query as a kernel takes it, and scales that take the place of those in
        lengths: of 16 bits, which hold the codes of e4m3, where no kernel multiplies these."""
        if query.dtype != torch.float8_e4m3fn:
            return query, {}
        if self.kv_cache_dtype not in E4M3_CACHES:
            raise NotImplementedError(f"query is {query.dtype} beside a cache that is not of e4m3")
        of_query = self._scale(layer, "q", lengths["seqused_k"].shape[0])
        if not self._needs_16_bits(query):
            return query, {"q_descale": of_query}
        return query.to(dtype), {"k_descale": of_query * lengths["k_descale"]}

    def _needs_16_bits(self, query: Tensor) -> bool:
        """Says whether no kernel multiplies codes of this query, [tokens, num_heads, head_size]:
        those that do add no ALiBi, and cut sequences of a batch by what else is in it."""
        if not query.is_cpu and (self.alibi_slopes is not None or self.options["batch_invariant"]):
            return True
        features = {"page_table": True, "softcap": self.options["softcap"]}
        if self.sliding_window is not None:
            features["window_size"] = (self.sliding_window, 0)
        return needs_16_bits(query, query, features)

    def _window(self, causal: bool) -> tuple[int, int]:
        """vLLM counts the query's own key, and an encoder's window goes to both sides."""
        if self.sliding_window is None:
            return -1, -1
        return self.sliding_window - 1, 0 if causal else self.sliding_window - 1

    def _slopes(self, device: torch.device) -> Tensor | None:
        if self.alibi_slopes is not None and self.alibi_slopes.device != device:
            self.alibi_slopes = self.alibi_slopes.to(device)
        return self.alibi_slopes
