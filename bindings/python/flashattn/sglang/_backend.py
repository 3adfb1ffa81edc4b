"""This module has the backend as SGLang knows one: the metadata of a batch, and the calls of a
layer. The registry imports it when SGLang makes the backend of a model.

SGLang's pool writes new tokens of K and V to their slots. Then a layer makes one call, which reads
the cache by SGLang's table of slots, req_to_token, as pages of one token, or by a table of pages
where they are larger. Lengths, rows and tables are read on the device, and are made from SGLang's
own tensors within the CUDA graph, so that a step that was captured serves other lengths when it is
replayed: its kernel and its workspace are those of the longest context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend, SharedReadEnds
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.runtime_context import get_exec, get_spec
from torch import Tensor
from torch.nn.functional import pad

from ..torch_ops import flash_attn_func, flash_attn_varlen_func
from ._refusals import (
    refuse_batch,
    refuse_cpu_graph,
    refuse_graph_of,
    refuse_layer,
    refuse_runner,
)

IN_BOTH_DIRECTIONS = (AttentionType.ENCODER_ONLY, AttentionType.DECODER_BIDIRECTIONAL)


class Keys(NamedTuple):
    """Where the keys of each request are: int32 [rows, pages], the row of each request (None: in
    order), and int32 [requests]. The width of the table bounds the lengths."""

    page_table: Tensor
    page_rows: Tensor | None
    seqused_k: Tensor


@dataclass
class Step:
    """Tensors of a batch, on its device. Requests have max_seqlen_q queries each where cu_seqlens_q
    is None. windowed is where the pool of layers with windows has their keys, and windowed_slots
    where it writes new ones; of_encoder are the keys of cross attention."""

    n_requests: int
    max_seqlen_q: int
    cu_seqlens_q: Tensor | None
    keys: Keys
    windowed: Keys | None = None
    windowed_slots: Tensor | None = None
    of_encoder: Keys | None = None


class FlashAttnBackend(AttentionBackend):
    """Computes the attention of a model's layers."""

    needs_cpu_seq_lens = False

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        refuse_runner(model_runner)
        self.forward_metadata: Step | None = None
        self.token_to_kv_pool = pool = model_runner.token_to_kv_pool
        self.req_to_token = model_runner.req_to_token_pool.req_to_token
        self.is_encoder_decoder = model_runner.model_config.is_encoder_decoder
        # Behind the tokens of an encoder those of its decoder begin within a page.
        self.page_size = 1 if self.is_encoder_decoder else model_runner.page_size
        self.attention_chunk = 0
        if model_runner.model_config.is_local_attention_model:
            self.attention_chunk = model_runner.attention_chunk_size
        self.has_windowed_pool = isinstance(pool, SWAKVPool) and pool.swa_layer_nums > 0
        self.n_drafts = get_spec().speculative_num_draft_tokens or 0
        self.batch_invariant = bool(get_exec().deterministic.enable_deterministic_inference)

    # ---- The metadata of a batch ----

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Prepares a step that runs at once."""
        lengths = forward_batch.seq_lens_cpu
        if lengths is None or lengths.numel() == 0:
            longest = self.req_to_token.shape[1]
        else:
            longest = int(lengths.max()) + self._drafts(forward_batch)
        self._prepare(forward_batch, longest)

    def shared_read_ends(self, fm: Any) -> Any:
        """Says until when SGLang must leave its tables alone: until the step's end where layers
        read req_to_token itself."""
        ends = super().shared_read_ends(fm)
        reads_in_place = self.page_size == 1 and ends is SharedReadEnds.IN_REPLAY
        return SharedReadEnds.POST_REPLAY if reads_in_place else ends

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Has nothing to keep: a graph's tensors are of its own pool."""

    def init_cpu_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        refuse_cpu_graph()

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        refuse_graph_of(forward_batch.forward_mode)

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        """Prepares a step within the graph that captures it."""
        self._prepare(forward_batch, self.req_to_token.shape[1])

    def _prepare(self, batch: Any, longest: int) -> None:
        """Makes forward_metadata. No request has more keys than longest."""
        refuse_batch(batch)
        self.forward_metadata = None
        if batch.batch_size == 0:
            return
        n_drafts = self._drafts(batch)
        lengths = (batch.seq_lens + n_drafts).to(torch.int32)
        step = Step(batch.batch_size, n_drafts or 1, None, self._keys(batch, lengths, longest))
        if not (batch.forward_mode.is_decode_or_idle() or batch.forward_mode.is_target_verify()):
            step.cu_seqlens_q = pad(batch.extend_seq_lens.cumsum(0, dtype=torch.int32), (1, 0))
            step.max_seqlen_q = self._most_queries(batch)
        if self.has_windowed_pool:
            step.windowed = Keys(self._windowed_table(batch, longest), None, lengths)
            step.windowed_slots = self._windowed(batch.out_cache_loc)
        if batch.encoder_lens is not None:
            encoder_lens = batch.encoder_lens.to(torch.int32)
            step.of_encoder = Keys(self.req_to_token, batch.req_pool_indices, encoder_lens)
        self.forward_metadata = step

    def _drafts(self, batch: Any) -> int:
        """Returns the number of drafts of a request, which seq_lens does not count."""
        return self.n_drafts if batch.forward_mode.is_target_verify() else 0

    def _most_queries(self, batch: Any) -> int:
        if batch.extend_seq_lens_cpu is None:
            return batch.extend_num_tokens
        return max(batch.extend_seq_lens_cpu)

    def _keys(self, batch: Any, lengths: Tensor, longest: int) -> Keys:
        """Reads req_to_token in place if its entries are pages as they are."""
        if batch.encoder_lens is not None:
            return Keys(self._table_of_decoder(batch, longest), None, lengths)
        if self.page_size == 1:
            return Keys(self.req_to_token[:, :longest], batch.req_pool_indices, lengths)
        return Keys(self._first_slots(batch, longest) // self.page_size, None, lengths)

    def _first_slots(self, batch: Any, longest: int) -> Tensor:
        """Returns the first slot of each page of the requests, [requests, pages]."""
        return self.req_to_token[:, : longest : self.page_size][batch.req_pool_indices]

    def _windowed_table(self, batch: Any, longest: int) -> Tensor:
        slots = self._windowed(self._first_slots(batch, longest))
        return (slots // self.page_size).to(torch.int32)

    def _windowed(self, slots: Tensor | None) -> Tensor | None:
        """Returns the slots that tokens have in the pool of layers with windows."""
        if slots is None:
            return None
        return self.token_to_kv_pool.translate_loc_from_full_to_swa(slots)

    def _table_of_decoder(self, batch: Any, longest: int) -> Tensor:
        """Returns the slots of a decoder's tokens, which lie behind those of its encoder."""
        columns = torch.arange(longest, device=self.req_to_token.device)
        columns = batch.encoder_lens.unsqueeze(1) + columns
        columns = columns.clamp(max=self.req_to_token.shape[1] - 1)
        return self.req_to_token[batch.req_pool_indices.unsqueeze(1), columns]

    # ---- The calls of a layer ----

    def forward_decode(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Writes K and V of the batch's tokens, and returns O [tokens, tp_q_head_num * v_head_dim].
        q: [tokens, tp_q_head_num * qk_head_dim], or with the axis of heads."""
        causal = not layer.is_cross_attention and layer.attn_type != AttentionType.ENCODER_ONLY
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, causal, sinks, options)

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Does what forward_decode does, for any number of queries of a request."""
        causal = not layer.is_cross_attention and layer.attn_type not in IN_BOTH_DIRECTIONS
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, causal, sinks, options)

    def _forward(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: Any,
        batch: Any,
        save_kv_cache: bool,
        causal: bool,
        sinks: Tensor | None,
        options: dict[str, Any],
    ) -> Tensor:
        refuse_layer(layer, options)
        if save_kv_cache and k is not None:
            self._save(k, v, layer, batch)
        out = getattr(batch, "_attn_output", None)
        if out is None:
            out = q.new_empty(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)
        pages = self._pages(layer)
        self._attend(
            q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim),
            *pages,
            out=out.view(-1, layer.tp_q_head_num, layer.v_head_dim),
            softmax_scale=float(layer.scaling),
            softcap=float(layer.logit_cap or 0.0),
            causal=causal,
            window_size=self._window(layer, causal),
            attention_chunk=self.attention_chunk if layer.use_irope else 0,
            sinks=None if sinks is None else sinks.to(torch.float32),
            batch_invariant=self.batch_invariant,
            **self._keys_of(layer)._asdict(),
            **self._scales(layer, pages[0]),
        )
        return out

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, *, out: Tensor, **arguments: Any) -> None:
        step = self.forward_metadata
        if step.cu_seqlens_q is None:
            q, out = (x.unflatten(0, (step.n_requests, step.max_seqlen_q)) for x in (q, out))
            flash_attn_func(q, k, v, out=out, **arguments)
            return
        queries = {"cu_seqlens_q": step.cu_seqlens_q, "max_seqlen_q": step.max_seqlen_q}
        flash_attn_varlen_func(q, k, v, out=out, **queries, **arguments)

    def _save(self, k: Tensor, v: Tensor, layer: Any, batch: Any) -> None:
        slots = self.forward_metadata.windowed_slots
        where = KVWriteLoc.for_layer(batch, layer, swa_loc=slots)
        self.token_to_kv_pool.set_kv_buffer(layer, where, k, v, layer.k_scale, layer.v_scale)

    def _keys_of(self, layer: Any) -> Keys:
        step = self.forward_metadata
        if layer.is_cross_attention:
            return step.of_encoder
        if self.has_windowed_pool and self.token_to_kv_pool.layers_mapping[layer.layer_id][1]:
            return step.windowed
        return step.keys

    def _pages(self, layer: Any) -> tuple[Tensor, Tensor]:
        """Returns K and V [pages, page_size, heads, elements] of the layer's cache."""
        k, v = self.token_to_kv_pool.get_kv_buffer(layer.layer_id)
        heads = layer.tp_k_head_num
        return self._paged(k, heads, layer.qk_head_dim), self._paged(v, heads, layer.v_head_dim)

    def _paged(self, cache: Tensor, heads: int, d_head: int) -> Tensor:
        """Reads [slots, heads, elements], or [pages, heads, tokens, elements] that SGLang has where
        SGLANG_USE_HND_KVCACHE is set. Pages lie where the strides of the slots say."""
        if cache.dim() == 4 and tuple(cache.shape[1:]) == (heads, self.page_size, d_head):
            return cache.transpose(1, 2)
        if tuple(cache.shape[1:]) != (heads, d_head):
            raise NotImplementedError(
                f"the cache has shape {tuple(cache.shape)}, not [slots, {heads}, {d_head}]"
            )
        size, stride = self.page_size, cache.stride()
        shape = (cache.shape[0] // size, size, heads, d_head)
        return cache.as_strided(shape, (stride[0] * size, *stride))

    def _window(self, layer: Any, causal: bool) -> tuple[int, int]:
        """SGLang does not count the query's own key, and an encoder's window goes to both sides."""
        window = layer.sliding_window_size
        if window is None or window < 0 or layer.is_cross_attention:
            return -1, -1
        return window, 0 if causal else window

    def _scales(self, layer: Any, k: Tensor) -> dict[str, Tensor]:
        """Returns the scales of a cache of e4m3, if the model has any, as SGLang's tensors."""
        if k.dtype != torch.float8_e4m3fn or layer.k_scale is None:
            return {}
        shape = (self.forward_metadata.n_requests, layer.tp_k_head_num)
        scales = {"k_descale": layer.k_scale, "v_descale": layer.v_scale}
        return {name: scale.detach().expand(shape) for name, scale in scales.items()}
