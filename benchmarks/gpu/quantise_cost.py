"""Times flash_quantise() on a CUDA device, beside torch's copy of the same tensor.

    python benchmarks/gpu/quantise_cost.py

A row is a tensor of bf16, [batch, tokens, heads, d_head]; times are microseconds of a call, the
least of several replays of a CUDA graph that has many.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import flashattn
import torch

SHAPES = (
    (1, 16384, 16, 128),
    (1, 16384, 16, 64),
    (4, 4096, 8, 128),
    (1, 16384, 2, 128),
    (64, 1, 32, 128),
)
KINDS = {
    "heads": {},
    "heads, turned": {"hadamard": True},
    "heads, less mean": {"minus_mean": True},
    "heads, less mean, turned": {"minus_mean": True, "hadamard": True},
    "tokens": {"tokens": True},
    "tokens, turned": {"tokens": True, "hadamard": True},
}


def time_of(call: Callable[[], object], calls: int, replays: int) -> float:
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for _ in range(calls)]
    times = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(kept))
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20, help="of a graph")
    parser.add_argument("--replays", type=int, default=7)
    given = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}\n")
    print("| batch x tokens, heads, d_head |", " | ".join(KINDS), "| copy |")
    print("|---" * (len(KINDS) + 2) + "|")
    for batch, tokens, heads, d_head in SHAPES:
        x = torch.randn(batch, tokens, heads, d_head, device="cuda", dtype=torch.bfloat16)
        calls = [lambda x=x, of=of: flashattn.quantise(x, **of) for of in KINDS.values()]
        times = [time_of(call, given.calls, given.replays) for call in (*calls, x.clone)]
        print(
            f"| {batch} x {tokens}, {heads}, {d_head} |",
            " | ".join(f"{t:.1f}" if t < 100 else f"{t:.0f}" for t in times),
            "|",
            flush=True,
        )


if __name__ == "__main__":
    main()
