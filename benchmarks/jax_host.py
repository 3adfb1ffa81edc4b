"""Measures what a jitted call of flashattn.jax takes of the host beside the smallest jitted call of
JAX itself, by hand:

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/jax_host.py [--rounds 200]

Problems are so small that hardly anything is left but the call. The ways take turns in bursts that
end when their results are there, and the least processor time of a burst counts, since processors
do other work meanwhile. On the CPU that is the whole call, on a CUDA device what the host does of
it. The time of `library` is that of the C function alone, as the handler calls it, and that of
`prepare` of flash_prepare(), which the handler calls before each execution on a CUDA device.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from typing import Any, Callable

import flashattn
import jax
import jax.numpy as jnp
import numpy as np
from flashattn import _abi
from flashattn._library import check, library
from flashattn._problem import Problem
from flashattn.jax import flash_attention

_BURST = 50
_CUDA = _abi.FLASH_DEVICE_CUDA_CURRENT


def make_calls() -> dict[str, Callable[[], Any]]:
    on_host = jax.default_backend() == "cpu"
    dtype, d_head = (np.float32, 8) if on_host else (jnp.bfloat16, 128)
    q, k = jnp.ones((1, 1, 8, d_head), dtype), jnp.ones((1, 16, 2, d_head), dtype)
    pool = jnp.ones((8, 16, 2, d_head), dtype)
    table, lengths = jnp.ones((1, 2), jnp.int32), jnp.full((1,), 17, jnp.int32)
    add = jax.jit(lambda q: q + 1)
    add_three = jax.jit(lambda q, k, v: (q + 1, k + v))
    attend = jax.jit(lambda q, k, v: flash_attention(q, k, v, causal=True))
    with_lse = jax.jit(lambda q, k, v: flash_attention(q, k, v, return_lse=True))
    in_pages = jax.jit(
        lambda q, k, v, table, lengths: flash_attention(
            q, k, v, page_table=table, seqused_k=lengths, causal=True
        )
    )
    of_library = {"library": library_call()} if on_host else {}
    return {
        "x + 1": lambda: add(q),
        "q + 1, k + v": lambda: add_three(q, k, k),
        "flash_attention": lambda: attend(q, k, k),
        "the same with LSE": lambda: with_lse(q, k, k),
        "the same with pages": lambda: in_pages(q, pool, pool, table, lengths),
        **of_library,
        "prepare": prepare_call(q, k, _abi.FLASH_DEVICE_CPU if on_host else _CUDA),
    }


def library_call() -> Callable[[], None]:
    """Returns the call of the C function for the same problem."""
    q, k = np.ones((1, 1, 8, 8), np.float32), np.ones((1, 16, 2, 8), np.float32)
    problem, out = Problem(q, k, k, {"causal": True}), np.empty_like(q)
    problem.set_output(out, None)
    memory = np.empty(1 << 20, np.uint8)
    problem.args.workspace, problem.args.workspace_size = memory.ctypes.data, memory.nbytes
    forward, args, kept = library().flash_forward, ctypes.byref(problem.args), (q, k, out, memory)
    return lambda: forward(args, None, None) and kept


def prepare_call(q: jax.Array, k: jax.Array, device: int) -> Callable[[], None]:
    """Returns the call of flash_prepare() for the same problem, of which it reads no data."""
    stand_ins = [np.zeros(x.shape, x.dtype) for x in (q, k, k)]
    problem = Problem(*stand_ins, {"causal": True})
    problem.args.device = device
    prepare, args = library().flash_prepare, ctypes.byref(problem.args)
    check(prepare(args, None))
    return lambda: prepare(args, None) and problem


def time_of(call: Callable[[], Any]) -> float:
    """Returns the microseconds of processor time of a call in one burst."""
    begin = time.process_time()
    for _ in range(_BURST):
        result = call()
    jax.block_until_ready(result)
    return (time.process_time() - begin) / _BURST * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    flashattn.set_num_threads(1)
    calls = make_calls()
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        jax.block_until_ready(call())  # compiles it
    for _ in range(rounds):
        for name, call in calls.items():
            best[name] = min(best[name], time_of(call))
    for name, microseconds in best.items():
        print(f"{microseconds:7.1f} us of processor time  {name}")


if __name__ == "__main__":
    main()
