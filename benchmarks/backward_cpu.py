"""Measures gradients on the CPU beside torch's, by hand:

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/backward_cpu.py [--rounds 5] [--threads 1,2] [--clock wall]

torch's are those of scaled_dot_product_attention, by its own kernel for CPUs, and the backward pass
alone is timed. Both get the same tensors, [1, tokens, heads, d_head], which torch sees transposed,
make new ones for the gradients, and take turns. A line shows the median of each and of the ratios
of the rounds. GFLOP/s count five products of 2 tokens^2 d_head operations for each head, half of
that where a mask is causal, whatever a library computes. The clock is by default that of the
processor, of all threads, since other work on a machine does not run it; `--clock wall` also shows
how long threads wait for each other.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Callable

import flashattn
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

CLOCKS = {"processor": time.process_time, "wall": time.perf_counter}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--seqlen", type=numbers, default=[1024, 4096])
    parser.add_argument("--d-head", type=numbers, default=[64, 128])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--dtype", default="fp32,bf16", help="of fp32, bf16 and fp16")
    parser.add_argument("--clock", choices=CLOCKS, default="processor")
    return parser.parse_args()


def gradients(
    heads: int, tokens: int, d_head: int, dtype: torch.dtype, causal: bool
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns this library's call and torch's."""
    q, k, v, d_o = (torch.randn(1, tokens, heads, d_head, dtype=dtype) for _ in range(4))
    o, lse = flashattn.flash_attn_func(q, k, v, causal=causal, return_lse=True)
    leaves = [x.transpose(1, 2).requires_grad_() for x in (q, k, v)]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        theirs = scaled_dot_product_attention(*leaves, is_causal=causal)
    plain = [x.detach() for x in (q, k, v)]
    return (
        lambda: flashattn.flash_attn_backward(d_o, *plain, o, lse, causal=causal),
        lambda: torch.autograd.grad(theirs, leaves, d_o.transpose(1, 2), retain_graph=True),
    )


def times_of(calls: tuple[Callable[[], object], ...], rounds: int, clock: Callable) -> list:
    """Returns the seconds of each call in each round."""
    found = []
    for call in calls:
        call()
    for _ in range(rounds):
        times = []
        for call in calls:
            begin = clock()
            call()
            times.append(clock() - begin)
        found.append(times)
    return found


def main() -> None:
    options = parse()
    print("threads type d_head tokens mask    ours, ms  torch, ms  GFLOP/s  times torch")
    for threads in options.threads:
        flashattn.set_num_threads(threads)
        torch.set_num_threads(threads)
        for name in options.dtype.split(","):
            for d_head in options.d_head:
                for tokens in options.seqlen:
                    for causal in (False, True):
                        problem = (options.heads, tokens, d_head, DTYPES[name], causal)
                        found = times_of(gradients(*problem), options.rounds, CLOCKS[options.clock])
                        ours, theirs = (median(times) for times in zip(*found))
                        ratio = median(b / a for a, b in found)
                        work = 10 * tokens**2 * d_head * options.heads / (2 if causal else 1)
                        mask = "causal" if causal else "full"
                        print(
                            f"{threads:7} {name} {d_head:6} {tokens:6} {mask:6}"
                            f" {ours * 1e3:9.1f} {theirs * 1e3:10.1f} {work / ours / 1e9:8.0f}"
                            f" {ratio:12.2f}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
