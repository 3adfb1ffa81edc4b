"""Prints what masks cost in prefill rows, which leave out blocks of keys that they hide.

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/gpu/hidden_blocks_cost.py [--family SM80] [--dtype FP16] [--runs 25]

Calls are causal, and all of one row, which has bias. Each mask is timed in turns with a call
without one, launch by launch, with 256 MiB written before each one. "noise" is the difference
between two times without a mask, and the figures after it are ratios to their mean. Random bits and
numbers have an effect on every block. The others hide some blocks and show the rest as it is:
documents do not see each other, a prefix is seen by all queries (not causal), a tree is the last
keys alone. Each is there as bits and as numbers of fp16.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from flashattn import Arch, Config, DType, Feature, flash_attn_func
from flashattn.cli import bench_cuda, problem

DTYPES = {"FP16": torch.float16, "BF16": torch.bfloat16}
DOCUMENT = 1024  # keys of a document
DRAFTS = 64  # of a tree


@dataclass(frozen=True)
class Case:
    batch: int
    seqlen: int
    n_heads: int
    d_head: int


CASES = (
    Case(4, 4096, 32, 64),
    Case(4, 4096, 16, 128),
    Case(4, 4096, 8, 256),
    Case(1, 16384, 16, 128),
)


def random_bits(queries: int, keys: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, (1, 1, queries, keys // 32), device="cuda").int()


def numbers(shown: torch.Tensor) -> torch.Tensor:
    """Returns 0 where a key is shown, and -infinity elsewhere."""
    zeros = torch.zeros(shown.shape, dtype=torch.float16, device="cuda")
    return zeros.masked_fill_(~shown, float("-inf"))


def packed(shown: torch.Tensor) -> torch.Tensor:
    place = torch.arange(8, device="cuda", dtype=torch.uint8)
    bits = (shown.unflatten(-1, (-1, 8)).byte() << place).sum(-1, dtype=torch.uint8)
    return bits.view(torch.int32)


def masks(seqlen: int) -> dict[str, dict[str, Any]]:
    key = torch.arange(seqlen, device="cuda")
    document = (key[:, None] // DOCUMENT == key // DOCUMENT)[None, None]
    prefix = ((key < seqlen // 4) | (key <= key[:, None]))[None, None]
    any_order = {"causal": False}
    return {
        "bits": {"mask_bits": random_bits(seqlen, seqlen)},
        "numbers": {"attn_mask": torch.randn(1, 1, seqlen, seqlen, device="cuda").half()},
        "tree": {"mask_bits": random_bits(seqlen, DRAFTS), "mask_keys": DRAFTS},
        "zeros": {"attn_mask": numbers(torch.ones_like(document))},
        "docbits": {"mask_bits": packed(document)},
        "doc": {"attn_mask": numbers(document)},
        "prefbits": {"mask_bits": packed(prefix), **any_order},
        "prefix": {"attn_mask": numbers(prefix), **any_order},
    }


def biased_row(family: Arch, dtype: str, d_head: int) -> Config:
    """Returns the family's row for contiguous, aligned keys."""
    return next(
        row.config
        for row in problem.forward_kernels([])
        if row.config.arch == family
        and row.config.dtype == DType[dtype]
        and row.config.d_head == d_head
        and (row.config.async_copy or family != Arch.SM80)
        and row.config.features & Feature.BIAS
        and not row.config.fixed_reference
        and not row.config.features & Feature.PAGED
    )


def line(case: Case, family: Arch, dtype: str, runs: int) -> str:
    torch.manual_seed(0)
    shape = (case.batch, case.seqlen, case.n_heads, case.d_head)
    q, k, v = (torch.randn(shape, dtype=DTYPES[dtype], device="cuda") for _ in range(3))
    options = {"causal": True, "out": torch.empty_like(q)}
    options["config"] = biased_row(family, dtype, case.d_head)
    calls = [
        lambda more=more: flash_attn_func(q, k, v, **{**options, **more})
        for more in ({}, *masks(case.seqlen).values(), {})
    ]
    first, *own, second = bench_cuda.cold_median_seconds(calls, runs)
    none = (first + second) / 2
    ratios = "".join(f"{x / none:9.3f}" for x in own)
    name = f"{case.batch} x {case.seqlen}, {case.n_heads}"
    return f"{name:16} {case.d_head:4} {1e6 * none:9.1f} {abs(first - second) / none:6.1%}{ratios}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=("SM80", "SM90"), default="SM90")
    parser.add_argument("--dtype", choices=DTYPES, default="BF16")
    parser.add_argument("--runs", type=int, default=25)
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, {args.family}, {args.dtype}")
    names = "".join(f"{name:>9}" for name in masks(256))
    print(f"{'':16} {'d':>4} {'us':>9} {'noise':>6}{names}")
    for case in CASES:
        print(line(case, Arch[args.family], args.dtype, args.runs), flush=True)


if __name__ == "__main__":
    main()
