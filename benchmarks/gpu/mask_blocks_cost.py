"""Prints the time of calls with masks of blocks beside the share of blocks that is seen.

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/gpu/mask_blocks_cost.py [--family SM80] [--block 128] [--runs 15]

Every head has random blocks of its own. The first two columns are calls without a mask and with one
of blocks, by the rows that the library selects. The others are of the family's row for any bias:
without a mask, with blocks, and with the blocks of one head for all, as blocks and as bits of
single keys. They are timed in turns, launch by launch. "x share" is the second column over the
share times the first.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from flashattn import BlockMask, flash_attn_func
from flashattn.cli import bench_cuda
from hidden_blocks_cost import Arch, biased_row, packed

SEQLEN, HEADS, D_HEAD = 16384, 16, 128
SHARES = (1.0, 0.5, 0.25, 0.1)


def random_blocks(share: float, block: int) -> torch.Tensor:
    """Returns [HEADS, blocks of queries, blocks of keys], each row with the same number of blocks,
    that on the diagonal among them."""
    n = SEQLEN // block
    drawn = torch.rand(HEADS, n, n, device="cuda")
    drawn.diagonal(dim1=1, dim2=2).fill_(2)
    least = drawn.topk(max(1, round(share * n)), dim=-1).values[..., -1:]
    return drawn >= least


def calls_of(shown: torch.Tensor, block: int, row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns keywords of calls by the names of their columns. row: the one with any bias."""
    dense = shown[:1].repeat_interleave(block, 1).repeat_interleave(block, 2)[None]
    words = {"attn_mask": BlockMask(packed(shown), block, block)}
    return {
        "none": {},
        "blocks": words,
        "row: none": row,
        "blocks ": {**row, **words},
        "one head": {**row, "attn_mask": BlockMask(packed(shown[:1]), block, block)},
        "bits": {**row, "mask_bits": packed(dense)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=("SM80", "SM90"), default="SM90")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--runs", type=int, default=15)
    args = parser.parse_args()
    torch.manual_seed(0)
    shape = (1, SEQLEN, HEADS, D_HEAD)
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    row = {"config": biased_row(Arch[args.family], "BF16", D_HEAD)}
    out = torch.empty_like(q)
    print(f"{torch.cuda.get_device_name()}, {args.family}, blocks of {args.block}; milliseconds")
    for share in SHARES:
        shown = random_blocks(share, args.block)
        options = calls_of(shown, args.block, row)
        calls = [
            lambda more=more: flash_attn_func(q, k, v, out=out, **more) for more in options.values()
        ]
        times = bench_cuda.cold_median_seconds(calls, args.runs)
        found = shown.float().mean().item()
        if share == SHARES[0]:
            print("share " + "".join(f"{name:>10}" for name in options) + "   x share")
        cells = "".join(f"{1e3 * x:10.3f}" for x in times)
        print(f"{found:5.1%} {cells}{times[1] / (found * times[0]):10.3f}", flush=True)


if __name__ == "__main__":
    main()
