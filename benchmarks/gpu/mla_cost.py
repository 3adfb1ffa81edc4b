"""Prints how fast latent attention is decoded: one K/V head of 576 columns, of which V is the first
512, in bf16, e4m3 or latent tokens of 656 bytes.

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/gpu/mla_cost.py [--type latent] [--runs 30] [--bias tree]
            [--row "SM80_MLA (BF16, ...): ..."]

Each call is timed with 256 MiB written before it. The device knows the lengths, as in a cache. The
bytes are those of K; a product counts two operations for each multiplication of Q K^T and P V.

What may join scores: ALiBi, a tree of drafts (bits of the last 64 keys), or a mask of bf16 numbers
for all keys, which heads share and sequences do not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from flashattn import flash_attn_func
from flashattn.cli import bench_cuda

D_HEAD, D_HEAD_V = 576, 512


@dataclass(frozen=True)
class Case:
    batch: int
    seqlen_k: int
    n_heads: int
    seqlen_q: int = 1

    @property
    def keys(self) -> int:
        return self.batch * self.seqlen_k

    @property
    def operations(self) -> int:
        rows = self.batch * self.seqlen_q * self.n_heads
        return 2 * rows * self.seqlen_k * (D_HEAD + D_HEAD_V)


CASES = (
    Case(1, 1024, 16),
    Case(1, 8192, 16),
    Case(1, 32768, 16),
    Case(16, 8192, 16),
    Case(64, 8192, 16),
    Case(128, 4096, 16),
    Case(64, 8192, 32),
    Case(64, 8192, 64),
    Case(64, 8192, 16, seqlen_q=4),
    Case(64, 1024, 128),
    Case(128, 4096, 128),
    Case(64, 8192, 128),
    Case(128, 8192, 128),
    Case(32, 32768, 128),
    Case(128, 4096, 128, seqlen_q=2),
)
TYPES = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "latent": torch.uint8}
PAGE_SIZES = (0, 64, 1)  # 0: contiguous
BIASES = ("none", "alibi", "tree", "mask")
DRAFTS = 64


def config_of(row: str | None, page_size: int, bias: str) -> str | None:
    """Returns the row with the features of the calls; None: the selected one."""
    features = "+causal+window+softcap+varlen" + ("+paged" if page_size else "")
    return row and row + features + ("" if bias == "none" else "+bias")


def bias_options(case: Case, bias: str) -> dict[str, Any]:
    """Returns what joins scores; bias: of BIASES."""
    if bias == "alibi":
        return {"alibi_slopes": torch.rand(case.n_heads, device="cuda")}
    if bias == "tree":
        shape = (case.batch, 1, case.seqlen_q, DRAFTS // 32)
        words = torch.randint(-(2**31), 2**31, shape, device="cuda")
        return {"mask_bits": words.int(), "mask_keys": DRAFTS}
    if bias == "mask":
        shape = (case.batch, 1, case.seqlen_q, case.seqlen_k)
        return {"attn_mask": torch.randn(shape, device="cuda").bfloat16()}
    return {}


def cache_of(n_pages: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns K [n_pages, size, 1, 576], or latent tokens, whose scales are about 1."""
    if dtype != torch.uint8:
        return torch.randn(n_pages, size, 1, D_HEAD, device="cuda").to(dtype)
    cache = torch.randint(0, 256, (n_pages, size, 1, 656), device="cuda", dtype=torch.uint8)
    cache &= 0xBF  # numbers below 2
    cache[..., 512:528].view(torch.float32).fill_(0.8)
    return cache


def call(
    case: Case, page_size: int, dtype: torch.dtype, args: argparse.Namespace
) -> Callable[[], Any]:
    size = page_size or case.seqlen_k
    n_pages = case.batch * case.seqlen_k // size
    q = torch.randn(case.batch, case.seqlen_q, case.n_heads, D_HEAD, device="cuda").bfloat16()
    k = cache_of(n_pages, size, dtype)
    options: dict[str, Any] = {
        "causal": True,
        "seqused_k": torch.full((case.batch,), case.seqlen_k, device="cuda").int(),
        "out": torch.empty(*q.shape[:-1], D_HEAD_V, dtype=q.dtype, device="cuda"),
        "config": config_of(args.row, page_size, args.bias),
        "batch_invariant": args.batch_invariant,
        **bias_options(case, args.bias),
    }
    if page_size:
        ids = torch.randperm(n_pages, device="cuda").int()
        options["page_table"] = ids.view(case.batch, -1)
    if dtype == torch.uint8:
        return lambda: flash_attn_func(q, k, k, kv_dtype="latent_e4m3", **options)
    return lambda: flash_attn_func(q, k, k[..., :D_HEAD_V], **options)


def measure(case: Case, dtype: torch.dtype, args: argparse.Namespace) -> str:
    calls = [call(case, size, dtype, args) for size in PAGE_SIZES]
    seconds = bench_cuda.cold_median_seconds(calls, args.runs)
    best = min(seconds)
    times = "".join(f"{x * 1e6:10.1f}" for x in seconds)
    shape = f"{case.batch:5} x {case.seqlen_k:<6}{case.n_heads:5} heads{case.seqlen_q:3} queries"
    token_bytes = 656 if dtype == torch.uint8 else D_HEAD * dtype.itemsize
    rates = f"{case.keys * token_bytes / best / 1e12:9.2f}{case.operations / best / 1e12:9.0f}"
    return shape + times + rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30, help="launches of each call")
    parser.add_argument("--type", choices=TYPES, default="bf16", help="of the cache")
    parser.add_argument("--row", help="configuration without features; default: selected")
    parser.add_argument("--bias", choices=BIASES, default="none", help="what joins scores")
    parser.add_argument(
        "--batch-invariant", action="store_true", help="calls with FLASH_FLAG_BATCH_INVARIANT"
    )
    args = parser.parse_args()
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, microseconds in a cache without pages, of 64 and of 1")
    print(f"{'':31}{'none':>10}{'64':>10}{'1':>10}{'TB/s':>9}{'TFLOP/s':>9}")
    for case in CASES:
        print(measure(case, TYPES[args.type], args), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
