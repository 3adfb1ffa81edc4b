"""The demo's attention on a CUDA device. The model stays in numpy; torch's tensors hold Q, K, V and
O in the device's memory. CUDA kernels are for fp16 and bf16, so the inputs are rounded to fp16.
"""

from __future__ import annotations

from typing import Any

import flashattn
import numpy as np
from batch import offsets_of


def flash_varlen(q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The whole ragged batch in one call; what it takes to copy in and out is part of it."""
    o = flashattn.flash_attn_varlen_func(*map(upload, (q, k, v)), **ragged_lengths(lengths))
    return o.float().cpu().numpy()


def upload(x: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(x)).to("cuda").half()


def ragged_lengths(lengths: np.ndarray) -> dict[str, Any]:
    import torch

    offsets, longest = torch.from_numpy(offsets_of(lengths)).to("cuda"), int(lengths.max())
    return {
        "cu_seqlens_q": offsets,
        "cu_seqlens_k": offsets,
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
    }


def kernel(lengths: np.ndarray, n_heads: int, d_head: int) -> flashattn.Selection:
    """The kernel that flash_varlen's call runs for such a batch, and why."""
    q = upload(np.zeros((lengths.sum(), n_heads, d_head), np.float32))
    return flashattn.select_config(q, q, q, **ragged_lengths(lengths))
