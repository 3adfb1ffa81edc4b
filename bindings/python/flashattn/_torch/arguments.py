"""This module groups the arguments of a call; a call that has none of a group passes None for it.

Groups are plain tuples, because objects would take a good part of a call's time.
"""

from __future__ import annotations

from typing import Optional

from torch import Tensor, dtype

# Mask holds softmax_scale, causal, window_left, window_right, softcap, batch_invariant,
# attention_chunk.
Mask = tuple[Optional[float], bool, int, int, float, bool, int]
# Used holds seqused_q, seqused_k, leftpad_k.
Used = tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]
# Scales holds k_descale, v_descale: float32 [batch, n_heads_kv].
Scales = tuple[Optional[Tensor], Optional[Tensor]]
# Ragged holds cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k.
Ragged = tuple[Optional[Tensor], Optional[Tensor], Optional[int], Optional[int]]
# Pages holds page_table, v_page_table, page_indptr, page_rows.
Pages = tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor], Optional[Tensor]]
# Bias holds alibi_slopes, attn_mask, mask_bits, mask_keys.
Bias = tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor], Optional[int]]
# Rotary holds cos, sin, interleaved, positions, start, q_at_start.
Rotary = tuple[Tensor, Tensor, bool, Optional[Tensor], Optional[Tensor], bool]
# Places holds seqused_k, seqused_k_out, slot_mapping.
Places = tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]
# Queries holds q, q_out, cu_seqlens_q.
Queries = tuple[Tensor, Tensor, Optional[Tensor]]
# Outputs holds out, lse, return_lse, out_dtype.
Outputs = tuple[Optional[Tensor], Optional[Tensor], bool, Optional[dtype]]

NEW_O: Outputs = (None, None, False, None)
NEW_O_AND_LSE: Outputs = (None, None, True, None)


class Unsound(ValueError):
    """A condition that a call needs does not hold; explain.py finds out which one."""
