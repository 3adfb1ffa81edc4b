"""Reads GGUF, the file format of llama.cpp: key-value pairs, and tensors of the types F32, F16,
Q4_1 and Q8_0, which become float32. (https://github.com/ggml-org/ggml, docs/gguf.md)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # of the tensors' data, where the file names no other
BLOCK = 32  # elements that share a scale in the quantised types
MOST_AXES = 4

STRING, ARRAY = 8, 9
SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}  # type -> format of struct

Q4_1 = np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("codes", "u1", BLOCK // 2)])
Q8_0 = np.dtype([("scale", "<f2"), ("codes", "i1", BLOCK)])


class GgufError(Exception):
    """The file is not what this reader can read; the message says what is wrong."""


def from_float(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)


def from_q4_1(blocks: np.ndarray) -> np.ndarray:
    """code * scale + minimum; the low halves of the bytes come first."""
    x = np.empty((len(blocks), 2, BLOCK // 2), np.float32)
    x[:, 0] = blocks["codes"] & 15
    x[:, 1] = blocks["codes"] >> 4
    x *= blocks["scale"].astype(np.float32)[:, None, None]
    x += blocks["minimum"].astype(np.float32)[:, None, None]
    return x


def from_q8_0(blocks: np.ndarray) -> np.ndarray:
    """code * scale."""
    return blocks["codes"] * blocks["scale"].astype(np.float32)[:, None]


@dataclass(frozen=True)
class TensorType:
    block: int  # elements in a unit of storage
    storage: np.dtype
    decode: Callable[[np.ndarray], np.ndarray]


TENSOR_TYPES = {
    0: TensorType(1, np.dtype("<f4"), from_float),
    1: TensorType(1, np.dtype("<f2"), from_float),
    3: TensorType(BLOCK, Q4_1, from_q4_1),
    8: TensorType(BLOCK, Q8_0, from_q8_0),
}


@dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]  # in numpy's order: the last axis is contiguous
    type_id: int
    offset: int  # in bytes, from the beginning of the tensors' data


class Cursor:
    """Reads the header's values one after the other."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = memoryview(data)
        self.offset = 0

    def take(self, count: int) -> bytes:
        end = self.offset + count
        if end > len(self.data):
            raise GgufError(f"the header ends at byte {len(self.data)}, {end} are needed")
        taken = self.data[self.offset : end].tobytes()
        self.offset = end
        return taken

    def scalars(self, codes: str) -> tuple:
        try:
            size = struct.calcsize(f"<{codes}")
        except struct.error as error:  # more than any memory
            raise GgufError(f"the header cannot have {codes}: {error}") from error
        return struct.unpack(f"<{codes}", self.take(size))

    def scalar(self, code: str) -> Any:
        return self.scalars(code)[0]

    def string(self) -> str:
        text = self.take(self.scalar("Q"))
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise GgufError(f"the text {text[:40]!r} in the header is no UTF-8: {error}") from error

    def value(self, type_id: int) -> Any:
        if type_id == STRING:
            return self.string()
        if type_id == ARRAY:
            return self.array(*self.scalars("IQ"))
        if type_id not in SCALARS:
            raise GgufError(f"a value has the unknown type {type_id}")
        return self.scalar(SCALARS[type_id])

    def array(self, type_id: int, count: int) -> list:
        if type_id == ARRAY:
            raise GgufError("a value is an array of arrays, which this reader does not read")
        if type_id in SCALARS:
            return list(self.scalars(f"{count}{SCALARS[type_id]}"))
        return [self.value(type_id) for _ in range(count)]


class Values(dict[str, Any]):
    """The key-value pairs of a file. Each function returns the value of a key if it is of the
    function's kind, and raises GgufError otherwise."""

    def _value(self, key: str) -> Any:
        if key not in self:
            raise GgufError(f"it has no value {key!r}")
        return self[key]

    def text(self, key: str) -> str:
        return self._checked(key, "a text", lambda value: isinstance(value, str))

    def count(self, key: str) -> int:
        return self._checked(
            key, "a positive integer", lambda value: is_integer(value) and value > 0
        )

    def number(self, key: str) -> float:
        return float(self._checked(key, "a positive number", is_positive_number))

    def texts(self, key: str) -> list[str]:
        return self._checked(key, "an array of texts", lambda value: is_array_of(value, str))

    def integers(self, key: str) -> list[int]:
        return self._checked(key, "an array of integers", lambda value: is_array_of(value, int))

    def _checked(self, key: str, kind: str, is_of_kind: Callable[[Any], bool]) -> Any:
        value = self._value(key)
        if not is_of_kind(value):
            raise GgufError(f"{key} is {shortened(value)}, not {kind}")
        return value


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_positive_number(value: Any) -> bool:
    return (is_integer(value) or isinstance(value, float)) and value > 0 and isfinite(value)


