"""Batches with several times as many heads as the device has multiprocessors. SM90 rows give such
heads to teams of blocks, whole. Each head has the same bits as in a small batch.
"""

from __future__ import annotations

import flashattn
import pytest
import torch
from flashattn import Arch, Feature
from gpu_problems import rows, types_of

BATCH, HEADS = 9, 32
LAUNCHES = 5
# Queries and keys. In the last shape, under a causal mask, tiles without keys lie between others.
LENGTHS = [(130, 130), (300, 300), (520, 520), (1030, 1030), (2100, 2100), (700, 300)]
ROWS = {
    row.name: row
    for row in rows()
    if row.config.arch == Arch.SM90 and not row.config.features & Feature.VARLEN
}


def _inputs(config: flashattn.Config, len_q: int, len_k: int, heads_kv: int) -> list[torch.Tensor]:
    """Queries of every seventh head are too large for a fixed reference under a causal mask. Some
    values of every third K/V head, hidden from most rows there, are NaN."""
    torch.manual_seed(len_q)
    dtype = getattr(torch, types_of(config)["dtype"])
    d_head, d_head_v = config.d_head, config.d_head_v or config.d_head
    sizes = [(len_q, HEADS, d_head), (len_k, heads_kv, d_head), (len_k, heads_kv, d_head_v)]
    shapes = [(BATCH, *size) for size in sizes]
    q, k, v = [torch.randn(shape, device="cuda") for shape in shapes]
    q[:, :, ::7] *= 40
    v[:, -3:, ::3, 5] = torch.nan
    return [x.to(dtype) for x in (q, k, v)]


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compares bits, except which NaN it is."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.parametrize("heads_kv", [HEADS, HEADS // 4])
@pytest.mark.parametrize("len_q, len_k", LENGTHS)
@pytest.mark.parametrize("name", ROWS)
def test_a_head_gets_what_it_gets_in_a_small_batch(
    name: str, len_q: int, len_k: int, heads_kv: int
) -> None:
    config = ROWS[name].config
    causal = bool(config.features & Feature.CAUSAL)
    q, k, v = _inputs(config, len_q, len_k, heads_kv)
    options = {"causal": causal, "config": config, "return_lse": True}
    entries = [slice(i, i + 1) for i in range(BATCH)]
    alone = [flashattn.flash_attn_func(q[i], k[i], v[i], **options) for i in entries]
    o, lse = [torch.cat(parts) for parts in zip(*alone)]
    for launch in range(LAUNCHES):
        together = flashattn.flash_attn_func(q, k, v, out=torch.zeros_like(o), **options)
        assert _equal(together[0], o), f"O, launch {launch}"
        assert _equal(together[1], lse), f"LSE, launch {launch}"
