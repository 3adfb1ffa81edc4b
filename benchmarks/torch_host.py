"""Measures what the host takes for a call beside torch's own attention, with the package's
extension and without it, by hand:

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/torch_host.py [--device cuda] [--rounds 400]

Problems are so small that hardly anything is left but the call. On a CUDA device a short burst of
calls is timed without waiting for the device, which is waited for between bursts. The ways take
turns, and the best burst counts, since processors do other work meanwhile.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Callable

import flashattn
import torch
from flashattn import torch_ops
from flashattn._torch import extension
from flashattn.compat import fa2, fa3

_BURST = 4


def make_calls(device: str) -> dict[str, Callable[[], Any]]:
    dtype, d_head = (torch.float16, 128) if device == "cuda" else (torch.float32, 8)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, d_head, device=device).to(dtype)

    def int32(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    q, k, v = random(1, 1, 8), random(1, 16, 2), random(1, 16, 2)
    q_heads, k_heads, v_heads = (x.transpose(1, 2) for x in (q, k, v))
    k_cache, v_cache = random(8, 16, 2), random(8, 16, 2)
    k_new, v_new = random(1, 1, 2), random(1, 1, 2)
    table, lengths, after = int32(1, 2).view(1, 2), int32(17), int32(0)
    ends_q, ends_k = int32(0, 1), int32(0, 16)
    cos, sin = torch.ones(2, 32, d_head // 2, device=device, dtype=dtype)
    cache = k_cache, v_cache
    of_fa2 = {"cache_seqlens": lengths, "block_table": table, "causal": True}
    of_fa3 = {"cache_seqlens": lengths, "page_table": table, "causal": True}
    pages = {"page_table": table, "seqused_k": lengths}
    rotary = {"rotary_cos": cos, "rotary_sin": sin}
    ragged = {"cu_seqlens_q": ends_q, "cu_seqlens_k": ends_k, "max_seqlen_q": 1, "max_seqlen_k": 16}
    flat = q[0], k[0], v[0]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return {
        "torch's scaled_dot_product_attention": lambda: sdpa(
            q_heads, k_heads, v_heads, enable_gqa=True
        ),
        "torch_ops.flash_attn_func": lambda: torch_ops.flash_attn_func(q, k, v, causal=True),
        "the same with LSE": lambda: torch_ops.flash_attn_func(q, k, v, return_lse=True),
        "the same with pages": lambda: torch_ops.flash_attn_func(q, *cache, causal=True, **pages),
        "torch_ops.flash_attn_varlen_func": lambda: torch_ops.flash_attn_varlen_func(
            *flat, causal=True, **ragged
        ),
        "torch_ops.flash_kv_append, pages, rotary": lambda: torch_ops.flash_kv_append(
            k_new, v_new, *cache, q=q, q_out=q, seqused_k_out=after, **pages, **rotary
        ),
        "compat fa2.flash_attn_func": lambda: fa2.flash_attn_func(q, k, v, causal=True),
        "compat fa3.flash_attn_func": lambda: fa3.flash_attn_func(q, k, v, causal=True),
        "compat fa3 kvcache": lambda: fa3.flash_attn_with_kvcache(q, *cache, **of_fa3),
        "compat fa3 kvcache, new tokens": lambda: fa3.flash_attn_with_kvcache(
            q, *cache, k_new, v_new, **of_fa3
        ),
        "the same, rotary": lambda: fa3.flash_attn_with_kvcache(
            q, *cache, k_new, v_new, **rotary, **of_fa3
        ),
        "compat fa2 kvcache, new tokens": lambda: fa2.flash_attn_with_kvcache(
            q, *cache, k_new, v_new, **of_fa2
        ),
        **transformers_calls(q_heads, k_heads, v_heads),
    }


def transformers_calls(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> dict[str, Callable[[], Any]]:
    """Returns the attention functions of transformers, where that is installed."""
    try:
        from flashattn.hf._attention import attention
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
    except ImportError:
        return {}
    layer = torch.nn.Module()
    layer.is_causal, layer.num_key_value_groups = True, q.shape[1] // k.shape[1]
    return {
        "transformers, sdpa": lambda: sdpa_attention_forward(layer, q, k, v, None),
        "transformers, flashattn.hf": lambda: attention(layer, q, k, v, None),
    }


def time_of(call: Callable[[], Any], device: str) -> float:
    """Returns the microseconds of a call in one burst."""
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(_BURST):
        call()
    return (time.perf_counter() - begin) / _BURST * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    flashattn.set_num_threads(1)
    calls = make_calls(options.device)
    own = extension.forward, extension.append
    ways = {"ctypes": (None, None), **({"extension": own} if extension.forward else {})}
    best = {(way, name): float("inf") for way in ways for name in calls}
    with torch.no_grad():
        for _ in range(options.rounds):
            for way, functions in ways.items():
                extension.forward, extension.append = functions
                for name, call in calls.items():
                    time_taken = time_of(call, options.device)
                    best[way, name] = min(best[way, name], time_taken)
    torchs = min(best[way, next(iter(calls))] for way in ways)
    print(f"{'microseconds of a call (over torch)':<42}" + "".join(f"{way:>18}" for way in ways))
    for name in calls:
        columns = (f"{best[way, name]:10.1f} ({best[way, name] / torchs:5.2f})" for way in ways)
        print(f"{name:<42}" + "".join(columns))


if __name__ == "__main__":
    main()
