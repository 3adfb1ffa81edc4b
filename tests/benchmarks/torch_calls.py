"""Measures what the host takes for a call of flashattn.torch_ops on the CPU, or of flashattn.compat
on top of it, by hand:

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python tests/benchmarks/torch_calls.py

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
from flashattn._torch import forward as frames
from flashattn._torch.frame import ForwardFrame
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


def time_in_the_library(call: Callable[[], Any]) -> float:
    """Returns the microseconds of the same C calls on the frame that the call has left behind. Its
    result has to be there still."""
    kept = call()
    frame: ForwardFrame = frames._frames[-1]
    best = best_time(frame.run_on_cpu)
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

    def of(package: Any, name: str, *arrays: torch.Tensor, **options: Any) -> Callable[[], Any]:
        function = getattr(package, name)
        return lambda: function(*arrays, causal=True, **options)

    both = {
        "flash_attn_func": ("flash_attn_func", (q, k, v), {}),
        "flash_attn_func, out": ("flash_attn_func", (q, k, v), {"out": out}),
        "flash_attn_func, LSE": ("flash_attn_func", (q, k, v), {"return_lse": True}),
        "flash_attn_func, pages": ("flash_attn_func", (q, pool, pool), pages),
        "flash_attn_varlen_func": ("flash_attn_varlen_func", (q[0], k[0], v[0]), ragged),
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
    calls["compat.fa2.flash_attn_func"] = (of(fa2, "flash_attn_func", q, k, v), None)
    calls["compat.fa2.flash_attn_with_kvcache"] = (
        of(
            fa2,
            "flash_attn_with_kvcache",
            q,
            pool,
            pool,
            cache_seqlens=pages["seqused_k"],
            block_table=pages["page_table"],
        ),
        None,
    )
    return calls


def main() -> None:
    torch.set_num_threads(1)
    flashattn.set_num_threads(1)
    print(f"{'microseconds of a call':<36}{'whole':>8}{'in C':>8}{'Python':>8}{'flashattn':>11}")
    for name, (call, other) in problems().items():
        whole, inside = best_time(call), time_in_the_library(call)
        ordinary = f"{best_time(other):11.1f}" if other else ""
        print(f"{name:<36}{whole:8.1f}{inside:8.1f}{whole - inside:8.1f}{ordinary}", flush=True)


if __name__ == "__main__":
    main()
