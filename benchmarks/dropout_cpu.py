"""Measures what dropout costs on the CPU, by hand:

    FLASHATTN_LIBRARY=build/gcc/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/dropout_cpu.py [--rounds 15] [--threads 1]

A call with a probability of 0.1 takes turns with the same one without, in processor time of all
threads. A line shows the medians of both, and that of the ratios of the rounds.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Callable

import flashattn
import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DROPOUT = {"dropout_p": 0.1, "rng_state": (2026, 0)}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seqlen", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=8)
    return parser.parse_args()


def calls_of(dtype: torch.dtype, d_head: int, options: argparse.Namespace) -> dict[str, Callable]:
    """Returns the forward pass and the gradients, each taking keywords of dropout."""
    shape = (1, options.seqlen, options.heads, d_head)
    q, k, v, d_o = (torch.randn(shape, dtype=dtype) for _ in range(4))
    o, lse = flashattn.flash_attn_func(q, k, v, return_lse=True)
    return {
        "forward": lambda **dropout: flashattn.flash_attn_func(q, k, v, **dropout),
        "gradients": lambda **dropout: flashattn.flash_attn_backward(
            d_o, q, k, v, o, lse, **dropout
        ),
    }


def seconds(call: Callable, dropout: dict) -> float:
    begin = time.process_time()
    call(**dropout)
    return time.process_time() - begin


def main() -> None:
    options = parse()
    flashattn.set_num_threads(options.threads)
    print("type d_head  pass        without, ms  with, ms  times as long")
    for name, dtype in DTYPES.items():
        for d_head in (64, 128):
            for what, call in calls_of(dtype, d_head, options).items():
                seconds(call, DROPOUT)
                found = [(seconds(call, {}), seconds(call, DROPOUT)) for _ in range(options.rounds)]
                without, dropped = (median(times) * 1e3 for times in zip(*found))
                ratio = median(b / a for a, b in found)
                print(f"{name} {d_head:6}  {what:10} {without:12.1f} {dropped:9.1f} {ratio:14.2f}")


if __name__ == "__main__":
    main()
