"""Times flash_attn_fp8() of bf16 tensors beside flash_attn_func() of them, and measures errors.

    python benchmarks/gpu/fp8_end_to_end.py [--heads N] [--d-head D] [--lengths N...]

Rows are lengths of one sequence, without a mask; times are medians in turns, in milliseconds.
Errors are those of O, relative to exact attention in float64, of the last 128 queries of four
heads: of flash_attn_fp8(), of e4m3 of plain tensors, and of a model of SageAttention2's rule (Q and
K of int8 with a scale for each 64 tokens, K less its mean, P and V of e4m3, V with a scale for each
column), whose sums are exact here. Data are normal, or have three columns of K with a mean of 8 and
two of Q that are 4 times as large.
"""

from __future__ import annotations

import argparse
import math

import flashattn
import torch
from backward_cost import median_times

LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
SAMPLED_QUERIES, SAMPLED_HEADS = 128, 4
E4M3_MAX = 448.0


def tensors(length: int, heads: int, d_head: int, outliers: bool) -> list[torch.Tensor]:
    torch.manual_seed(length)
    shape = (1, length, heads, d_head)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    if outliers:
        k[..., :3] += 8
        q[..., 3:5] *= 4
    return [q, k, v]


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rounds_p: bool = False
) -> torch.Tensor:
    """Returns O of [head, token, column] of float64."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    p = (scores - scores.amax(-1, keepdim=True)).exp()
    total = p.sum(-1, keepdim=True)
    if rounds_p:
        p = (p * 256).to(torch.float8_e4m3fn).double() / 256
    return p @ v / total


def int8(x: torch.Tensor) -> torch.Tensor:
    groups = x.unflatten(1, (-1, 64))
    scale = groups.abs().amax((-1, -2), keepdim=True) / 127
    return ((groups / scale).round() * scale).flatten(1, 2)


def e4m3(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x / scale).to(torch.float8_e4m3fn).double() * scale


def by_rule_of_sage(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k = k - k.mean(1, keepdim=True)
    v = e4m3(v, v.abs().amax(1, keepdim=True) / E4M3_MAX)
    return attention(int8(q), int8(k), v, rounds_p=True)


def relative_error(o: torch.Tensor, exact: torch.Tensor) -> float:
    return float((o - exact).norm() / exact.norm())


def errors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[float]:
    plain = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
    results = [
        flashattn.flash_attn_fp8(q, k, v),
        flashattn.flash_attn_func(*plain, out_dtype="bfloat16"),
    ]
    q, k, v, *results = (
        x[0, :, :SAMPLED_HEADS].transpose(0, 1).double() for x in (q, k, v, *results)
    )
    q = q[:, -SAMPLED_QUERIES:]
    exact = attention(q, k, v)
    results = [x[:, -SAMPLED_QUERIES:] for x in results] + [by_rule_of_sage(q, k, v)]
    return [relative_error(o, exact) for o in results]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--d-head", type=int, default=128)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    given = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, {given.heads} heads of d_head {given.d_head}\n")
    print("| tokens | bf16, ms | quantised, ms | of that attention | times bf16 ", end="")
    print("| error | plain e4m3 | rule of Sage | with outliers | plain | Sage |", flush=True)
    print("|---" * 11 + "|")
    for length in given.lengths:
        q, k, v = tensors(length, given.heads, given.d_head, outliers=False)
        codes = [flashattn.quantise(q, tokens=True), *map(flashattn.quantise, (k, v))]
        names = ("q_descale", "k_descale", "v_descale")
        scales = {name: x.descale for name, x in zip(names, codes)}
        times = median_times(
            {
                "bf16": lambda q=q, k=k, v=v: flashattn.flash_attn_func(q, k, v),
                "fp8": lambda q=q, k=k, v=v: flashattn.flash_attn_fp8(q, k, v),
                "codes": lambda codes=codes, scales=scales: flashattn.flash_attn_func(
                    *(x.codes for x in codes), **scales, out_dtype="bfloat16"
                ),
            }
        )
        found = errors(q, k, v) + errors(*tensors(length, given.heads, given.d_head, outliers=True))
        columns = [f"{times[name]:.3f}" for name in ("bf16", "fp8", "codes")]
        columns += [f"{times['bf16'] / times['fp8']:.2f}", *(f"{x:.2%}" for x in found)]
        print("|", length, "|", " | ".join(columns), "|", flush=True)


if __name__ == "__main__":
    main()
