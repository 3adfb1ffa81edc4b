"""Measures what the host takes for a call of flashattn.torch_ops on the CPU, or of flashattn.compat
on top of it, by hand:

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/torch_calls.py

Each problem is so small that hardly anything is left but the call itself. A line shows the whole
call, the calls of the C library in it (with ctypes around them), and the difference: the time that
Python and torch take, new tensors included. A time is the best of many short runs, since processors
do other work meanwhile. The last column is the same call of the package flashattn.
"""

from __future__ import annotations

import time
from typing import Any, Callable

import flashattn
import torch
from flashattn import torch_ops
from flashattn._torch import append, forward
from flashattn.compat import fa2

_RUNS, _CALLS = 1500, 30

ops = torch.ops.flashattn


def best_time(call: Callable[[], Any]) -> float:
    """Returns microseconds."""
    best = float("inf")
    for _ in range(_RUNS):
        begin = time.perf_counter()
        for _ in range(_CALLS):
            call()
        best = min(best, time.perf_counter() - begin)
    return best / _CALLS * 1e6


def time_in_the_library(call: Callable[[], Any]) -> float | None:
    """Returns the microseconds of the same C calls on the frame that the call has left behind. Its
    result has to be there still. None for a function that appends first, since tensors between its
    two calls are gone."""
    append._frames.clear()
    forward._frames.clear()
    kept = call()
    if append._frames and forward._frames:
        return None
    if append._frames:
        frame = append._frames[0]
        best = best_time(lambda: frame.function(frame.args, None))
    else:
        best = best_time(forward._frames[0].run_on_cpu)
    del kept
    return best


def problems() -> dict[str, tuple[Callable[[], Any], Callable[[], Any] | None]]:
    """Returns the call, and that of the package flashattn, by their names."""
    q, k, v = torch.randn(1, 1, 1, 8), torch.randn(1, 3, 1, 8), torch.randn(1, 3, 1, 8)
    ends_q, ends_k = (torch.tensor([0, n], dtype=torch.int32) for n in (1, 3))
    pages = {
        "page_table": torch.tensor([[1, 2]], dtype=torch.int32),
        "seqused_k": torch.tensor([17], dtype=torch.int32),
    }
    pool = torch.randn(8, 16, 1, 8)
    ragged = {"cu_seqlens_q": ends_q, "cu_seqlens_k": ends_k, "max_seqlen_q": 1, "max_seqlen_k": 3}
    out = torch.empty_like(q)

    new = {"rotary_cos": torch.ones(32, 4), "rotary_sin": torch.ones(32, 4)}
    appended = {**pages, **new, "seqused_k_out": torch.empty(1, dtype=torch.int32), "q": q}

    def of(package: Any, name: str, *arrays: torch.Tensor, **options: Any) -> Callable[[], Any]:
        function = getattr(package, name)
        if "q" not in options:
            options["causal"] = True
        return lambda: function(*arrays, **options)

    k_new, v_new = (torch.randn(1, 1, 1, 8) for _ in range(2))
    v_pool, q_out = torch.randn(8, 16, 1, 8), torch.empty_like(q)
    tokens = k_new, v_new, pool, v_pool
    both = {
        "flash_attn_func": ("flash_attn_func", (q, k, v), {}),
        "flash_attn_func, out": ("flash_attn_func", (q, k, v), {"out": out}),
        "flash_attn_func, LSE": ("flash_attn_func", (q, k, v), {"return_lse": True}),
        "flash_attn_func, pages": ("flash_attn_func", (q, pool, pool), pages),
        "flash_attn_varlen_func": ("flash_attn_varlen_func", (q[0], k[0], v[0]), ragged),
        "flash_kv_append": ("flash_kv_append", tokens, {**appended, "q_out": q_out}),
        "flash_kv_append, new q_out": ("flash_kv_append", tokens, appended),
    }
    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any] | None]] = {
        name: (of(torch_ops, f, *a, **o), of(flashattn, f, *a, **o))
        for name, (f, a, o) in both.items()
    }
    calls["torch.ops.flashattn.fwd"] = (of(ops, "fwd", q, k, v), None)
    calls["torch.ops.flashattn.fwd.lse"] = (of(ops.fwd, "lse", q, k, v), None)
    calls["torch.ops.flashattn.decode"] = (
        lambda: ops.decode(q, pool, pool, pages["seqused_k"], pages["page_table"], causal=True),
        None,
    )
    calls["torch.ops.flashattn.kv_append"] = (
        lambda: ops.kv_append(*tokens, q_out=q_out, **appended),
        None,
    )
    calls["compat.fa2.flash_attn_func"] = (of(fa2, "flash_attn_func", q, k, v), None)
    where = {"cache_seqlens": pages["seqused_k"], "block_table": pages["page_table"]}
    for name, options in (
        ("", {}),
        (", k, v", {"k": k_new, "v": v_new}),
        (", rotary", {"k": k_new, "v": v_new, **new}),
    ):
        call = of(fa2, "flash_attn_with_kvcache", q, pool, v_pool, **where, **options)
        calls[f"compat.fa2.flash_attn_with_kvcache{name}"] = call, None
    return calls


def main() -> None:
    torch.set_num_threads(1)
    flashattn.set_num_threads(1)
    print(f"{'microseconds of a call':<43}{'whole':>8}{'in C':>8}{'Python':>8}{'flashattn':>11}")
    for name, (call, other) in problems().items():
        whole, inside = best_time(call), time_in_the_library(call)
        parts = " " * 16 if inside is None else f"{inside:8.1f}{whole - inside:8.1f}"
        ordinary = f"{best_time(other):11.1f}" if other else ""
        print(f"{name:<43}{whole:8.1f}{parts}{ordinary}", flush=True)


if __name__ == "__main__":
    main()
