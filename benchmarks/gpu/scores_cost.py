"""Prints what each addition to the scores costs: softcap, sinks, ALiBi, masks.

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/gpu/scores_cost.py [--dtype FP16] [--runs 100] [--case decode]

Each case is timed with nothing, with each addition and with nothing again, in turns, launch by
launch, with 256 MiB written before each one. "noise" is the difference between both times with
nothing, and the figures after it are ratios to their mean: first of the rows that are selected,
then after "80:" of SM80's, if others are selected. The kernel is that of the mask.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from flashattn import Arch, Config, Feature, flash_attn_func, query_support, select_config
from flashattn.cli import bench_cuda, problem

DTYPES = {"FP16": torch.float16, "BF16": torch.bfloat16}
AGAIN = ("alibi", "mask")  # additions that are timed with a row of SM80 too
WIDTH = 11  # of a column
DRAFTS = 64  # of a tree: the last keys, of which each query sees some


@dataclass(frozen=True)
class Case:
    name: str
    batch: int
    seqlen_q: int
    seqlen_k: int
    n_heads: int
    n_heads_kv: int
    d_head: int
    window: tuple[int, int] = (-1, -1)


CASES = (
    Case("prefill", 4, 4096, 4096, 32, 32, 64),
    Case("prefill", 4, 4096, 4096, 16, 16, 128),
    Case("prefill", 4, 4096, 4096, 8, 8, 256),
    Case("gpt-oss", 4, 4096, 4096, 64, 8, 64),
    Case("gpt-oss, window", 4, 4096, 4096, 64, 8, 64, (127, 0)),
    Case("chunk", 4, 128, 8192, 32, 8, 128),
    Case("chunk", 4, 128, 8192, 64, 8, 64),
    Case("chunk", 4, 128, 8192, 16, 4, 256),
    Case("decode", 64, 1, 8192, 32, 8, 128),
    Case("decode, 4 queries", 64, 4, 8192, 32, 8, 128),
    Case("decode", 1, 1, 8192, 32, 8, 128),
    Case("gpt-oss decode", 64, 1, 8192, 64, 8, 64),
)


def additions(case: Case) -> dict[str, dict[str, Any]]:
    heads, queries = case.n_heads, case.seqlen_q
    words = torch.randint(-(2**31), 2**31, (1, 1, queries, DRAFTS // 32), device="cuda")
    return {
        "softcap": {"softcap": 30.0},
        "sinks": {"sinks": torch.randn(heads, device="cuda")},
        "alibi": {"alibi_slopes": torch.rand(heads, device="cuda")},
        "tree": {"mask_bits": words.int(), "mask_keys": DRAFTS},
        "mask": {"attn_mask": torch.randn(1, 1, queries, case.seqlen_k, device="cuda").half()},
    }


def biased_row_of_sm80(case: Case, selected: Config, *tensors: torch.Tensor) -> Config | None:
    """Returns the row that a GPU without the SM90 families would take; None if it is selected."""
    rows = [
        row.config
        for row in problem.forward_kernels([])
        if row.config.arch == Arch.SM80
        and row.config.d_head == case.d_head
        and row.config.features & Feature.BIAS
        and not row.config.features & Feature.PAGED
        and query_support(*tensors, config=row.config)
    ]
    if selected.arch in (Arch.SM80, Arch.SM80_DECODE) or not rows:
        return None
    return max(rows, key=lambda config: config.async_copy)


def row(case: Case, dtype: torch.dtype, runs: int) -> str:
    torch.manual_seed(0)
    shapes = ((case.seqlen_q, case.n_heads), *((case.seqlen_k, case.n_heads_kv),) * 2)
    q, k, v = (
        torch.randn(case.batch, seqlen, heads, case.d_head, dtype=dtype, device="cuda")
        for seqlen, heads in shapes
    )
    options: dict[str, Any] = {"causal": True, "window_size": case.window}
    if case.seqlen_q <= 8:  # as in a cache: the device alone knows the lengths
        options["seqused_k"] = torch.full((case.batch,), case.seqlen_k, device="cuda").int()
    out = torch.empty_like(q)
    added = additions(case)
    config = select_config(q, k, v, **options, **added["mask"]).config
    of_sm80 = biased_row_of_sm80(case, config, q, k, v)
    again = [{**added[name], "config": of_sm80} for name in AGAIN] if of_sm80 else []
    calls = [
        lambda more=more: flash_attn_func(q, k, v, out=out, **options, **more)
        for more in ({}, *added.values(), *again, {})
    ]
    first, *own, second = bench_cuda.cold_median_seconds(calls, runs)
    none = (first + second) / 2
    ratios = "".join(f"{x / none:{WIDTH}.3f}" for x in own)
    name = f"{case.name} {case.batch} x {case.seqlen_q}, {case.n_heads}/{case.n_heads_kv}"
    return (
        f"{name:32} {case.d_head:4} {1e6 * none:9.1f} {abs(first - second) / none:6.1%}"
        f"{ratios:{WIDTH * (len(added) + len(AGAIN))}}  {config}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=DTYPES, default="BF16")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--case", default="", help="cases whose name begins so")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, {args.dtype}")
    names = "".join(
        f"{name:>{WIDTH}}" for name in (*additions(CASES[-1]), *(f"80:{x}" for x in AGAIN))
    )
    print(f"{'':32} {'d':>4} {'us':>9} {'noise':>6}{names}  kernel with a mask")
    for case in CASES:
        if case.name.startswith(args.case):
            print(row(case, DTYPES[args.dtype], args.runs), flush=True)


if __name__ == "__main__":
    main()
