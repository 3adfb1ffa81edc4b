"""What flashattn.vllm imports of vLLM for latent attention (MLA), for machines without vLLM: base
classes that do what vLLM's do with a batch, as far as the backends use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch
import vllm_stub
from flashattn import latent


class QueryLenSupport(Enum):
    SINGLE_ONLY = "single_only"
    VARLEN = "varlen"


def vllm_config(**changed: Any) -> SimpleNamespace:
    """A configuration as vLLM has it, with members of its parts changed: a__b is b of a."""
    parts = {
        "parallel_config": {"decode_context_parallel_size": 1},
        "attention_config": {"mla_prefill_backend": None, "hisparse_config": None},
        "scheduler_config": {"enable_chunked_prefill": False},
        "cache_config": {"enable_prefix_caching": False},
        "speculative_config": {"num_speculative_tokens": 0},
    }
    for name, value in changed.items():
        part, member = name.split("__")
        parts[part][member] = value
    return SimpleNamespace(**{name: SimpleNamespace(**part) for name, part in parts.items()})


@dataclass
class MLACommonDecodeMetadata:
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    dcp_tot_seq_lens: torch.Tensor | None


@dataclass
class MLACommonMetadata:
    decode: Any
    prefill: Any
    num_decode_tokens: int
    causal: bool = True


class MLACommonBackend:
    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def validate_configuration(cls, **given: Any) -> list[str]:
        return ["MLA", *given]


class MLACommonMetadataBuilder:
    """Takes requests of few queries at the beginning of a batch for decode."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any
    ) -> None:
        self.reorder_batch_threshold = 1 + vllm_config.speculative_config.num_speculative_tokens

    def _build_decode(
        self, block_table_tensor, seq_lens_device, max_seq_len, query_start_loc_cpu,
        query_start_loc_device, num_decode_tokens, max_query_len, dcp_tot_seq_lens_device,
    ): ...  # fmt: skip

    def build(
        self, common_prefix_len: int, common: Any, fast_build: bool = False
    ) -> MLACommonMetadata:
        starts = common.query_start_loc.tolist()
        lengths = [b - a for a, b in zip(starts, starts[1:])]
        few = [n <= self.reorder_batch_threshold for n in lengths]
        n_decodes = few.index(False) if False in few else len(few)
        decode, n_tokens = None, starts[n_decodes]
        if n_decodes:
            decode = self._build_decode(
                block_table_tensor=common.block_table_tensor[:n_decodes],
                seq_lens_device=common.seq_lens[:n_decodes],
                max_seq_len=common.max_seq_len,
                query_start_loc_cpu=common.query_start_loc[: n_decodes + 1].cpu(),
                query_start_loc_device=common.query_start_loc[: n_decodes + 1],
                num_decode_tokens=n_tokens,
                max_query_len=min(common.max_query_len, self.reorder_batch_threshold),
                dcp_tot_seq_lens_device=None,
            )
        prefill = None
        if n_decodes < len(few):
            prefill = SimpleNamespace(
                query_start_loc=common.query_start_loc[n_decodes:] - n_tokens,
                max_query_len=common.max_query_len,
            )
        return MLACommonMetadata(decode, prefill, n_tokens, causal=common.causal)


class MLACommonImpl:
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: Any,
        sliding_window: Any,
        kv_cache_dtype: str,
        logits_soft_cap: Any,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **mla_args: Any,
    ) -> None:
        self.num_heads, self.scale, self.kv_cache_dtype = num_heads, scale, kv_cache_dtype
        self.dcp_world_size = CURRENT.config.parallel_config.decode_context_parallel_size

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
        skip_scale: bool = False,
    ) -> None:
        """Writes as vLLM's call on CUDA devices does."""
        used = slot_mapping >= 0
        n = slot_mapping.shape[0]
        tokens = torch.cat([kv_c_normed[:n], k_pe[:n, 0]], -1)[used]
        if kv_cache_dtype == "fp8_ds_mla":
            tokens = torch.from_numpy(latent.encode(tokens.float().cpu().numpy()))
        elif kv_cache_dtype.startswith("fp8"):
            kv_cache, tokens = kv_cache.view(torch.float8_e4m3fn), tokens.float() / k_scale
            tokens = tokens.clamp(-448, 448)
        size = kv_cache.shape[1]
        slots = slot_mapping[used]
        bits = tokens.to(kv_cache.device, kv_cache.dtype)
        kv_cache.view(torch.uint8)[slots // size, slots % size] = bits.view(torch.uint8)

    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer): ...


@dataclass
class SparseMLACommonMetadata:
    block_table: torch.Tensor
    req_id_per_token: torch.Tensor
    block_size: int
    num_decode_tokens: int


