"""Files of models that are damaged anywhere: the chat reads one as a sound model, or raises its one
documented exception.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat.attention import reference_attention
from chat.checkpoint import ModelError, load_model
from chat.dialogue import question
from chat_support import TINY, gguf_file, model_parts, tiny_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SMALL = replace(TINY, n_layers=1, n_heads=2, n_heads_kv=1, d_head=4)
# Without a database a run leaves no files; a failure prints the blob that replays it.
damages = settings(
    max_examples=300,
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

Tensors = dict[str, tuple[tuple[int, ...], int, bytes]]


@lru_cache(maxsize=1)
def parts() -> tuple[dict[str, Any], Tensors]:
    return model_parts(tiny_model(0, SMALL))


@lru_cache(maxsize=1)
def sound_file() -> bytes:
    return gguf_file(*parts())


def header_size() -> int:
    values, tensors = parts()
    empty = {name: (shape, kind, b"") for name, (shape, kind, _) in tensors.items()}
    return len(gguf_file(values, empty))


def check(folder: Path, data: bytes) -> str | None:
    """Returns the message with which the file is refused; None for one that the model can use."""
    path = folder / "model.gguf"
    path.write_bytes(data)
    try:
        model, tokenizer = load_model(path)
    except ModelError as error:
        return str(error)
    with np.errstate(all="ignore"):  # its weights may be anything
        ids = question(tokenizer, "What?")
        logits = model.logits(model.hidden_states(ids, reference_attention(model.sizes)))
    assert logits.shape == (len(ids), tokenizer.get_vocab_size())
    return None


# ---- Bytes ----

_numbers = st.sampled_from(
    [0, 1, 2, 9, 31, 127, 128, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**62, 2**63, 2**64 - 1]
)


def _stamped(data: bytes, at: int, number: int, size: int) -> bytes:
    stamp = struct.pack("<Q", number)[:size]
    return data[:at] + stamp + data[at + size :]


@st.composite
def spoiled_bytes(draw: st.DrawFn) -> bytes:
    data = sound_file()
    place = st.integers(0, header_size())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(place)
        kind = draw(st.sampled_from(["stamp", "bytes", "cut", "delete", "insert"]))
        if kind == "stamp":
            data = _stamped(data, at, draw(_numbers), draw(st.sampled_from([4, 8])))
        elif kind == "bytes":
            new = draw(st.binary(min_size=1, max_size=4))
            data = data[:at] + new + data[at + len(new) :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "delete":
            data = data[:at] + data[at + draw(st.integers(1, 40)) :]
        else:
            data = data[:at] + draw(st.binary(min_size=1, max_size=40)) + data[at:]
    return data


@given(data=spoiled_bytes())
@damages
def test_spoiled_bytes_are_read_or_refused(tmp_path: Path, data: bytes) -> None:
    check(tmp_path, data)


# ---- Values and tensors ----

_ANY_VALUE = st.one_of(
    st.integers(0, 12),
    st.sampled_from([2**31, 2**32 - 1]),
    st.floats(width=32),
    st.text(max_size=8),
    st.lists(st.text(max_size=3), min_size=1, max_size=4),
    st.lists(st.integers(-3, 3), min_size=1, max_size=4),
)
_ANY_SHAPE = st.lists(st.sampled_from([0, 1, 4, 8, 16, 32, 101, 160, 2**40]), max_size=5).map(tuple)


@st.composite
def spoiled_parts(draw: st.DrawFn) -> bytes:
    values, tensors = map(dict, parts())
    for _ in range(draw(st.integers(1, 2))):
        if draw(st.booleans()):
            key = draw(st.sampled_from([*values, "general.alignment"]))
            values[key] = draw(_ANY_VALUE)
        else:
            name = draw(st.sampled_from(list(tensors)))
            shape, kind, data = tensors[name]
            shape = draw(st.one_of(st.just(shape), st.just(shape[::-1]), _ANY_SHAPE))
            tensors[name] = shape, draw(st.sampled_from([0, 0, 1, 2, 3, 8])), data
    return gguf_file(values, tensors)


@given(data=spoiled_parts())
@damages
def test_spoiled_values_and_tensors_are_read_or_refused(tmp_path: Path, data: bytes) -> None:
    check(tmp_path, data)


# ---- What each message says ----


def nested_arrays(depth: int) -> bytes:
    arrays = struct.pack("<IQ", 9, 1) * depth
    return b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 9) + arrays


def _with_value(key: str, value: Any) -> Callable[[], bytes]:
    return lambda: gguf_file({**parts()[0], key: value}, parts()[1])


def _with_shape(name: str, shape: tuple[int, ...], kind: int = 0) -> Callable[[], bytes]:
    values, tensors = parts()
    return lambda: gguf_file(values, {**tensors, name: (shape, kind, tensors[name][2])})


DAMAGES: dict[str, tuple[Callable[[], bytes], str]] = {
    "sound": (sound_file, ""),
    "empty": (lambda: b"", "the file is empty"),
    "nested": (lambda: nested_arrays(100_000), "array of arrays"),
    "alignment 0": (_with_value("general.alignment", 0), "alignment is 0, not a positive"),
    "alignment": (_with_value("general.alignment", "x"), "alignment is 'x', not a"),
    "no heads": (_with_value("llama.attention.head_count", 0), "head_count is 0, not a positive"),
    "no K/V heads": (_with_value("llama.attention.head_count_kv", 0), "head_count_kv is 0, not a"),
    "K/V heads": (_with_value("llama.attention.head_count_kv", 3), "not a multiple of 3 K/V heads"),
    "heads of 3": (_with_value("llama.embedding_length", 6), "width is 6: not 2 heads of"),
    "layers": (_with_value("llama.block_count", ["a"]), r"block_count is \['a'\], not a"),
    "base": (_with_value("llama.rope.freq_base", float("nan")), "freq_base is nan, not a positive"),
    "architecture": (_with_value("general.architecture", 3), "architecture is 3, not a text"),
    "tokens": (_with_value("tokenizer.ggml.tokens", [1]), r"tokens is \[1\], not an array"),
    "few tokens": (_with_value("tokenizer.ggml.tokens", ["a", "a"]), "2 tokens, 1 different ones"),
    "types": (_with_value("tokenizer.ggml.token_type", "x"), "not an array of integers"),
    "merges": (_with_value("tokenizer.ggml.merges", ["t ?h"]), r"'t \?h', and '\?h' is none"),
    "norm": (_with_shape("output_norm.weight", (7,)), r"has shape \(7,\), not \(8\)"),
    "vocabulary": (_with_shape("token_embd.weight", (100, 8)), r"\(100, 8\), not \(101, 8\)"),
    "gate": (_with_shape("blk.0.ffn_gate.weight", (160, 4)), r"\(160, 4\), not \(any, 8\)"),
    "blocks": (_with_shape("output_norm.weight", (8,), 8), "and its type, 8, blocks of 32"),
    "no axes": (_with_shape("output_norm.weight", ()), "output_norm.weight has 0 axes"),
    "five axes": (_with_shape("output_norm.weight", (8, 1, 1, 1, 1)), "has 5 axes: 1 to 4"),
    "no elements": (_with_shape("output_norm.weight", (0, 2**40)), "without elements"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_messages_say_what_is_wrong(tmp_path: Path, name: str) -> None:
    make, message = DAMAGES[name]
    if name == "sound":
        assert check(tmp_path, make()) is None
    else:
        with pytest.raises(ModelError, match=message):
            (tmp_path / "model.gguf").write_bytes(make())
            load_model(tmp_path / "model.gguf")
