"""Calls with ALiBi and a mask in CUDA graphs, which replay with other slopes and masks."""

from __future__ import annotations

import math
from typing import Any

import flashattn
import torch


def check_replays(tensors: list[torch.Tensor], options: dict[str, Any], o: torch.Tensor) -> None:
    """Asserts that each replay has the bits of a call with the slopes and the mask of that time.

    tensors: q, k and v; options: keywords of flash_attn_varlen_func, among them alibi_slopes,
    attn_mask and a workspace, whose slopes and mask are changed; o: the call's output.
    """
    keywords = {**options, "out": o}
    flashattn.flash_attn_varlen_func(*tensors, **keywords)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flashattn.flash_attn_varlen_func(*tensors, **keywords)
    for step in range(3):
        options["alibi_slopes"].mul_(0.5)
        options["attn_mask"].copy_(options["attn_mask"].roll(step + 1, -1))
        o.fill_(math.nan)
        graph.replay()
        found = o.clone()
        flashattn.flash_attn_varlen_func(*tensors, **keywords)
        assert torch.equal(o, found)