class SparseMLACommonMetadataBuilder:
    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any
    ) -> None:
        self.block_size = kv_cache_spec.block_size

    def _init_reorder_batch_threshold(
        self, reorder_batch_threshold: int = 1, supports_spec_as_decode: bool = False
    ) -> None:
        self.reorder_batch_threshold = reorder_batch_threshold

    def build(
        self, common_prefix_len: int, common: Any, fast_build: bool = False
    ) -> SparseMLACommonMetadata:
        lengths = common.query_start_loc.diff()
        requests = torch.arange(len(lengths), dtype=torch.int32).repeat_interleave(lengths)
        n = common.num_actual_tokens
        is_decode = bool((lengths <= self.reorder_batch_threshold).all())
        return self.metadata_cls(
            common.block_table_tensor, requests, self.block_size, n if is_decode else 0
        )


class SparseMLACommonImpl(MLACommonImpl):
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: Any,
        sliding_window: Any,
        kv_cache_dtype: str,
        logits_soft_cap: Any,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        topk_indices_buffer: torch.Tensor | None = None,
        index_group: Any = None,
        **mla_args: Any,
    ) -> None:
        super().__init__(
            num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window,
            kv_cache_dtype, logits_soft_cap, attn_type, kv_sharing_target_layer_name, **mla_args,
        )  # fmt: skip
        self.topk_indices_buffer, self.index_group = topk_indices_buffer, index_group

    def forward_mqa(self, q, kv_c_and_k_pe_cache, attn_metadata, layer): ...

    def _convert_logical_to_physical_topk(
        self, logical_topk_indices, attn_metadata, *, block_stride_rows, return_valid_counts
    ):  # fmt: skip
        self.index_group.n_calls += 1
        return convert(
            attn_metadata.req_id_per_token,
            attn_metadata.block_table,
            logical_topk_indices,
            attn_metadata.block_size,
            block_stride_rows,
            logical_topk_indices.shape[1],
            return_valid_counts,
        )


def convert(
    req_id: torch.Tensor,
    block_table: torch.Tensor,
    token_indices: torch.Tensor,
    BLOCK_SIZE: int,
    BLOCK_STRIDE_ROWS: int,
    NUM_TOPK_TOKENS: int,
    return_valid_counts: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Does what vLLM's triton_convert_req_index_to_global_index does: places of tokens, those that
    are none behind the others."""
    assert return_valid_counts and token_indices.shape == (len(req_id), NUM_TOPK_TOKENS)
    is_token = token_indices >= 0
    blocks = block_table[req_id.long()].gather(1, token_indices.clamp(min=0).long() // BLOCK_SIZE)
    places = blocks * BLOCK_STRIDE_ROWS + token_indices % BLOCK_SIZE
    order = torch.argsort(~is_token, dim=1, stable=True)
    places = torch.where(is_token, places, -1).gather(1, order)
    return places.int(), is_token.sum(1).int()


def flat_kv_row_view(kv_cache: torch.Tensor, block_size: int) -> tuple[torch.Tensor, int]:
    """Does what vLLM's function of this name does."""
    n_blocks, _, columns = kv_cache.shape
    apart, rest = divmod(kv_cache.stride(0), columns)
    assert rest == 0
    n_rows = (n_blocks - 1) * apart + block_size
    return kv_cache.as_strided((n_rows, columns), (columns, 1)), apart


class MLAPrefillBackend:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def prepare_metadata(self, prefill_metadata: Any) -> None:
        self._prefill_metadata = prefill_metadata

    def run_prefill_new_tokens(
        self, q, k, v, return_softmax_lse, out=None, output_scale=None
    ): ...  # fmt: skip

    def run_prefill_context_chunk(self, chunk, q, k, v, out=None): ...


CURRENT = SimpleNamespace(config=None)  # vLLM's current configuration


def _modules() -> dict[str, dict[str, Any]]:
    classes = (
        MLACommonBackend,
        MLACommonDecodeMetadata,
        MLACommonImpl,
        MLACommonMetadata,
        MLACommonMetadataBuilder,
        QueryLenSupport,
    )
    return {
        "vllm.config": {"get_current_vllm_config": lambda: CURRENT.config},
        "vllm.model_executor": {},
        "vllm.model_executor.layers": {},
        "vllm.model_executor.layers.attention": {},
        "vllm.model_executor.layers.attention.mla_attention": {x.__name__: x for x in classes},
        "vllm.model_executor.layers.attention.sparse_mla_attention": {
            x.__name__: x
            for x in (SparseMLACommonImpl, SparseMLACommonMetadata, SparseMLACommonMetadataBuilder)
        },
        "vllm.v1.attention.backends.mla.sparse_utils": {
            "align_blocks_to_rows": lambda spec: ("aligned", spec),
            "flat_kv_row_view": flat_kv_row_view,
            "triton_convert_req_index_to_global_index": convert,
        },
        "vllm.v1.attention.backend": {
            "max_decode_query_len": lambda c: 1 + c.speculative_config.num_speculative_tokens
        },
        "vllm.v1.attention.backends.mla.prefill.base": {"MLAPrefillBackend": MLAPrefillBackend},
    }


@contextmanager
def stub(kind: str) -> Iterator[dict[Any, str]]:
    """Puts the package in place, for a platform, with a configuration without anything special;
    yields what is registered with it."""
    CURRENT.config = vllm_config()
    with vllm_stub.stub(kind, _modules()) as registered:
        yield registered
