"""Arrays from and to .npy files: bad files give one clear line, and no output is half written."""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from .. import _tensor
from .problem import BadInput

_NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
DTYPES = tuple(_NAMES)


def read_tensor(path: str, dtype: str | None) -> np.ndarray:
    """A [batch, seqlen, heads, d_head] array of a floating-point type (or ragged: three axes).

    numpy stores bfloat16 as two nameless bytes, "V2": `dtype` "bf16" says what they are; any other
    `dtype` only asserts what the file says itself.
    """
    array = _read(path)
    if array.dtype.str[1:] == "V2" and dtype == "bf16":
        array = array.view(_tensor.numpy_dtype("bfloat16"))
    if array.dtype.str[1:] == "V2" and array.dtype.name not in _tensor.DTYPES:
        raise BadInput(f"{path}: elements of two nameless bytes; if bfloat16, say --dtype bf16")
    if array.dtype.name not in _tensor.DTYPES:
        raise BadInput(f"{path}: elements are {array.dtype.name}, not float16, bfloat16 or float32")
    if dtype is not None and array.dtype.name != _NAMES[dtype]:
        raise BadInput(f"{path}: elements are {array.dtype.name}, not {_NAMES[dtype]}")
    if array.ndim not in (3, 4):
        raise BadInput(f"{path}: shape {array.shape}, not [batch, seqlen, heads, d_head]")
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array


def read_lengths(text: str | None, option: str) -> np.ndarray | None:
    """int32 values: written out, as in "0,5,9", or in a .npy file."""
    if text is None:
        return None
    if text.endswith(".npy"):
        values = _read(text)
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise BadInput(f"{text}: {values.dtype.name} {values.shape}, not a row of integers")
        numbers = values.tolist()
    else:
        try:
            numbers = [int(word) for word in text.split(",") if word]
        except ValueError:
            raise BadInput(f"{option} {text}: not integers with commas between them") from None
    if any(not -(2**31) <= number < 2**31 for number in numbers):
        raise BadInput(f"{option}: a value does not fit 32 bits")
    return np.array(numbers, np.int32)


def write(path: str, array: np.ndarray) -> None:
    """Writes the whole file or nothing. What is there and no regular file, such as a device or a
    pipe, stays what it is, and is written to; so does a symbolic link."""
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            _write_to(path, array)
        else:
            _replace(target, array)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror}") from None


def _write_to(path: str, array: np.ndarray) -> None:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    with open(path, "wb") as file:
        file.write(content.getbuffer())


def _replace(target: Path, array: np.ndarray) -> None:
    """Writes to a temporary file beside the target, which then takes its name."""
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, array, allow_pickle=False)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def _read(path: str) -> np.ndarray:
    """Maps the file: a header that announces more than the file holds costs no memory."""
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from None
    except (ValueError, EOFError, OverflowError, SyntaxError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(_archive_hint(path) or f"{path}: not a whole .npy file: {reason}") from None


def _archive_hint(path: str) -> str | None:
    """How to take an array out of a .npz file; None: it is no such file."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name[:-4] for name in archive.namelist() if name.endswith(".npy")]
    except (OSError, zipfile.BadZipFile):
        return None
    if not names:
        return None
    target = Path(path).with_suffix(".npy").name
    return (
        f"{path}: an archive of arrays ({', '.join(names)}), not one array; write one of them to a "
        f"file of its own: np.save({target!r}, np.load({path!r})[{names[0]!r}])"
    )


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
