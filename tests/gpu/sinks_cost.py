"""Prints what sinks cost on shapes of gpt-oss: 64 query heads over 8 K/V heads of 64 columns, with
its window of 128 keys and without.

    python tests/gpu/sinks_cost.py [--dtype FP16] [--runs 300]

Each case is timed without sinks, with them and without them again, in turns, launch by launch, with
256 MiB written before each one. The difference between both times without sinks is the noise.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from flashattn import flash_attn_func, select_config
from flashattn.cli import bench_cuda

N_HEADS, N_HEADS_KV, D_HEAD = 64, 8, 64
WINDOWS = {"causal": (-1, -1), "window 128": (127, 0)}
DTYPES = {"FP16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    name: str
    batch: int
    seqlen_q: int
    seqlen_k: int


CASES = (
    Case("prefill", 1, 4096, 4096),
    Case("prefill", 4, 4096, 4096),
    Case("decode", 64, 1, 8192),
    Case("decode", 1, 1, 8192),
)


def inputs(case: Case, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = ((case.seqlen_q, N_HEADS), (case.seqlen_k, N_HEADS_KV), (case.seqlen_k, N_HEADS_KV))
    return [
        torch.randn(case.batch, seqlen, heads, D_HEAD, dtype=dtype, device="cuda")
        for seqlen, heads in shapes
    ]


def row(case: Case, window: str, dtype: torch.dtype, runs: int) -> str:
    q, k, v = inputs(case, dtype)
    sinks = torch.randn(N_HEADS, device="cuda")
    options = {"causal": True, "window_size": WINDOWS[window], "out": torch.empty_like(q)}
    if case.seqlen_q == 1:  # as in a cache: the device alone knows the lengths
        options["seqused_k"] = torch.full((case.batch,), case.seqlen_k, device="cuda").int()

    def without() -> None:
        flash_attn_func(q, k, v, **options)

    def with_sinks() -> None:
        flash_attn_func(q, k, v, sinks=sinks, **options)

    times = bench_cuda.cold_median_seconds([without, with_sinks, without], runs)
    first, own, second = (1e6 * x for x in times)
    none = (first + second) / 2
    del options["out"]
    config = select_config(q, k, v, sinks=sinks, **options).config
    name = f"{case.name} {case.batch} x {case.seqlen_q}, {case.seqlen_k} keys"
    return (
        f"{name:28} {window:10} {none:10.2f} {own:10.2f} {own / none - 1:+8.2%} "
        f"{abs(first - second) / none:7.2%}  {config}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=DTYPES, default="BF16")
    parser.add_argument("--runs", type=int, default=300)
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, {args.dtype}, {N_HEADS}/{N_HEADS_KV} heads of {D_HEAD}")
    print(f"{'':39} {'without us':>10} {'with us':>10} {'cost':>8} {'noise':>7}  kernel")
    for case in CASES:
        for window in WINDOWS:
            print(row(case, window, DTYPES[args.dtype], args.runs), flush=True)


if __name__ == "__main__":
    main()
