"""Inputs of `bench --scores`: those for which a fixed reference of the softmax does not do."""

from __future__ import annotations

import math
from typing import Any

ORDINARY, GROWING, GROWING_ONCE = "ordinary", "growing", "growing_once"
SCORES = (ORDINARY, GROWING, GROWING_ONCE)

_GROWTH = 200.0  # of a scaled score: beyond the range of every type, relative to the other scores
_WEIGHT = 8.0  # of the first column in a query that sees it grow


def grow(q: Any, k: Any, softmax_scale: float | None, *, once: bool) -> tuple[Any, Any]:
    """Copies of torch tensors in which the first key, which kernels come to last, outweighs all
    others: for every query or, once, for the last one of a single head."""
    scale = 1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    q, k = q.clone(), k.clone()
    k[..., 0] = 0
    k[:, 0, :, 0] = _GROWTH / (_WEIGHT * scale)
    q[..., 0] = 0 if once else _WEIGHT
    q[0, -1, 0, 0] = _WEIGHT
    return q, k
