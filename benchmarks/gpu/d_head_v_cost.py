"""Prints the speed of a d_head_v of its own beside that of one head dimension: the rows of 192/128
beside those of 192 and of 128, which compute more and fewer operations.

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/gpu/d_head_v_cost.py [--dtype FP16] [--runs 25] [--seqlen 4096,16384]

Each pair of head dimensions has the rows that fit it alone, which a build with
FLASH_KERNELS="ship tune_sm90" has several of, and the row of 192 also computes 192/128, with zeros.
All rows of a length take turns, launch by launch. TFLOP/s count 2 (d_head + d_head_v) operations
for every head, query and key that is seen, and the last column is their ratio to the row of 192
that selection takes at 192/192.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from flashattn import Arch, DType, Feature, flash_attn_func, query_support, select_config
from flashattn.cli import bench_cuda, problem
from flashattn.config import Config

DTYPES = {"FP16": torch.float16, "BF16": torch.bfloat16}
TOKENS, HEADS = 16384, 16
PAIRS = ((192, 192), (128, 128), (192, 128))
MASKS = {"full": Feature(0), "causal": Feature.CAUSAL}


def _inputs(pair: tuple[int, int], seqlen: int, dtype: torch.dtype) -> list[torch.Tensor]:
    d_head, d_head_v = pair
    shape = (max(TOKENS // seqlen, 1), seqlen, HEADS)
    return [
        torch.randn(*shape, columns, dtype=dtype, device="cuda")
        for columns in (d_head, d_head, d_head_v)
    ]


def _configs(pair: tuple[int, int], dtype: str, features: Feature) -> list[Config]:
    """Returns the rows with just these features that the pair is timed with."""
    heads = {(pair[0], 0 if pair[0] == pair[1] else pair[1]), (pair[0], 0)}
    return [
        kernel.config
        for kernel in problem.forward_kernels([])
        if kernel.config.arch == Arch.SM90
        and kernel.config.dtype == DType[dtype]
        and kernel.config.features == features
        and (kernel.config.d_head, kernel.config.d_head_v) in heads
    ]


@dataclass(frozen=True)
class Entry:
    pair: tuple[int, int]
    config: Config
    is_chosen: bool  # by selection
    operations: float
    call: Callable[[], object]


def _entries(pair: tuple[int, int], seqlen: int, mask: str, dtype: str) -> Iterator[Entry]:
    q, k, v = _inputs(pair, seqlen, DTYPES[dtype])
    options = {"causal": mask == "causal"}
    chosen = select_config(q, k, v, **options).config
    seen = seqlen**2 / (2 if options["causal"] else 1)
    operations = 2 * sum(pair) * q.shape[0] * HEADS * seen
    for config in _configs(pair, dtype, MASKS[mask]):
        if query_support(q, k, v, config=config, **options):
            out = torch.empty_like(v)
            call = partial(flash_attn_func, q, k, v, out=out, config=config, **options)
            yield Entry(pair, config, config == chosen, operations, call)


def _print_rows(seqlen: int, mask: str, args: argparse.Namespace) -> None:
    entries = [e for pair in PAIRS for e in _entries(pair, seqlen, mask, args.dtype)]
    seconds = bench_cuda.median_seconds([e.call for e in entries], args.runs)
    rates = [e.operations / s / 1e12 for e, s in zip(entries, seconds)]
    reference = next(r for r, e in zip(rates, entries) if e.pair == (192, 192) and e.is_chosen)
    for e, s, rate in zip(entries, seconds, rates):
        print(
            f"{seqlen:6} {mask:6} {e.pair[0]}/{e.pair[1]} {1e6 * s:9.1f} {rate:7.1f} "
            f"{rate / reference:6.3f} {'*' if e.is_chosen else ' '} {e.config}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=DTYPES, default="BF16")
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--seqlen", default="4096,16384")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, {args.dtype}, {HEADS} heads; *: what selection takes")
    print(f"{'keys':>6} {'mask':6} {'d_head':7} {'us':>9} TFLOP/s  ratio   kernel")
    for seqlen in map(int, args.seqlen.split(",")):
        for mask in MASKS:
            _print_rows(seqlen, mask, args)


if __name__ == "__main__":
    main()
