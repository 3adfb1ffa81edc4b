"""Times masks of blocks beside the same masks of bits and of numbers, on one thread of the CPU.

python benchmarks/mask_blocks.py
"""

from __future__ import annotations

import time

import flashattn
import ml_dtypes
import numpy as np

SEQLEN, HEADS, D_HEAD, BLOCK, ROUNDS = 4096, 2, 128, 128, 7
rng = np.random.default_rng(0)
q, k, v = (
    rng.standard_normal((1, SEQLEN, HEADS, D_HEAD)).astype(ml_dtypes.bfloat16) for _ in range(3)
)


def blocks_of(share: float) -> np.ndarray:
    """Returns random blocks, and those on the diagonal, as sparse prefill has them."""
    n = SEQLEN // BLOCK
    return (rng.random((n, n)) < share) | np.eye(n, dtype=bool)


def main() -> None:
    flashattn.set_num_threads(1)
    for share in (0.05, 0.25, 0.5, 1.0):
        blocks = blocks_of(share)
        dense = blocks.repeat(BLOCK, axis=0).repeat(BLOCK, axis=1)
        bits = np.packbits(dense, axis=-1, bitorder="little").view(np.uint32)
        numbers = np.where(dense, 0, -np.inf).astype(np.float16)
        masks = {
            "none": {},
            "blocks": {"attn_mask": flashattn.BlockMask(blocks, BLOCK, BLOCK)},
            "bits": {"mask_bits": bits},
            "fp16": {"attn_mask": numbers},
        }
        times: dict[str, list[float]] = {name: [] for name in masks}
        for _ in range(ROUNDS):  # in turns
            for name, mask in masks.items():
                begin = time.process_time()
                flashattn.flash_attn_func(q, k, v, **mask)
                times[name].append(time.process_time() - begin)
        found = ", ".join(f"{name} {1e3 * sorted(x)[ROUNDS // 2]:.0f}" for name, x in times.items())
        print(f"{blocks.mean():.0%} of the blocks, ms: {found}", flush=True)


if __name__ == "__main__":
    main()
