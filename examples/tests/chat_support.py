"""What the tests of the chat have in common: tiny random models, and GGUF files."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from chat.llama import Layer, Llama, Sizes

TINY = Sizes(
    n_layers=2, n_heads=6, n_heads_kv=2, d_head=16, context=128, rotary_base=1e4, epsilon=1e-5
)
VOCABULARY, WIDTH, INNER = 101, 96, 160


def tiny_model(seed: int) -> Llama:
    random = np.random.default_rng(seed)

    def matrix(n_outputs: int, n_inputs: int) -> np.ndarray:
        weights = random.standard_normal((n_outputs, n_inputs)) * 2 / n_inputs**0.5
        return weights.astype(np.float32)

    def norm() -> np.ndarray:
        return random.uniform(0.5, 2, WIDTH).astype(np.float32)

    n_rows = (TINY.n_heads + 2 * TINY.n_heads_kv) * TINY.d_head
    layers = [
        Layer(norm(), matrix(n_rows, WIDTH), matrix(WIDTH, WIDTH),
              norm(), matrix(2 * INNER, WIDTH), matrix(WIDTH, INNER))
        for _ in range(TINY.n_layers)
    ]  # fmt: skip
    return Llama(TINY, layers, norm(), matrix(VOCABULARY, WIDTH))


def float64_logits(model: Llama, ids: Sequence[int]) -> np.ndarray:
    """The whole model in float64 by another way: real rotations, a query at a time, no cache.
    [tokens, vocabulary]"""
    embedding = model.embedding.astype(np.float64)
    x = embedding[np.asarray(ids)]
    for layer in model.layers:
        qkv = float64_norm(x, layer.attention_norm) @ layer.qkv.T.astype(np.float64)
        x = x + float64_attention(qkv) @ layer.output.T.astype(np.float64)
        gate, up = np.split(float64_norm(x, layer.mlp_norm) @ layer.gate_up.T, 2, axis=1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ layer.down.T
    return float64_norm(x, model.norm) @ embedding.T


def float64_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + TINY.epsilon) * weight


def float64_attention(qkv: np.ndarray) -> np.ndarray:
    heads = qkv.reshape(len(qkv), -1, TINY.d_head)
    q = float64_rotated(heads[:, : TINY.n_heads])
    k = float64_rotated(heads[:, TINY.n_heads : -TINY.n_heads_kv])
    v = heads[:, -TINY.n_heads_kv :]
    o = np.empty_like(q)
    for i, h in np.ndindex(q.shape[:2]):
        kv_head = h // (TINY.n_heads // TINY.n_heads_kv)
        p = np.exp(k[: i + 1, kv_head] @ q[i, h] / TINY.d_head**0.5)
        o[i, h] = p @ v[: i + 1, kv_head] / p.sum()
    return o.reshape(len(q), -1)


def float64_rotated(heads: np.ndarray) -> np.ndarray:
    rotated = np.empty_like(heads)
    for position, pair in np.ndindex(len(heads), TINY.d_head // 2):
        angle = position * TINY.rotary_base ** (-2 * pair / TINY.d_head)
        x, y = heads[position, :, 2 * pair], heads[position, :, 2 * pair + 1]
        rotated[position, :, 2 * pair] = x * np.cos(angle) - y * np.sin(angle)
        rotated[position, :, 2 * pair + 1] = x * np.sin(angle) + y * np.cos(angle)
    return rotated


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_value(value: Any) -> bytes:
    """Its type and itself; a list is of strings or of int32."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + string(value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    is_text = isinstance(value[0], str)
    items = map(string, value) if is_text else (struct.pack("<i", x) for x in value)
    return struct.pack("<IIQ", 9, 8 if is_text else 5, len(value)) + b"".join(items)


def gguf_file(
    values: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], int, bytes]]
) -> bytes:
    """tensors: of each its shape, the number of its type, and its data."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    header += b"".join(string(key) + gguf_value(value) for key, value in values.items())
    data = b""
    for name, (shape, type_id, stored) in tensors.items():
        header += string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        header += struct.pack("<IQ", type_id, len(data))
        data += padded(stored)
    return padded(header) + data


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 32)