def is_array_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def shortened(value: Any) -> str:
    text = repr(value[:4] if isinstance(value, (list, str)) else value)
    return text if len(text) < 60 else f"{text[:60]}..."


class Gguf:
    """An open file: `values` are its key-value pairs, `tensors` tells where each tensor lies.
    Whatever is wrong with the file raises GgufError; a file that cannot be opened, OSError."""

    def __init__(self, path: Path) -> None:
        if path.stat().st_size == 0:
            raise GgufError("the file is empty")
        self._data = np.memmap(path, np.uint8, "r")
        cursor = Cursor(self._data)
        magic, version = cursor.take(len(MAGIC)), cursor.scalar("I")
        if magic != MAGIC or version not in VERSIONS:
            raise GgufError(
                f"it begins with {magic!r} and version {version}; "
                f"{MAGIC!r} and a version of {VERSIONS} are read"
            )
        n_tensors, n_values = cursor.scalars("QQ")
        self.values = Values()
        for _ in range(n_values):
            key = cursor.string()
            if key in self.values:
                raise GgufError(f"it has two values {key!r}")
            self.values[key] = cursor.value(cursor.scalar("I"))
        self.tensors: dict[str, Tensor] = {}
        for _ in range(n_tensors):
            name, tensor = read_tensor(cursor)
            if name in self.tensors:
                raise GgufError(f"it has two tensors {name!r}")
            self.tensors[name] = tensor
        alignment = ALIGNMENT
        if "general.alignment" in self.values:
            alignment = self.values.count("general.alignment")
        self._begin = -(-cursor.offset // alignment) * alignment

    def tensor(self, name: str, shape: Sequence[int | None] | None = None) -> np.ndarray:
        """The tensor in float32: a new array. It must have this shape, of which None is any length;
        without a shape it may have any."""
        if name not in self.tensors:
            raise GgufError(f"it has no tensor {name}")
        tensor = self.tensors[name]
        if shape is not None and not has_shape(tensor, shape):
            expected = ", ".join("any" if length is None else str(length) for length in shape)
            raise GgufError(f"{name} has shape {tensor.shape}, not ({expected})")
        if tensor.type_id not in TENSOR_TYPES:
            raise GgufError(f"{name} has type {tensor.type_id}; {sorted(TENSOR_TYPES)} are read")
        stored = TENSOR_TYPES[tensor.type_id]
        if tensor.shape[-1] % stored.block:
            raise GgufError(
                f"{name} has rows of {tensor.shape[-1]} elements, and its type, {tensor.type_id}, "
                f"blocks of {stored.block}"
            )
        begin = self._begin + tensor.offset
        end = begin + prod(tensor.shape) // stored.block * stored.storage.itemsize
        if end > len(self._data):
            raise GgufError(f"{name} ends at byte {end}, but the file at {len(self._data)}")
        return stored.decode(self._data[begin:end].view(stored.storage)).reshape(tensor.shape)


def has_shape(tensor: Tensor, shape: Sequence[int | None]) -> bool:
    if len(tensor.shape) != len(shape):
        return False
    return all(expected in (None, n) for n, expected in zip(tensor.shape, shape))


def read_tensor(cursor: Cursor) -> tuple[str, Tensor]:
    name = cursor.string()
    n_axes = cursor.scalar("I")
    if not 0 < n_axes <= MOST_AXES:
        raise GgufError(f"{name} has {n_axes} axes: 1 to {MOST_AXES} are read")
    shape = cursor.scalars(f"{n_axes}Q")
    if 0 in shape:
        raise GgufError(f"{name} has shape {shape[::-1]}, without elements")
    return name, Tensor(shape[::-1], *cursor.scalars("IQ"))
