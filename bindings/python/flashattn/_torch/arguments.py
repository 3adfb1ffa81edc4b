"""This module groups arguments of a call that belong together; a call that has none of a group
passes None for it.

Groups are plain tuples, because objects would take a good part of a call's time.
"""

from __future__ import annotations

from typing import Any, Optional

from torch import Tensor, dtype

# Scales holds k_descale, v_descale, q_descale: float32 [batch, n_heads_kv], the last also of the
# shape of q with one column.
Scales = tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]
# Pages holds page_table, v_page_table, page_indptr, page_rows.
Pages = tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor], Optional[Tensor]]
# Bias holds alibi_slopes, attn_mask, mask_bits, mask_keys, mask_head_scale.
Bias = tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor], Optional[int], Optional[Tensor]]
# Outputs holds out, lse, return_lse, out_dtype.
Outputs = tuple[Optional[Tensor], Optional[Tensor], bool, Optional[dtype]]


class Unsound(ValueError):
    """A condition that a call needs does not hold; explain.py finds out which one."""


def require_flags(*values: Any) -> None:
    """Raises Unsound for text, whose truth does not say what it says."""
    for value in values:
        if isinstance(value, (str, bytes)):
            raise Unsound
