"""This module groups arguments of a call that belong together; a call that has none of a group
passes None for it.

Groups are plain tuples, because objects would take a good part of a call's time.
"""

from __future__ import annotations

from typing import Optional

from torch import Tensor, dtype

# Scales holds k_descale, v_descale: float32 [batch, n_heads_kv].
Scales = tuple[Optional[Tensor], Optional[Tensor]]
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


def pages_of(
    page_table: Tensor | None,
    v_page_table: Tensor | None,
    page_indptr: Tensor | None,
    page_rows: Tensor | None,
) -> Pages | None:
    """Returns the arguments that say where pages lie as a group, or None where none is given."""
    if page_table is v_page_table is page_indptr is page_rows is None:
        return None
    return page_table, v_page_table, page_indptr, page_rows


def scales_of(k_descale: Tensor | None, v_descale: Tensor | None) -> Scales | None:
    """Returns the scales as a group, or None where none is given."""
    return None if k_descale is v_descale is None else (k_descale, v_descale)


def queries_of(
    q: Tensor | None, q_out: Tensor | None, cu_seqlens_q: Tensor | None
) -> Queries | None:
    """Returns the queries as a group, or None where there are none. append() refuses a group that
    lacks q."""
    return None if q is q_out is None else (q, q_out, cu_seqlens_q)


class Unsound(ValueError):
    """A condition that a call needs does not hold; explain.py finds out which one."""
