"""What `bench` compares CPU kernels with: numpy, and torch and onnxruntime where installed."""

from __future__ import annotations

import importlib.util
import math
import sys
from typing import Any, Callable

import numpy as np

from .. import device
from ..config import DType
from ..oracle import Mask
from . import bench_onnxruntime, memory, problem, torch_arrays, words
from .timing import Contender

# Computes O, [batch, seqlen_q, n_heads, d_head], as an array of the peer's own.
Call = Callable[[], Any]

_TORCH, _ONNXRUNTIME, _NUMPY = "torch", "onnxruntime", "numpy"


def contenders(dtypes: list[DType]) -> list[Contender]:
    """torch in each of the types that it multiplies; the others in fp32, the peers of every
    type."""
    found = [Contender(f"{_NUMPY} (three steps)", DType.FP32, None, is_peer=True)]
    if _is_installed("onnxruntime", "onnx"):
        found.append(Contender(f"{_ONNXRUNTIME} (FP32)", DType.FP32, None, is_peer=True))
    if _is_installed("torch"):
        label = f"{_TORCH} (SDPA, {{}})"
        types = [d for d in dtypes if d in (DType.FP16, DType.BF16, DType.FP32)]
        found += [Contender(label.format(d.name), d, None, is_peer=True) for d in types]
    return found


def is_peer_of_its_type_alone(name: str) -> bool:
    return name == _TORCH


def make_call(
    label: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, options: dict[str, Any]
) -> Call | None:
    """A call of the peer with this label; None: it does not serve the problem."""
    makers = {_TORCH: _torch_call, _ONNXRUNTIME: _onnxruntime_call, _NUMPY: _numpy_call}
    return makers[label.partition(" (")[0]](q, k, v, options)


def _is_installed(*modules: str) -> bool:
    return all(importlib.util.find_spec(module) for module in modules)


def _masks_alike(q: np.ndarray, k: np.ndarray, options: dict[str, Any]) -> bool:
    """A plain problem, with a causal mask only where all agree on its diagonal."""
    is_square = q.shape[1] == k.shape[1]
    return problem.is_plain(options) and (not options["causal"] or is_square)


def _torch_call(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, options: dict[str, Any]
) -> Call | None:
    if not _masks_alike(q, k, options):
        return None
    import torch

    torch.set_num_threads(device.num_threads())
    q_t, k_t, v_t = (torch_arrays.to_tensor(x).transpose(1, 2) for x in (q, k, v))

    def call() -> Any:
        with torch.inference_mode():
            o = torch.nn.functional.scaled_dot_product_attention(
                q_t,
                k_t,
                v_t,
                is_causal=options["causal"],
                scale=options["softmax_scale"],
                enable_gqa=q.shape[2] != k.shape[2],
            )
        return o.transpose(1, 2)

    return call


def _onnxruntime_call(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, options: dict[str, Any]
) -> Call | None:
    return bench_onnxruntime.make_call(q, k, v, options) if _masks_alike(q, k, options) else None


def _scores_fit(q: np.ndarray, k: np.ndarray, options: dict[str, Any]) -> bool:
    """Scores and bias, and what the softcap makes of the former."""
    copies = 3 if options["softcap"] else 1
    n_bytes = 4 * (copies * math.prod(q.shape[:3]) + 2 * q.shape[1]) * k.shape[1]
    left = memory.available("cpu")
    if left is None or n_bytes <= left:
        return True
    print(
        f"flashattn: numpy is left out at {words.count(k.shape[1], 'key')}: its scores take "
        f"{words.size(n_bytes)}, and the machine has {words.size(left)} of memory left",
        file=sys.stderr,
    )
    return False


def _numpy_call(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, options: dict[str, Any]
) -> Call | None:
    """The three steps as a numpy user would write them, in float32; None with padding and, after a
    line that says so, where the scores do not fit in memory."""
    if "leftpad_k" in options or not _scores_fit(q, k, options):
        return None
    group = q.shape[2] // k.shape[2]
    given = options["softmax_scale"]
    scale = np.float32(q.shape[-1] ** -0.5 if given is None else given)
    mask = Mask(options["causal"], *options["window_size"], options["attention_chunk"])
    visible = mask.visible(q.shape[1], k.shape[1])
    bias = np.where(visible, np.float32(0), np.float32(-np.inf))
    softcap = np.float32(options["softcap"])

    def call() -> np.ndarray:
        k_all, v_all = (np.repeat(x, group, axis=2).transpose(0, 2, 1, 3) for x in (k, v))
        scores = q.transpose(0, 2, 1, 3) @ k_all.swapaxes(-1, -2)
        scores *= scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        scores += bias
        scores -= np.maximum(scores.max(axis=-1, keepdims=True), np.finfo(np.float32).min)
        np.exp(scores, out=scores)
        total = scores.sum(axis=-1, keepdims=True)
        return (scores @ v_all / np.where(total > 0, total, 1)).transpose(0, 2, 1, 3)

    return call
