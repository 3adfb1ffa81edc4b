"""Measures flash_kv_append on a CUDA device, by hand:

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/gpu/append_cost.py

The first table has the time of a call, and the rate at which it reads and writes, beside torch's
copy_ of as many bytes. The second has a step of decoding of 64 sequences of 8192 keys, append and
rotary and attention, by this library and by FlashAttention-3's flash_attn_with_kvcache, where its
module flash_attn_interface is installed.

Times are medians. "graph": a CUDA graph of many calls, each on tensors of its own that no cache of
the device still holds, divided by their number. "eager": calls that the host makes one by one, as
often as it can.
"""

from __future__ import annotations

import importlib
import math
import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable

import flashattn
import torch
from flashattn import torch_ops

HEADS, HEADS_KV, D_HEAD, PAGE = 32, 8, 128, 64
COLD_BYTES = 256 << 20  # of tensors that a graph goes through: more than the device caches
REPEATS = 30

Call = Callable[[], Any]
append = getattr(torch_ops, "flash_kv_append", flashattn.flash_kv_append)


# ---- Times ----


def graph_time(calls: list[Call]) -> float:
    """Returns the median microseconds of a call in a graph of all of them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times) / len(calls)


def eager_time(call: Call, n: int = 50) -> float:
    """Returns the median microseconds of a call among n that follow each other."""
    times = []
    call()
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(n):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e6 / n)
    return statistics.median(times)


# ---- Appending ----


@dataclass
class Append:
    """New tokens of K, V and Q of bf16, at the ends of sequences in pages."""

    batch: int
    seqlen: int
    used: int  # keys of each sequence before
    cache: torch.dtype
    has_rotary: bool = True

    def __post_init__(self) -> None:
        n_ids = -(-(self.used + self.seqlen) // PAGE)
        new = (self.batch, self.seqlen)
        self.k_new, self.v_new = (self._random(*new, HEADS_KV, D_HEAD) for _ in "kv")
        self.q, self.q_out = (self._random(*new, HEADS, D_HEAD) for _ in "io")
        shape = (self.batch * n_ids, PAGE, HEADS_KV, D_HEAD)
        self.k, self.v = (torch.zeros(shape, device="cuda", dtype=self.cache) for _ in "kv")
        ids = torch.randperm(self.batch * n_ids, device="cuda").to(torch.int32)
        self.table = ids.view(self.batch, n_ids)
        self.lengths = torch.full((self.batch,), self.used, device="cuda", dtype=torch.int32)
        self.after = self.lengths + self.seqlen
        self.cos, self.sin = tables(self.used + self.seqlen)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    @property
    def n_bytes(self) -> int:
        """Returns the bytes that a call reads and writes, tables of angles aside."""
        kv, q = 2 * self.k_new.numel(), self.q.numel() if self.has_rotary else 0
        return kv * (2 + self.k.element_size()) + q * 4

    def __call__(self) -> None:
        options: dict[str, Any] = {}
        if self.has_rotary:
            options.update(q=self.q, q_out=self.q_out, rotary_cos=self.cos, rotary_sin=self.sin)
        append(
            self.k_new, self.v_new, self.k, self.v, seqused_k=self.lengths,
            seqused_k_out=self.after, page_table=self.table, **options,
        )  # fmt: skip


def tables(n_positions: int) -> list[torch.Tensor]:
    """Returns cosines and sines of Llama's angles, of bf16."""
    frequencies = 500000.0 ** -(torch.arange(0, D_HEAD, 2, device="cuda") / D_HEAD)
    angles = torch.arange(n_positions, device="cuda")[:, None] * frequencies
    return [angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)]


def copies_of(n_bytes: int, n: int) -> list[Call]:
    """Returns calls of copy_ that read and write n_bytes together."""

    def copy() -> Call:
        source = torch.zeros(n_bytes // 2, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    return [copy() for _ in range(n)]


def append_rows() -> list[list[str]]:
    rows = []
    for batch, seqlen in ((64, 1), (1, 4096), (1, 32768)):
        for cache in (torch.bfloat16, torch.float8_e4m3fn):
            for has_rotary in (True, False):
                first = Append(batch, seqlen, 60, cache, has_rotary)
                n = max(2, math.ceil(COLD_BYTES / first.n_bytes))
                more = (Append(batch, seqlen, 60, cache, has_rotary) for _ in range(n - 1))
                calls = [first, *more]
                ours = graph_time(calls)
                copy = graph_time(copies_of(first.n_bytes, n))
                rows.append([
                    f"{batch} x {seqlen}", str(cache).removeprefix("torch."),
                    "K and Q" if has_rotary else "none", f"{ours:.2f}", f"{eager_time(first):.2f}",
                    f"{first.n_bytes / ours / 1e3:.0f}", f"{copy:.2f}",
                    f"{first.n_bytes / copy / 1e3:.0f}",
                ])  # fmt: skip
                del first, calls
    return rows


# ---- A step of decoding ----


class Step:
    """A token of each of 64 sequences of 8192 keys: append, rotary, attention."""

    def __init__(self) -> None:
        self.append = Append(64, 1, 8191, torch.bfloat16)

    def ours(self) -> None:
        a = self.append
        a()
        torch_ops.flash_attn_func(
            a.q_out, a.k, a.v, causal=True, seqused_k=a.after, page_table=a.table
        )

    def attention(self) -> None:
        a = self.append
        torch_ops.flash_attn_func(
            a.q_out, a.k, a.v, causal=True, seqused_k=a.after, page_table=a.table
        )

    def fa3(self) -> Call | None:
        try:
            function = importlib.import_module("flash_attn_interface").flash_attn_with_kvcache
        except ImportError:
            return None
        a = self.append
        return lambda: function(
            a.q, a.k, a.v, k=a.k_new, v=a.v_new, rotary_cos=a.cos, rotary_sin=a.sin,
            cache_seqlens=a.lengths, page_table=a.table, causal=True, rotary_interleaved=False,
        )  # fmt: skip


def step_rows() -> list[list[str]]:
    step = Step()
    calls: dict[str, Call | None] = {
        "append": step.append,
        "attention": step.attention,
        "append and attention": step.ours,
        "FlashAttention-3": step.fa3(),
    }
    rows = []
    for name, call in calls.items():
        if call is None:
            rows.append([name, "not installed", ""])
            continue
        try:
            rows.append([name, f"{graph_time([call] * 4):.2f}", f"{eager_time(call):.2f}"])
        except (RuntimeError, TypeError) as error:
            rows.append([name, str(error).splitlines()[0], ""])
    return rows


# ---- Tables ----


def show(title: str, header: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    print(f"\n{title}")
    for row in [header, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def main() -> None:
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, {HEADS}/{HEADS_KV} heads of {D_HEAD}, pages of {PAGE}")
    print(f"append by {append.__module__}")
    show(
        "flash_kv_append of bf16, microseconds of a call",
        ["tokens", "cache", "rotary", "graph", "eager", "GB/s", "copy_", "copy_ GB/s"],
        append_rows(),
    )
    show("64 sequences of 8192 keys, microseconds of a step", ["", "graph", "eager"], step_rows())


if __name__ == "__main__":
    main()
