"""Prints how long short ragged batches and narrow windows take, beside FlashAttention-3 if
flash_attn_interface can be imported.

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/gpu/graphs_cost.py [--runs 9]

Both are captured in CUDA graphs of ten calls, in which the host's time does not count. Graphs are
launched in turns, and the figures are medians of microseconds per call, with FlashAttention-3's in
brackets: causal and full for ragged batches; for windows, as gpt-oss has them, causal with sinks,
which FlashAttention-3 does without.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from flashattn import flash_attn_func, flash_attn_varlen_func

CALLS = 10  # in a graph
WINDOW = (127, 0)
SEED = 0
Call = Callable[[], Any]


@dataclass(frozen=True)
class Heads:
    queries: int
    keys: int
    d_head: int

    def __str__(self) -> str:
        return f"{self.queries}/{self.keys} heads, d_head {self.d_head}"


LENGTHS = ((300, 256), (8, 128), (64, 512), (300, 64))  # sequences, and the longest of them
HEADS = (Heads(16, 16, 128), Heads(32, 8, 128), Heads(16, 16, 64), Heads(32, 8, 64))
WINDOWED = ((4, 4096), (1, 8192), (8, 1024), (1, 2048))  # batch, tokens
WINDOWED_HEADS = Heads(64, 8, 64)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def peer() -> Any:
    """Returns FlashAttention-3's module, or None."""
    try:
        return importlib.import_module("flash_attn_interface")
    except ImportError:
        return None


def captured(call: Call) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    return graph


def microseconds(calls: list[Call], runs: int) -> list[float]:
    graphs = [captured(call) for call in calls]
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(runs):
        for graph, of_graph in zip(graphs, times):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            of_graph.append(begin.elapsed_time(end) * 1e3 / CALLS)
    return [median(of_graph) for of_graph in times]


def ragged_calls(ends: torch.Tensor, longest: int, heads: Heads, causal: bool) -> list[Call]:
    """ends: cu_seqlens, on the device."""
    tokens = int(ends[-1])
    q = random(tokens, heads.queries, heads.d_head)
    k, v = (random(tokens, heads.keys, heads.d_head) for _ in range(2))
    out, fa3 = torch.empty_like(q), peer()
    lengths = {
        "cu_seqlens_q": ends,
        "cu_seqlens_k": ends,
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
    }
    calls: list[Call] = [lambda: flash_attn_varlen_func(q, k, v, causal=causal, out=out, **lengths)]
    if fa3:
        calls.append(lambda: fa3.flash_attn_varlen_func(q, k, v, causal=causal, **lengths))
    return calls


def windowed_calls(batch: int, tokens: int, heads: Heads) -> list[Call]:
    q = random(batch, tokens, heads.queries, heads.d_head)
    k, v = (random(batch, tokens, heads.keys, heads.d_head) for _ in range(2))
    sinks, out, fa3 = torch.randn(heads.queries, device="cuda"), torch.empty_like(q), peer()
    mask = {"causal": True, "window_size": WINDOW}
    calls: list[Call] = [lambda: flash_attn_func(q, k, v, sinks=sinks, out=out, **mask)]
    if fa3:
        calls.append(lambda: fa3.flash_attn_func(q, k, v, **mask))
    return calls


def figures(seconds: list[float]) -> str:
    own, *others = (f"{x:.1f}" for x in seconds)
    return f"{own} ({others[0]})" if others else own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=9, help="launches of each graph")
    runs = parser.parse_args().runs
    torch.manual_seed(SEED)
    drawn = torch.Generator().manual_seed(SEED)
    print(torch.cuda.get_device_name())
    for count, longest in LENGTHS:
        lengths = torch.randint(1, longest + 1, (count,), generator=drawn)
        ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int().cuda()
        for heads in HEADS:
            row = [
                figures(microseconds(ragged_calls(ends, longest, heads, causal), runs))
                for causal in (True, False)
            ]
            print(f"{count} of 1 to {longest}, {heads}: {', '.join(row)}", flush=True)
    for batch, tokens in WINDOWED:
        row = figures(microseconds(windowed_calls(batch, tokens, WINDOWED_HEADS), runs))
        print(f"window of 128, {batch} x {tokens}, {WINDOWED_HEADS}: {row}", flush=True)


if __name__ == "__main__":
    main()
