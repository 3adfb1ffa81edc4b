"""This module has the prefill of latent attention (MLA) as vLLM knows one, for which vLLM expands K
and V of tokens: attention among the new tokens of prompts, and of these to a chunk of tokens that
are in the cache. vLLM merges both by their LSE."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm import envs
from vllm.platforms import current_platform
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend

from ..config import most_d_head_on_cuda
from ..torch_ops import flash_attn_varlen_func
from . import _mla


class FlashAttnMLAPrefill(MLAPrefillBackend):
    """Computes the prefill of a layer: 192 columns of K and 128 of V in DeepSeek's models."""

    @staticmethod
    def get_name() -> str:
        return "FLASHATTN"

    @classmethod
    def supports_dtype(cls, dtype: torch.dtype) -> bool:
        return dtype in (torch.float16, torch.bfloat16) or (
            dtype == torch.float32 and current_platform.is_cpu()
        )

    @classmethod
    def supports_compute_capability(cls, device_capability: Any) -> bool:
        return current_platform.is_cpu() or (
            device_capability is not None and device_capability.major >= _mla.LEAST_CAPABILITY
        )

    @classmethod
    def supports_mla_dimensions(cls, mla_dimensions: Any) -> bool:
        d_head = mla_dimensions.qk_nope_head_dim + mla_dimensions.qk_rope_head_dim
        return current_platform.is_cpu() or (
            max(d_head, mla_dimensions.v_head_dim) <= most_d_head_on_cuda()
        )

    def supports_out(self) -> bool:
        return True

    def run_prefill_new_tokens(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        return_softmax_lse: bool,
        out: Tensor | None = None,
        output_scale: Tensor | None = None,
    ) -> Any:
        """Returns O [tokens, heads, v_head_dim], or with LSE [heads, tokens], causal, of requests
        that have as many keys as queries."""
        if output_scale is not None:
            raise NotImplementedError("output is to be quantised: O is not rounded to FP8 here")
        batch = self._prefill_metadata
        starts, longest = batch.query_start_loc, batch.max_query_len
        return self._attend(
            q, k, v, out, starts, longest, starts, longest,
            causal=True, return_lse=return_softmax_lse,
        )  # fmt: skip

    def run_prefill_context_chunk(
        self, chunk: Any, q: Tensor, k: Tensor, v: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns O and LSE over a chunk of cached tokens, which every query sees."""
        return self._attend(
            q, k, v, out, chunk.query_start_loc, chunk.max_query_len, chunk.cu_seq_lens,
            chunk.max_seq_len, causal=False, return_lse=True,
        )  # fmt: skip

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor | None,
        starts_q: Tensor,
        longest_q: int,
        starts_k: Tensor,
        longest_k: int,
        **options: bool,
    ) -> Any:
        return flash_attn_varlen_func(
            q,
            k,
            v,
            cu_seqlens_q=starts_q,
            cu_seqlens_k=starts_k,
            max_seqlen_q=longest_q,
            max_seqlen_k=longest_k,
            softmax_scale=self.scale,
            batch_invariant=bool(getattr(envs, "VLLM_BATCH_INVARIANT", False)),
            out=out,
            **options,
        )
