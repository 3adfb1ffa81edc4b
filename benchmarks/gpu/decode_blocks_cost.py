"""Prints what masks of blocks cost in decode, beside the share of blocks that is seen.

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/gpu/decode_blocks_cost.py [--runs 9]

Calls are of one query in bf16, d_head 128, by the rows that the library selects: contiguous caches
of known lengths, and pages of 64 tokens. Blocks of 128 keys are shown at random, the same to all
query heads or, under "own", to each K/V head its own. Times are microseconds, in turns, launch by
launch, with 256 MiB written before each one.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from flashattn import BlockMask, flash_attn_func
from flashattn.cli import bench_cuda
from hidden_blocks_cost import packed

D_HEAD, BLOCK, PAGE_SIZE = 128, 128, 64
SHARES = (1.0, 0.5, 0.25, 0.1)
CASES = ((64, 8192, 32, 8), (16, 4096, 32, 32), (1, 32768, 32, 8))  # batch, keys, heads, K/V heads


def cache(
    batch: int, keys: int, heads_kv: int, paged: bool
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    shape = (batch, keys, heads_kv, D_HEAD)
    k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    if not paged:
        return k, v, {}
    table = torch.randperm(batch * keys // PAGE_SIZE, device="cuda").int().view(batch, -1)
    lengths = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
    pools = (x.view(-1, PAGE_SIZE, heads_kv, D_HEAD) for x in (k, v))
    return (*pools, {"page_table": table, "seqused_k": lengths})


def mask(batch: int, keys: int, heads: int, group: int, share: float) -> BlockMask:
    """Returns a mask of that many heads, each for a group of query heads."""
    shown = torch.rand(batch, heads, 1, keys // BLOCK, device="cuda") < share
    return BlockMask(packed(shown).repeat_interleave(group, 1), 1, BLOCK)


def line(case: tuple[int, int, int, int], paged: bool, runs: int) -> str:
    batch, keys, heads, heads_kv = case
    k, v, where = cache(batch, keys, heads_kv, paged)
    q = torch.randn(batch, 1, heads, D_HEAD, dtype=torch.bfloat16, device="cuda")
    masks: list[BlockMask | None] = [None]
    for share in SHARES:
        masks.append(mask(batch, keys, 1, 1, share))
        masks.append(mask(batch, keys, heads_kv, heads // heads_kv, share))
    calls = [lambda m=m: flash_attn_func(q, k, v, attn_mask=m, **where) for m in masks]
    times = bench_cuda.cold_median_seconds(calls, runs)
    name = f"{batch} x {keys}, {heads}/{heads_kv}, {'pages' if paged else 'known'}"
    return f"{name:26}" + "".join(f"{1e6 * x:8.1f}" for x in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    torch.manual_seed(0)
    print(torch.cuda.get_device_name())
    print(f"{'':26}{'none':>8}" + "".join(f"{x:8.0%}{'own':>8}" for x in SHARES))
    for case in CASES:
        for paged in (False, True):
            print(line(case, paged, runs), flush=True)


if __name__ == "__main__":
    main()
