"""A BERT encoder in numpy: embeddings, layers, pooling. Attention is passed in, so that
implementations can be compared inside the same model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from batch import Batch, offsets_of
from weights import Model

# (q, k, v, lengths) -> o, each [total tokens, n_heads, d_head] for a ragged batch and
# [batch, longest, n_heads, d_head] for a padded one; softmax scale 1 / sqrt(d_head).
Attention = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]

GELU_ROWS = 64  # rows at a time: their temporaries stay in the cache


class Encoder:
    """The transformer of a loaded model. Tokens are rows: hidden states are [tokens, width]."""

    def __init__(self, model: Model) -> None:
        self.n_layers: int = model.config["num_hidden_layers"]
        self.n_heads: int = model.config["num_attention_heads"]
        self.d_head: int = model.config["hidden_size"] // self.n_heads
        self.epsilon: float = model.config["layer_norm_eps"]
        self.tensors = dict(model.tensors)
        for i in range(self.n_layers):
            self._fuse_qkv(f"encoder.layer.{i}.attention.self")

    def embed(self, batch: Batch, attention: Attention) -> np.ndarray:
        """One vector of length 1 per sequence: [batch, width]."""
        hidden = self.hidden_states(batch, attention)
        packed = batch.real_tokens(hidden)
        sums = np.add.reduceat(packed, offsets_of(batch.lengths)[:-1], axis=0)
        means = sums / batch.lengths[:, None]
        return means / np.linalg.norm(means, axis=1, keepdims=True)

    def hidden_states(self, batch: Batch, attention: Attention) -> np.ndarray:
        """The last layer's output, one row per token, padding included: [tokens, width]."""
        hidden = self._embeddings(batch)
        for i in range(self.n_layers):
            layer = f"encoder.layer.{i}"
            mixed = self._attend(f"{layer}.attention", hidden, batch, attention)
            hidden = self._normalize(f"{layer}.attention.output.LayerNorm", hidden + mixed)
            inner = gelu(self._linear(f"{layer}.intermediate.dense", hidden))
            update = self._linear(f"{layer}.output.dense", inner)
            hidden = self._normalize(f"{layer}.output.LayerNorm", hidden + update)
        return hidden

    def _embeddings(self, batch: Batch) -> np.ndarray:
        words = self.tensors["embeddings.word_embeddings.weight"][batch.token_ids.ravel()]
        places = self.tensors["embeddings.position_embeddings.weight"][batch.positions.ravel()]
        segment = self.tensors["embeddings.token_type_embeddings.weight"][0]
        return self._normalize("embeddings.LayerNorm", words + places + segment)

    def _attend(
        self, name: str, hidden: np.ndarray, batch: Batch, attention: Attention
    ) -> np.ndarray:
        qkv = self._linear(f"{name}.self.qkv", hidden)
        qkv = qkv.reshape(*batch.token_ids.shape, 3, self.n_heads, self.d_head)
        q, k, v = np.moveaxis(qkv, -3, 0)  # views: the heads of q, k and v lie side by side
        o = attention(q, k, v, batch.lengths)
        return self._linear(f"{name}.output.dense", o.reshape(hidden.shape))

    def _fuse_qkv(self, name: str) -> None:
        for kind in ("weight", "bias"):
            parts = [self.tensors[f"{name}.{part}.{kind}"] for part in ("query", "key", "value")]
            self.tensors[f"{name}.qkv.{kind}"] = np.concatenate(parts)

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        y = x @ self.tensors[f"{name}.weight"].T
        y += self.tensors[f"{name}.bias"]
        return y

    def _normalize(self, name: str, x: np.ndarray) -> np.ndarray:
        x = x - x.mean(axis=1, keepdims=True)
        x /= np.sqrt(np.mean(x * x, axis=1, keepdims=True) + self.epsilon)
        x *= self.tensors[f"{name}.weight"]
        x += self.tensors[f"{name}.bias"]
        return x


def gelu(x: np.ndarray) -> np.ndarray:
    """x * (1 + erf(x / sqrt(2))) / 2, in place."""
    for begin in range(0, len(x), GELU_ROWS):
        rows = x[begin : begin + GELU_ROWS]
        rows *= 0.5 + 0.5 * erf(rows * np.float32(0.5**0.5))
    return x


def erf(x: np.ndarray) -> np.ndarray:
    """Abramowitz and Stegun, 7.1.26: within 1.5e-7, which is fp32's own precision near 1."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    series = 1.061405429 * t - 1.453152027
    for coefficient in (1.421413741, -0.284496736, 0.254829592):
        series *= t
        series += coefficient
    series *= t
    series *= np.exp(-x * x)
    return np.copysign(1 - series, x)
