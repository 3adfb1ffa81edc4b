"""This module serves a V with fewer elements per head than K: the library has one d_head, so that V
is padded with zeros, and O is cut."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def filled_up(k: Tensor, v: Tensor) -> Tensor:
    """Returns v, or a copy padded to the d_head of k. Raises NotImplementedError where v's is
    larger."""
    missing = k.shape[-1] - v.shape[-1]
    if missing < 0:
        raise NotImplementedError(
            f"v has a d_head of {v.shape[-1]}, and k of {k.shape[-1]}: that of v must not be larger"
        )
    if missing == 0:
        return v
    if v.dtype.itemsize == 1:  # torch cannot pad these types
        return pad(v.view(torch.uint8), (0, missing)).view(v.dtype)
    return pad(v, (0, missing))


def cut(found: Any, d_head: int) -> Any:
    """Returns O, or (O, LSE), with `d_head` elements per head of O, contiguous."""
    if isinstance(found, Tensor):
        return found if found.shape[-1] == d_head else found[..., :d_head].contiguous()
    out, lse = found
    return cut(out, d_head), lse
