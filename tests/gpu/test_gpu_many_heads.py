"""Batches with several times as many heads as the device has multiprocessors. SM90 rows give such
heads to teams of blocks, whole; each head gets, bit for bit, what it gets in a small batch."""

from __future__ import annotations

import flashattn
import pytest
import torch
from flashattn import Arch, Feature
from gpu_problems import DTYPE_NAMES, rows

BATCH, HEADS = 9, 32
ROWS = {
    row.name: row
    for row in rows()
    if row.config.arch == Arch.SM90 and not row.config.features & Feature.VARLEN
}


def _inputs(config: flashattn.Config, length: int, heads_kv: int) -> list[torch.Tensor]:
    """Under a causal mask, queries of every seventh head are so large that a fixed reference does
    not do for them."""
    torch.manual_seed(length)
    dtype = getattr(torch, DTYPE_NAMES[config.dtype])
    shapes = [(BATCH, length, heads, config.d_head) for heads in (HEADS, heads_kv, heads_kv)]
    q, k, v = [torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes]
    q[:, :, ::7] *= 40
    return [q, k, v]


@pytest.mark.parametrize("heads_kv", [HEADS, HEADS // 4])
@pytest.mark.parametrize("length", [130, 300, 520, 1030, 2100])
@pytest.mark.parametrize("name", ROWS)
def test_a_head_gets_what_it_gets_in_a_small_batch(name: str, length: int, heads_kv: int) -> None:
    config = ROWS[name].config
    causal = bool(config.features & Feature.CAUSAL)
    q, k, v = _inputs(config, length, heads_kv)
    options = {"causal": causal, "config": config, "return_lse": True}
    o, lse = flashattn.flash_attn_func(q, k, v, out=torch.full_like(q, torch.nan), **options)
    for i in range(BATCH):
        entry = slice(i, i + 1)
        alone = flashattn.flash_attn_func(q[entry], k[entry], v[entry], **options)
        assert torch.equal(o[entry], alone[0]), f"O of entry {i}"
        assert torch.equal(lse[entry], alone[1]), f"LSE of entry {i}"
