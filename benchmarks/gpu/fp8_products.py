"""Times rows that multiply Q, K and V of e4m3 as such, in turns with FlashAttention-3.

    python benchmarks/gpu/fp8_products.py [D_HEAD...]

It needs FlashAttention-3's flash_attn_interface and, for more rows than those of ship, a library
with the set tune_sm90_fp8. Lines have TFLOP/s of FlashAttention-3 in bf16 and in e4m3, of this
library in bf16, and of each row of a d_head and mask.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import flash_attn_interface
import flashattn
import torch
from backward_cost import median_times
from flashattn import Config, DType, Feature

TOKENS = 16384
COLUMNS = 2048  # of all heads, at most
LENGTHS = (16384, 4096, 1024)


def calls_of(rows: list[Config], d_head: int, causal: bool, length: int) -> dict[str, Callable]:
    shape = (TOKENS // length, length, COLUMNS // d_head, d_head)
    wide = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    codes = [x.to(torch.float8_e4m3fn) for x in wide]
    one = torch.ones(shape[0], shape[2], device="cuda")
    scales = {name: one for name in ("q_descale", "k_descale", "v_descale")}
    fa3 = flash_attn_interface.flash_attn_func
    calls: dict[str, Callable] = {
        "FA3 bf16": lambda: fa3(*wide, causal=causal),
        "FA3 e4m3": lambda: fa3(*codes, causal=causal, **scales),
        "bf16": lambda: flashattn.flash_attn_func(*wide, causal=causal),
    }
    for row in rows:
        calls[str(row)] = lambda row=row: flashattn.flash_attn_func(
            *codes, causal=causal, config=row, out_dtype="bfloat16"
        )
    return calls


def main() -> None:
    d_heads = [int(text) for text in sys.argv[1:]] or [64, 128, 192, 256]
    all_rows = [k.config for k in flashattn.kernels() if k.is_runnable]
    all_rows = [row for row in all_rows if row.operand_dtype == DType.E4M3]
    for d_head in d_heads:
        for causal in (False, True):
            features = Feature.CAUSAL if causal else Feature(0)
            rows = [r for r in all_rows if r.d_head == d_head and r.features == features]
            for length in LENGTHS:
                columns = COLUMNS // d_head * d_head
                operations = 4 * TOKENS * length * columns / (2 if causal else 1)
                print(f"d_head {d_head}, {'causal' if causal else 'full'}, {length} tokens")
                times = median_times(calls_of(rows, d_head, causal, length))
                for name, milliseconds in times.items():
                    print(f"  {operations / milliseconds / 1e9:7.0f} {name}", flush=True)


if __name__ == "__main__":
    main()
