"""What the tests of the chat have in common: tiny random models, and GGUF files, also of whole
models, so that the program runs without the published one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from chat.llama import Layer, Llama, Sizes

TINY = Sizes(
    n_layers=2, n_heads=6, n_heads_kv=2, d_head=16, context=128, rotary_base=1e4, epsilon=1e-5
)
# The heads of the published model, of which three share a head of K and V too.
OF_FILE = replace(TINY, n_heads=3, n_heads_kv=1, d_head=64, context=1024, epsilon=2.0**-17)
VOCABULARY, INNER = 101, 160


def tiny_model(seed: int, sizes: Sizes = TINY) -> Llama:
    random = np.random.default_rng(seed)
    width = sizes.n_heads * sizes.d_head

    def matrix(n_outputs: int, n_inputs: int) -> np.ndarray:
        weights = random.standard_normal((n_outputs, n_inputs)) * 2 / n_inputs**0.5
        return weights.astype(np.float32)

    def norm() -> np.ndarray:
        return random.uniform(0.5, 2, width).astype(np.float32)

    n_rows = (sizes.n_heads + 2 * sizes.n_heads_kv) * sizes.d_head
    layers = [
        Layer(norm(), matrix(n_rows, width), matrix(width, width),
              norm(), matrix(2 * INNER, width), matrix(width, INNER))
        for _ in range(sizes.n_layers)
    ]  # fmt: skip
    return Llama(sizes, layers, norm(), matrix(VOCABULARY, width))


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


def model_file(model: Llama) -> bytes:
    """Returns a GGUF file of the model, in float32, with a tokenizer for printable ASCII."""
    return gguf_file(*model_parts(model))


def model_parts(
    model: Llama,
) -> tuple[dict[str, Any], dict[str, tuple[tuple[int, ...], int, bytes]]]:
    """Returns the values and the tensors of such a file, as gguf_file() takes them."""
    sizes, tensors = model.sizes, {}

    def add(name: str, weights: np.ndarray) -> None:
        tensors[f"{name}.weight"] = weights.shape, 0, weights.tobytes()

    of_q, of_k = sizes.n_heads * sizes.d_head, sizes.n_heads_kv * sizes.d_head
    add("token_embd", model.embedding)
    add("output_norm", model.norm)
    for i, layer in enumerate(model.layers):
        add(f"blk.{i}.attn_norm", layer.attention_norm)
        for name, rows in zip("qkv", np.split(layer.qkv, [of_q, of_q + of_k])):
            add(f"blk.{i}.attn_{name}", rows)
        add(f"blk.{i}.attn_output", layer.output)
        add(f"blk.{i}.ffn_norm", layer.mlp_norm)
        for name, rows in zip(("gate", "up"), np.split(layer.gate_up, 2)):
            add(f"blk.{i}.ffn_{name}", rows)
        add(f"blk.{i}.ffn_down", layer.down)
    values = {
        "general.architecture": "llama",
        "llama.block_count": sizes.n_layers,
        "llama.attention.head_count": sizes.n_heads,
        "llama.attention.head_count_kv": sizes.n_heads_kv,
        "llama.embedding_length": of_q,
        "llama.context_length": sizes.context,
        "llama.rope.freq_base": sizes.rotary_base,
        "llama.attention.layer_norm_rms_epsilon": sizes.epsilon,
        **tokenizer_values(),
    }
    return values, tensors


def tokenizer_values() -> dict[str, Any]:
    """VOCABULARY tokens: three that stand for no text, printable ASCII, the end of a line, and two
    pairs of letters."""
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = ["\u0120", *map(chr, range(33, 127)), "\u010a"]  # a space and "\n", as GPT-2 has them
    tokens = [*control, *letters, "th", "he"]
    assert len(tokens) == VOCABULARY
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["t h", "h e"],
        "tokenizer.ggml.token_type": [3 if token in control else 1 for token in tokens],
    }
