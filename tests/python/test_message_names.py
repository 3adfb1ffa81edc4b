"""Every name in the message of a refused call is a member of the header's structs, or one of its
other names. Each member of each struct of whole calls is spoiled in turn, and each array."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flashattn import _abi
from flashattn._library import last_error
from whole_calls import CALLS, Call, structs

HEADER = (Path(__file__).resolve().parents[2] / "include" / "flashattn.h").read_text()
# Arrays beside these are reached by a number that the library cannot check: the caller's tables end
# where they end.
UNBOUNDED = ("paging.page_rows", "paging.page_rows64", "paging.page_indptr")


def _known_names() -> set[str]:
    """Returns members as messages may name them: by themselves, by their tensor, by the member that
    points to their struct."""
    members = {s: [name for name, _ in s._fields_] for s in structs()}
    names = {name for of_struct in members.values() for name in of_struct}
    tensors = {n for s in members for n, kind in s._fields_ if kind is _abi.flash_tensor_t}
    names |= {f"{tensor}.{m}" for tensor in tensors for m in members[_abi.flash_tensor_t]}
    for struct, of_struct in members.items():
        pointer = re.fullmatch(r"flash_(\w+)_t", struct.__name__).group(1)
        names |= {f"{owner}.{m}" for owner in (pointer, struct.__name__) for m in of_struct}
    return names | set(re.findall(r"\b\w*_\w*\b", HEADER))


KNOWN = _known_names()


def _names(message: str) -> set[str]:
    """Returns what looks like a name: a word with a dot or a '_' in it, and the subject."""
    message = re.sub(r"\[-?\d+\]|0x[0-9a-f]+|\d+\.\d+|\bflash_[fb]wd_\w+", "", message)
    found = set(re.findall(r"\b[a-z]\w*(?:\.[a-z]\w*)+\b|\b[a-z]\w*_\w+\b", message))
    subject = re.match(r"(\w\S*) (?:is|overlaps|overflows)\b", message)
    return found | ({subject.group(1)} if subject else set())


def _values(kind: type) -> tuple:
    if kind is ctypes.c_void_p:
        return (None,)
    if kind is ctypes.c_float:
        return (-1.0, float("nan"))
    return (-1, 0, 99) if ctypes.sizeof(kind) == 4 else (-1, 0, 2**63 - 1)


def _spoiled(struct: ctypes.Structure) -> Iterator[None]:
    """Spoils one member after the other, and restores it."""
    for name, kind in struct._fields_:
        if issubclass(kind, ctypes.Structure):
            yield from _spoiled(getattr(struct, name))
        elif not issubclass(kind, ctypes.Array):
            before = getattr(struct, name)
            for value in _values(kind):
                setattr(struct, name, value)
                yield
            setattr(struct, name, before)


def _spoiled_arrays(call: Call) -> Iterator[None]:
    for name, array in call.arrays.items():
        if array.dtype in (np.int32, np.int64):
            for value in (-1,) if name in UNBOUNDED else (-1, 2**30):
                before = array.copy()
                array.flat[-1] = value
                yield
                array[...] = before


def _messages(call: Call) -> Iterator[str]:
    for struct in (call.args, *call.structs.values()):
        for _ in _spoiled(struct):
            if call.run() != 0:
                yield last_error()
    for _ in _spoiled_arrays(call):
        if call.run() != 0:
            yield last_error()


@pytest.mark.parametrize("name", CALLS)
def test_messages_name_members_that_exist(name: str) -> None:
    messages = list(_messages(CALLS[name]()))
    assert len(messages) > 50
    assert [m for m in messages if not _names(m) <= KNOWN] == []


def test_names_that_do_not_exist_are_found() -> None:
    assert _names("lse.stride_batch is 0 along more than one place") - KNOWN == {"lse.stride_batch"}
    assert _names("the call has lse_partial.data") - KNOWN == {"lse_partial.data"}
    assert _names("q.stride_seq is -1: negative") <= KNOWN
