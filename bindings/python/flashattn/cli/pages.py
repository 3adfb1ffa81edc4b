"""K and V of the commands in pages: a pool of pages in random order, full to the last one."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import extras


def count(keys: int, page_size: int) -> int:
    """Pages of a sequence of that number of keys."""
    return -(-keys // page_size)


def where(batch: int, keys: int, page_size: int) -> dict[str, np.ndarray]:
    """The keywords of flash_attn_func for `batch` sequences of `keys` keys, whose pages are those
    of a pool of batch * count(keys, page_size)."""
    n_ids = count(keys, page_size)
    ids = np.random.default_rng(0).permutation(batch * n_ids).astype(np.int32)
    return {"page_table": ids.reshape(batch, n_ids), "seqused_k": np.full(batch, keys, np.int32)}


def on_device(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The same as torch tensors in CUDA memory."""
    torch = extras.load("torch")
    return {name: torch.from_numpy(array).cuda() for name, array in arrays.items()}
