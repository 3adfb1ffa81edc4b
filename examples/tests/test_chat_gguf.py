"""The reader of GGUF against files that are written here, with elements decoded one by one."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from chat.gguf import Gguf, GgufError
from chat_support import gguf_file

VALUES = {"name": "crêpe", "count": 7, "base": 0.5, "words": ["a", "", "ü"], "types": [1, -3]}


def write(tmp_path, data: bytes):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return path


def test_values_are_read(tmp_path):
    assert Gguf(write(tmp_path, gguf_file(VALUES, {}))).values == VALUES


def test_tensors_of_every_type_are_read(tmp_path):
    random = np.random.default_rng(5)
    floats = random.standard_normal((3, 5)).astype(np.float32)
    halves = random.standard_normal((2, 4)).astype(np.float16)
    q4_1, expected_q4_1 = b"", []
    q8_0, expected_q8_0 = b"", []
    for _ in range(4):
        scale, minimum = random.standard_normal(2).astype(np.float16)
        codes = random.integers(0, 16, 32)
        packed = [int(codes[i] + 16 * codes[i + 16]) for i in range(16)]
        q4_1 += struct.pack("<ee16B", scale, minimum, *packed)
        expected_q4_1 += [float(scale) * int(code) + float(minimum) for code in codes]
        codes = random.integers(-128, 128, 32)
        q8_0 += struct.pack("<e32b", scale, *codes)
        expected_q8_0 += [float(scale) * int(code) for code in codes]
    tensors = {
        "f32": ((3, 5), 0, floats.tobytes()),
        "f16": ((2, 4), 1, halves.tobytes()),
        "q4_1": ((2, 64), 3, q4_1),
        "q8_0": ((2, 64), 8, q8_0),
    }
    file = Gguf(write(tmp_path, gguf_file(VALUES, tensors)))
    np.testing.assert_array_equal(file.tensor("f32"), floats)
    np.testing.assert_array_equal(file.tensor("f16"), halves.astype(np.float32))
    expected = np.reshape(expected_q4_1, (2, 64))
    np.testing.assert_allclose(file.tensor("q4_1"), expected, atol=1e-6)
    expected = np.reshape(expected_q8_0, (2, 64))
    np.testing.assert_allclose(file.tensor("q8_0"), expected, rtol=1e-6)
    assert all(file.tensor(name).dtype == np.float32 for name in tensors)


@pytest.mark.parametrize("cut", [3, 10, 30, 60, 100])
def test_a_header_that_is_cut_is_refused(tmp_path, cut):
    whole = gguf_file(VALUES, {"t": ((1,), 0, bytes(4))})
    with pytest.raises(GgufError, match=f"the header ends at byte {cut}"):
        Gguf(write(tmp_path, whole[:cut]))


def test_tensors_that_cannot_be_read_are_refused(tmp_path):
    tensors = {"short": ((1000,), 0, bytes(8)), "strange": ((1,), 99, bytes(4))}
    file = Gguf(write(tmp_path, gguf_file({}, tensors)))
    with pytest.raises(GgufError, match="short ends at byte .*, but the file at"):
        file.tensor("short")
    with pytest.raises(GgufError, match="strange has type 99"):
        file.tensor("strange")
    with pytest.raises(GgufError, match="no tensor missing"):
        file.tensor("missing")


def test_other_files_are_refused(tmp_path):
    with pytest.raises(GgufError, match="b'PK.*and version"):
        Gguf(write(tmp_path, b"PK\3\4" + bytes(100)))
    with pytest.raises(GgufError, match="version 1;"):
        Gguf(write(tmp_path, b"GGUF" + struct.pack("<I", 1) + bytes(100)))
    begin = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k"
    with pytest.raises(GgufError, match="unknown type 77"):
        Gguf(write(tmp_path, begin + struct.pack("<I", 77)))
    with pytest.raises(GgufError, match="the header cannot have 9223372036854775807q"):
        Gguf(write(tmp_path, begin + struct.pack("<IIQ", 9, 11, 2**63 - 1)))
