"""Prints how long attention with dropout takes on a CUDA device, beside torch's FlashAttention-2.

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/gpu/dropout_cost.py [--runs 5]

Calls are causal, in bf16, of 4 sequences of 4096 tokens with 2048 columns of heads, and drop
weights with a probability of 0.1. A gradient counts 2.5 times the operations of the forward pass.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from flashattn import flash_attn_backward, flash_attn_func
from torch.nn.attention import SDPBackend, sdpa_kernel

BATCH, SEQLEN, COLUMNS = 4, 4096, 2048
P = 0.1


def milliseconds(call: Callable[[], object], runs: int) -> float:
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(runs):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / runs


def own(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, runs: int) -> tuple[float, float]:
    """Returns the milliseconds of a forward pass and of its gradients."""
    state = torch.tensor([1, 2], device="cuda")
    options = {"causal": True, "dropout_p": P, "rng_state": state}

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        return flash_attn_func(q, k, v, return_lse=True, **options)

    o, lse = forward()
    backward = milliseconds(lambda: flash_attn_backward(o, q, k, v, o, lse, **options), runs)
    return milliseconds(forward, runs), backward


def peers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, runs: int) -> tuple[float, float]:
    """Returns the same of torch's kernels."""
    x = [y.transpose(1, 2).detach().requires_grad_() for y in (q, k, v)]

    def forward() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(*x, is_causal=True, dropout_p=P)

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        o = forward()
        d_o = torch.randn_like(o)
        backward = milliseconds(lambda: torch.autograd.grad(o, x, d_o, retain_graph=True), runs)
        return milliseconds(forward, runs), backward


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="launches of each call (5)")
    runs = parser.parse_args().runs
    print(torch.cuda.get_device_name())
    for d_head in (64, 128, 256):
        n_heads = COLUMNS // d_head
        shape = BATCH, SEQLEN, n_heads, d_head
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        operations = 2 * BATCH * n_heads * SEQLEN**2 * d_head
        for name, times in (("own", own(q, k, v, runs)), ("torch", peers(q, k, v, runs))):
            forward, gradients = (operations * x / t / 1e9 for x, t in zip((1, 2.5), times))
            print(f"d{d_head} {name:5} {forward:.0f} TFLOP/s, gradients {gradients:.0f}")


if __name__ == "__main__":
    main()
