"""Decodes random tokens after noise by the whisper.cpp of pywhispercpp, with a small random model.
Prints a JSON object: some logits behind each token, and which attention was whose.

usage: whisper_cpp_decode.py MODEL [--plugin FILE] [--threads N]

MODEL is made if it is not there.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import struct
from pathlib import Path
from typing import BinaryIO

import _pywhispercpp
import numpy as np

N_TOKENS, PROMPT = 60, 3  # of which the first come together
SOME = 500  # logits of a token that are printed
SAMPLES_PER_SECOND = 16000
N_VOCAB, N_MELS, N_LAYERS, N_HEADS, N_STATE = 51864, 80, 4, 2, 128
N_AUDIO, N_TEXT, N_FFT = 1500, 448, 201


def attention(name: str) -> dict[str, tuple[int, ...]]:
    square, row = (N_STATE, N_STATE), (N_STATE,)
    parts = {f"{name}.{part}.bias": row for part in ("query", "value", "out")}
    return {
        **parts,
        **{f"{name}.{part}.weight": square for part in ("query", "key", "value", "out")},
    }


def norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (N_STATE,), f"{name}.bias": (N_STATE,)}


def block(name: str, is_decoder: bool) -> dict[str, tuple[int, ...]]:
    wide = 4 * N_STATE
    crossing = {**norm(f"{name}.cross_attn_ln"), **attention(f"{name}.cross_attn")}
    return {
        **norm(f"{name}.attn_ln"),
        **attention(f"{name}.attn"),
        **(crossing if is_decoder else {}),
        **norm(f"{name}.mlp_ln"),
        f"{name}.mlp.0.weight": (wide, N_STATE),
        f"{name}.mlp.0.bias": (wide,),
        f"{name}.mlp.2.weight": (N_STATE, wide),
        f"{name}.mlp.2.bias": (N_STATE,),
    }


def tensors() -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor of a model."""
    found = {
        "encoder.positional_embedding": (N_AUDIO, N_STATE),
        "encoder.conv1.weight": (N_STATE, N_MELS, 3),
        "encoder.conv1.bias": (N_STATE, 1),
        "encoder.conv2.weight": (N_STATE, N_STATE, 3),
        "encoder.conv2.bias": (N_STATE, 1),
        **norm("encoder.ln_post"),
        "decoder.positional_embedding": (N_TEXT, N_STATE),
        "decoder.token_embedding.weight": (N_VOCAB, N_STATE),
        **norm("decoder.ln"),
    }
    for i in range(N_LAYERS):
        found |= block(f"encoder.blocks.{i}", False) | block(f"decoder.blocks.{i}", True)
    return found


def is_fp32(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 1 or "positional" in name or "conv" in name and name.endswith("bias")


def write_model(file: BinaryIO) -> None:
    """Writes a model in whisper.cpp's own format, with matrices of fp16."""
    random = np.random.default_rng(0)
    sizes = [N_VOCAB, N_AUDIO, N_STATE, N_HEADS, N_LAYERS, N_TEXT, N_STATE, N_HEADS, N_LAYERS]
    file.write(struct.pack("<12i", 0x67676D6C, *sizes, N_MELS, 1))
    file.write(struct.pack("<2i", N_MELS, N_FFT))
    file.write(random.random((N_MELS, N_FFT), dtype=np.float32).tobytes())
    file.write(struct.pack("<i", 0))  # no words: tokens are compared
    for name, shape in tensors().items():
        of_norm = "ln" in name and name.endswith("weight")
        scale = 0.02 if "embedding" in name else 2 / N_STATE**0.5
        values = scale * random.standard_normal(shape) + of_norm
        is_wide = is_fp32(name, shape)
        file.write(struct.pack("<3i", len(shape), len(name), not is_wide))
        file.write(struct.pack(f"<{len(shape)}i", *reversed(shape)) + name.encode())
        file.write(values.astype(np.float32 if is_wide else np.float16).tobytes())


def library(name: str) -> ctypes.CDLL:
    """Returns one of those of pywhispercpp's wheel, whose names have a hash."""
    folder = Path(_pywhispercpp.__file__).parent / "pywhispercpp.libs"
    return ctypes.CDLL(str(next(folder.glob(f"{name}-{8 * '[0-9a-f]'}.so.*"))))


def load_plugin(path: Path) -> ctypes.CDLL:
    ggml = library("libggml")
    ggml.ggml_backend_load.restype = ctypes.c_void_p
    ggml.ggml_backend_load.argtypes = [ctypes.c_char_p]
    assert ggml.ggml_backend_load(str(path).encode())
    return ctypes.CDLL(str(path))


def counts(plugin: ctypes.CDLL | None) -> dict[str, int]:
    if plugin is None:
        return {}
    served, left = ctypes.c_int64(), ctypes.c_int64()
    plugin.flashattn_ggml_counts(ctypes.byref(served), ctypes.byref(left))
    return {"served": served.value, "left": left.value}


class Whisper:
    """A model whose encoder has heard noise. Flash attention is on by default. The functions are
    whisper.cpp's own: those of the Python binding decode a token at most, and give one logit."""

    def __init__(self, model: Path, n_threads: int) -> None:
        self.library, self.n_threads, self.n_past = library("libwhisper"), n_threads, 0
        self.library.whisper_init_from_file.restype = ctypes.c_void_p
        self.library.whisper_get_logits.restype = ctypes.POINTER(ctypes.c_float)
        context = self.library.whisper_init_from_file(str(model).encode())
        assert context
        self.context = ctypes.c_void_p(context)
        noise = 0.1 * np.random.default_rng(1).standard_normal(20 * SAMPLES_PER_SECOND)
        samples = np.ctypeslib.as_ctypes(noise.astype(np.float32))
        self._call("pcm_to_mel", samples, len(samples), n_threads)
        self._call("encode", 0, n_threads)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self.library, f"whisper_{name}")(self.context, *arguments)
        assert status == 0, name

    def decode(self, tokens: list[int]) -> np.ndarray:
        """Returns the logits behind the last token."""
        array = (ctypes.c_int * len(tokens))(*tokens)
        self._call("decode", array, len(tokens), self.n_past, self.n_threads)
        self.n_past += len(tokens)
        pointer = self.library.whisper_get_logits(self.context)
        return np.ctypeslib.as_array(pointer, (len(tokens), N_VOCAB))[-1].copy()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--plugin", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if not args.model.exists():
        with args.model.open("wb") as file:
            write_model(file)
    plugin = load_plugin(args.plugin) if args.plugin else None
    model = Whisper(args.model, args.threads)
    tokens = np.random.default_rng(2).integers(N_VOCAB, size=N_TOKENS).tolist()
    logits = [model.decode(new) for new in (tokens[:PROMPT], *([t] for t in tokens[PROMPT:]))]
    found = [each[:SOME].tolist() for each in logits]
    print(json.dumps({"logits": found, **counts(plugin)}))


if __name__ == "__main__":
    main()
