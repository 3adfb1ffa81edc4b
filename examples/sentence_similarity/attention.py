"""The attention implementations that the demo compares. Each computes softmax(Q K^T / sqrt(d)) V of
every sequence; they differ in how they treat a batch of different lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import flashattn
import gpu
import numpy as np
from batch import Batch, offsets_of, padded_batch, ragged_batch
from demo_support import why_no_gpu
from model import Attention


@dataclass(frozen=True)
class Implementation:
    name: str
    make_batch: Callable[[Sequence[Sequence[int]]], Batch]
    attention: Attention
    tolerance: float = 1e-4  # of embeddings (vectors of length 1) and of every layer's attention


def flash_varlen(q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The whole ragged batch in one call of the library."""
    return flashattn.flash_attn_varlen_func(q, k, v, **ragged_lengths(lengths))


def ragged_lengths(lengths: np.ndarray) -> dict[str, Any]:
    offsets, longest = offsets_of(lengths), int(lengths.max())
    return {
        "cu_seqlens_q": offsets,
        "cu_seqlens_k": offsets,
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
    }


def flash_kernel(lengths: np.ndarray, n_heads: int, d_head: int) -> flashattn.Selection:
    """The kernel that flash_varlen's call runs for such a batch, and why."""
    q = np.empty((lengths.sum(), n_heads, d_head), np.float32)
    return flashattn.select_config(q, q, q, **ragged_lengths(lengths))


def flash_each(q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """One call of the library for each sequence."""
    o = np.empty(q.shape, q.dtype)
    for tokens in sequences_of(lengths):
        one = (x[None, tokens] for x in (q, k, v))
        flashattn.flash_attn_func(*one, out=o[None, tokens])
    return o


def numpy_each(q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """One matrix of scores for each sequence and head."""
    o = np.empty(q.shape, q.dtype)
    for tokens in sequences_of(lengths):
        heads = (x[tokens].transpose(1, 0, 2) for x in (q, k, v))
        o[tokens] = softmax_attention(*heads, mask=None).transpose(1, 0, 2)
    return o


def numpy_padded(q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The published model's own way: one padded batch, a mask over the padding."""
    heads = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    visible = np.arange(q.shape[1]) < lengths[:, None]
    mask = np.where(visible, np.float32(0), np.float32(-np.inf))[:, None, None, :]
    return softmax_attention(*heads, mask=mask).transpose(0, 2, 1, 3)


def torch_padded(q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """PyTorch's fused attention on the padded batch."""
    import torch

    heads = (torch.from_numpy(x).transpose(1, 2) for x in (q, k, v))
    visible = torch.from_numpy(np.arange(q.shape[1]) < lengths[:, None])[:, None, None, :]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(*heads, attn_mask=visible).transpose(1, 2).numpy()


def torch_each(q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """PyTorch's fused attention, one call for each sequence."""
    import torch

    o = np.empty(q.shape, q.dtype)
    for tokens in sequences_of(lengths):
        heads = (torch.from_numpy(x[None, tokens]).transpose(1, 2) for x in (q, k, v))
        one = torch.nn.functional.scaled_dot_product_attention(*heads)
        o[tokens] = one[0].transpose(0, 1).numpy()
    return o


def softmax_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, mask: np.ndarray | None
) -> np.ndarray:
    """[..., seqlen, d_head], the textbook's three steps. In place where numpy can: it is the
    baseline, and should not be slower than it must."""
    scores = q @ k.swapaxes(-1, -2)
    scores *= np.float32(q.shape[-1] ** -0.5)
    if mask is not None:
        scores += mask
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    sums = scores.sum(axis=-1, keepdims=True)
    return (scores @ v) / sums


def sequences_of(lengths: np.ndarray) -> list[slice]:
    offsets = offsets_of(lengths).tolist()
    return [slice(begin, end) for begin, end in zip(offsets, offsets[1:])]


BASELINE = Implementation("numpy, padded batch", padded_batch, numpy_padded)
FLASHATTN = Implementation("flashattn, ragged batch", ragged_batch, flash_varlen)
FLASHATTN_GPU = Implementation("flashattn, GPU in fp16", ragged_batch, gpu.flash_varlen, 1e-2)


def preferred() -> Implementation:
    """The one that the demo is about: on the GPU where there is one."""
    return FLASHATTN if why_no_gpu() else FLASHATTN_GPU


def torch_works() -> bool:
    """Whether torch is installed, and takes the arrays of this numpy: one that was built for
    another numpy does not."""
    try:
        import torch

        torch.from_numpy(np.zeros(1, np.float32))
    except (ImportError, OSError, RuntimeError):
        return False
    return True


def implementations() -> list[Implementation]:
    """All that this machine can run, the baseline first."""
    found = [
        BASELINE,
        Implementation("numpy, each sequence", ragged_batch, numpy_each),
        FLASHATTN,
        Implementation("flashattn, each sequence", ragged_batch, flash_each),
    ]
    if preferred() is FLASHATTN_GPU:
        found.append(FLASHATTN_GPU)
    if torch_works():
        found.append(Implementation("torch SDPA, padded batch", padded_batch, torch_padded))
        found.append(Implementation("torch SDPA, each sequence", ragged_batch, torch_each))
    return found
