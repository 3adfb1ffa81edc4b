"""Times attention alone, of one layer of the model: the library's, numpy's, and torch's where torch
is installed. On a CPU each has one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import flashattn
import numpy as np

from .arrays import Arrays, HostArrays
from .attention import numpy_attention
from .llama import Sizes

MIN_CALLS, MIN_SECONDS = 3, 0.5  # at least, of timed calls


@dataclass(frozen=True)
class Implementation:
    """attention takes q, k and v as numpy_attention does, each as `put` gave it."""

    name: str
    attention: Callable[[Any, Any, Any], Any]
    put: Callable[[np.ndarray], Any]
    wait: Callable[[], None]


def implementations(arrays: Arrays) -> list[Implementation]:
    """All that this machine can run; the library's first, with arrays of that kind."""
    host = HostArrays()
    found = [
        Implementation("flashattn", flash_attention, arrays.put, arrays.wait),
        Implementation("numpy", numpy_attention, host.put, host.wait),
    ]
    if torch_works():
        found.append(Implementation("torch", torch_attention, torch_heads, host.wait))
    return found


def use_one_thread() -> None:
    """For a comparison that is fair, and steady on a processor with other work. (numpy has one
    thread from the start.)"""
    flashattn.set_num_threads(1)
    if torch_works():
        import torch

        torch.set_num_threads(1)


def flash_attention(q: Any, k: Any, v: Any) -> Any:
    return flashattn.flash_attn_func(q[None], k[None], v[None], causal=True)


def torch_heads(x: np.ndarray) -> Any:
    """[1, heads, tokens, d_head], on the CPU."""
    import torch

    return torch.from_numpy(x).transpose(0, 1)[None]


def torch_attention(q: Any, k: Any, v: Any) -> Any:
    """torch aligns causal masks top-left: one query is to see all keys, and needs none."""
    import torch

    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)


def torch_works() -> bool:
    """Whether torch is installed, takes the arrays of this numpy, and knows GQA."""
    try:
        torch_attention(*[torch_heads(np.zeros((1, 1, 8), np.float32))] * 3)
    except (ImportError, OSError, RuntimeError, TypeError):
        return False
    return True


def time_prompt(implementation: Implementation, sizes: Sizes, length: int) -> float:
    """The best time of attention of a prompt of `length` tokens, in seconds."""
    return best_seconds(implementation, sizes, length, length)


def time_token(implementation: Implementation, sizes: Sizes, length: int) -> float:
    """The best time of attention of one new token, the last of `length`, in seconds."""
    return best_seconds(implementation, sizes, 1, length)


def best_seconds(implementation: Implementation, sizes: Sizes, n_new: int, length: int) -> float:
    random = np.random.default_rng(length)
    shapes = [(n_new, sizes.n_heads)] + 2 * [(length, sizes.n_heads_kv)]
    qkv = [
        implementation.put(random.standard_normal((*shape, sizes.d_head), np.float32))
        for shape in shapes
    ]
    times: list[float] = []
    while len(times) < MIN_CALLS or sum(times) < MIN_SECONDS:
        begin = perf_counter()
        implementation.attention(*qkv)
        implementation.wait()
        times.append(perf_counter() - begin)
    return min(times)
