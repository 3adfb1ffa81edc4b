"""This module has the backend of latent attention to chosen tokens as vLLM knows one, for
DeepSeek-V3.2 on CUDA devices: an indexer of the model chooses tokens of the cache for each query.

vLLM's own call makes of the choice, where -1 is no token, the places of the tokens in the cache,
one behind the other, and their number. These are a page table of pages of one token, and its
lengths: each query is a sequence of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention import sparse_mla_attention
from vllm.model_executor.layers.attention.sparse_mla_attention import (
    SparseMLACommonImpl,
    SparseMLACommonMetadata,
    SparseMLACommonMetadataBuilder,
)
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport
from vllm.v1.attention.backends.mla.sparse_utils import (
    align_blocks_to_rows,
    flat_kv_row_view,
    triton_convert_req_index_to_global_index,
)

from . import _interface, _mla

_interface.check_mla_sparse(sparse_mla_attention)


class FlashAttnMLASparseBackend(_mla.Served, AttentionBackend):
    """Is the backend of layers that attend to chosen tokens."""

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """Blocks are a whole number of tokens apart, since tokens are pages."""
        return align_blocks_to_rows(spec)

    @staticmethod
    def get_impl_cls() -> type[FlashAttnMLASparseImpl]:
        return FlashAttnMLASparseImpl

    @staticmethod
    def get_builder_cls() -> type[FlashAttnMLASparseMetadataBuilder]:
        return FlashAttnMLASparseMetadataBuilder


class FlashAttnMLASparseMetadataBuilder(SparseMLACommonMetadataBuilder):
    """Has vLLM's own metadata. Requests of one query, or of a draft's, are decoded."""

    metadata_cls = SparseMLACommonMetadata
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        _interface.warn_of_another_version()
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> Any:
        _interface.refuse_unread_fields(common_attn_metadata)
        if common_attn_metadata.causal is not True:
            raise NotImplementedError(
                f"causal is {common_attn_metadata.causal}: tokens are chosen for a causal order"
            )
        return super().build(common_prefix_len, common_attn_metadata, fast_build)


class FlashAttnMLASparseImpl(SparseMLACommonImpl):
    """Computes the attention of a layer to chosen tokens. Prompts that are no longer than the
    number of tokens that would be chosen are vLLM's own prefill, by FlashAttnMLAPrefill."""

    can_return_lse_for_decode = False
    supports_pcp: ClassVar[bool] = False
    supports_dcp: ClassVar[bool] = False

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
            kv_sharing_target_layer_name=kv_sharing_target_layer_name,
        )  # fmt: skip
        if get_current_vllm_config().attention_config.hisparse_config is not None:
            raise NotImplementedError(
                "hisparse_config is set: flashattn.vllm reads chosen tokens where the cache has "
                "them, not in a buffer of those that were used last"
            )
        super().__init__(
            num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window,
            kv_cache_dtype, logits_soft_cap, attn_type, kv_sharing_target_layer_name, **mla_args,
        )  # fmt: skip
        _mla.refuse_ranks(self.dcp_world_size)
        if self.topk_indices_buffer is None:
            raise ValueError("the layer has no indexer, and no buffer of chosen tokens")
        self.supports_quant_query_input = False  # Q stays of the model's type
        _mla.take_prefill()

    def forward_mqa(
        self,
        q: Tensor | tuple[Tensor, Tensor],
        kv_c_and_k_pe_cache: Tensor,
        attn_metadata: SparseMLACommonMetadata,
        layer: Any,
    ) -> tuple[Tensor, None]:
        """Returns O [tokens, heads, 512] of tokens, each over its own choice, and no LSE."""
        q = _mla.query(q)
        tokens, apart = flat_kv_row_view(kv_c_and_k_pe_cache, attn_metadata.block_size)
        places, counts = self._places(q.shape[0], attn_metadata, apart)
        o = q.new_empty(*q.shape[:2], _mla.V_COLUMNS)
        _mla.attend(
            q.unsqueeze(1),
            tokens.unsqueeze(1),
            o.unsqueeze(1),
            self.kv_cache_dtype,
            layer,
            self.scale,
            cu_seqlens_q=None,
            max_seqlen_q=None,
            seqused_k=counts,
            page_table=places,
        )
        return o, None

    def _places(self, n: int, metadata: SparseMLACommonMetadata, apart: int) -> Any:
        """Returns the chosen tokens' places in the cache, int32 [tokens, choice], and how many
        there are, int32 [tokens]. Layers that share a choice share these, where all tokens are
        decoded."""
        chosen = self.topk_indices_buffer[:n]
        group = self.index_group
        if group is not None and group.num_layers > 1 and metadata.num_decode_tokens == n:
            return self._convert_logical_to_physical_topk(
                chosen, metadata, block_stride_rows=apart, return_valid_counts=True
            )
        return triton_convert_req_index_to_global_index(
            metadata.req_id_per_token[:n],
            metadata.block_table,
            chosen,
            BLOCK_SIZE=metadata.block_size,
            BLOCK_STRIDE_ROWS=apart,
            NUM_TOPK_TOKENS=chosen.shape[1],
            return_valid_counts=True,
        )
