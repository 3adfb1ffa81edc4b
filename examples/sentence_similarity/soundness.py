"""What a model's files must hold for the encoder to run: sizes that are numbers and fit each other,
and every tensor in its shape. Raises ValueError with what does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

SIZES = (
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)


def check_config(config: Any) -> None:
    if not isinstance(config, dict):
        raise ValueError(f"config.json holds a {type(config).__name__}, not an object")
    for name in SIZES:
        size = config.get(name)
        if type(size) is not int or not 1 <= size < 2**31:
            raise ValueError(f"{name} is {size!r}, not a positive integer")
    epsilon = config.get("layer_norm_eps")
    if not isinstance(epsilon, (int, float)) or not 0 < epsilon < 1:
        raise ValueError(f"layer_norm_eps is {epsilon!r}, not a number between 0 and 1")
    if config["hidden_size"] % config["num_attention_heads"]:
        raise ValueError(
            f"hidden_size is {config['hidden_size']}, and num_attention_heads "
            f"{config['num_attention_heads']}: not a divisor of it"
        )


def check_tensors(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    for name, shape in _shapes(config):
        tensor = tensors.get(name)
        if tensor is None:
            raise ValueError(f"there is no tensor {name}")
        if tensor.shape != shape or tensor.dtype.kind != "f":
            raise ValueError(
                f"{name} is {tensor.dtype} {tensor.shape}, not a floating-point type {shape}"
            )


def _shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, inner = config["hidden_size"], config["intermediate_size"]
    yield "embeddings.word_embeddings.weight", (config["vocab_size"], width)
    yield "embeddings.position_embeddings.weight", (config["max_position_embeddings"], width)
    yield "embeddings.token_type_embeddings.weight", (config["type_vocab_size"], width)
    yield from _affine("embeddings.LayerNorm", (width,))
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            yield from _affine(f"{layer}.attention.{part}", (width, width))
        yield from _affine(f"{layer}.attention.output.LayerNorm", (width,))
        yield from _affine(f"{layer}.intermediate.dense", (inner, width))
        yield from _affine(f"{layer}.output.dense", (width, inner))
        yield from _affine(f"{layer}.output.LayerNorm", (width,))


def _affine(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]
