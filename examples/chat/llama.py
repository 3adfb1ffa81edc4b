"""A Llama in numpy: RMSNorm, grouped-query attention, SwiGLU, and an embedding that also serves as
the last layer. Attention and its rotary embedding are passed in, so that implementations can be
compared inside the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

# (layer, q, k, v) -> o: q and o [tokens, n_heads, d_head], k and v [tokens, n_heads_kv, d_head],
# all of new tokens alone; causal, softmax scale 1 / sqrt(d_head). It turns q and k to the tokens'
# positions first. What came before is in a cache, if the implementation has one.
Attention = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Sizes:
    n_layers: int
    n_heads: int
    n_heads_kv: int
    d_head: int
    context: int  # the largest number of tokens
    rotary_base: float
    epsilon: float  # of RMSNorm


@dataclass(frozen=True)
class Layer:
    """The weights; a matrix is [outputs, inputs]. Q's and K's outputs are in the order of GGUF,
    which rotates elements 2 i and 2 i + 1 of a head together."""

    attention_norm: np.ndarray
    qkv: np.ndarray  # the heads of Q, then of K, then of V
    output: np.ndarray
    mlp_norm: np.ndarray
    gate_up: np.ndarray  # the gate, then what it gates
    down: np.ndarray


class Llama:
    """Tokens are rows: hidden states are [tokens, width]."""

    def __init__(
        self, sizes: Sizes, layers: Sequence[Layer], norm: np.ndarray, embedding: np.ndarray
    ) -> None:
        self.sizes = sizes
        self.layers = layers
        self.norm = norm
        self.embedding = embedding

    def hidden_states(self, token_ids: Sequence[int], attention: Attention) -> np.ndarray:
        """The last layer's output for new tokens."""
        hidden = self.embedding[np.asarray(token_ids)]
        for i, layer in enumerate(self.layers):
            q, k, v = self._heads(self._normalize(hidden, layer.attention_norm) @ layer.qkv.T)
            hidden += attention(i, q, k, v).reshape(len(hidden), -1) @ layer.output.T
            inner = self._normalize(hidden, layer.mlp_norm) @ layer.gate_up.T
            hidden += swiglu(inner) @ layer.down.T
        return self._normalize(hidden, self.norm)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """The score of every token as the next one: [tokens, vocabulary]."""
        return hidden @ self.embedding.T

    def _heads(self, qkv: np.ndarray) -> list[np.ndarray]:
        heads = qkv.reshape(len(qkv), -1, self.sizes.d_head)
        n_heads, n_heads_kv = self.sizes.n_heads, self.sizes.n_heads_kv
        return np.split(heads, [n_heads, n_heads + n_heads_kv], axis=1)

    def _normalize(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        mean_square = np.mean(x * x, axis=1, keepdims=True)
        return x / np.sqrt(mean_square + self.sizes.epsilon) * weight


def rotary_tables(sizes: Sizes, n_positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of the angle of every position and pair of elements: [n_positions, d_head /
    2], in float64."""
    pairs = np.arange(0, sizes.d_head, 2) / sizes.d_head
    angles = np.outer(np.arange(n_positions), sizes.rotary_base**-pairs)
    return np.cos(angles), np.sin(angles)


def swiglu(gate_up: np.ndarray) -> np.ndarray:
    """x * sigmoid(x) of the gate, times the rest. (The sigmoid as a tanh never overflows.)"""
    gate, up = np.split(gate_up, 2, axis=1)
    return gate * (0.5 + 0.5 * np.tanh(0.5 * gate)) * up
