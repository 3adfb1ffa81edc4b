"""The public header is read by other languages' tools: by cffi, which parses plain C, and as
clang's syntax tree, from which bindgen and others make their bindings.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import cffi
import pytest
from flashattn._library import library

HEADER = Path(__file__).resolve().parents[2] / "include" / "flashattn.h"


def without_comments() -> str:
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)


def declared_functions() -> set[str]:
    return set(re.findall(r"FLASH_API [^;]*?\b(flash_\w+)\(", without_comments()))


def declared_enumerators() -> set[str]:
    return set(re.findall(r"\b(FLASH_\w+) = ", without_comments()))


def declared_structs() -> dict[str, list[str]]:
    """Returns the names of the members of each struct with a body."""
    bodies = re.findall(r"typedef struct (\w+) \{(.*?)\}", without_comments(), flags=re.DOTALL)
    return {name: re.findall(r"(\w+)(?:\[\w+\])?;", body) for name, body in bodies}


# ---- cffi ----


@pytest.fixture(scope="module")
def declarations(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Makes of the header what cffi can parse: the preprocessor runs without a compiler's own
    macros, so that FLASH_API is empty, and standard headers are empty, because cffi knows their
    types."""
    folder = tmp_path_factory.mktemp("standard")
    for name in ("stddef.h", "stdint.h"):
        (folder / name).touch()
    command = ["gcc", "-E", "-P", "-std=c11", "-U__GNUC__", "-DFLASH_NO_INLINE", "-nostdinc"]
    command += ["-isystem", folder, HEADER]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def ffi(declarations: str):
    ffi = cffi.FFI()
    ffi.cdef(declarations)
    return ffi


@pytest.fixture(scope="module")
def lib(ffi):
    return ffi.dlopen(library()._name)


def test_cffi_has_every_name(ffi, lib) -> None:
    for name in declared_functions() | declared_enumerators():
        assert hasattr(lib, name), name
    for name, members in declared_structs().items():
        assert [field for field, _ in ffi.typeof(f"struct {name}").fields] == members


def tensor(ffi, buffer, seqlen: int) -> dict[str, object]:
    """Makes one head of dimension 1."""
    return {
        "data": ffi.cast("void *", buffer),
        "stride_batch": seqlen,
        "stride_seq": 1,
        "stride_head": 1,
    }


def test_a_call_through_cffi(ffi, lib) -> None:
    q, k, v, o = (ffi.new("float[]", values) for values in ([0], [1, 2], [3, 5], [0]))
    args = ffi.new("flash_forward_args_t *")
    args.struct_size = ffi.sizeof("flash_forward_args_t")
    args.dtype = lib.FLASH_DTYPE_FP32
    args.q, args.o = tensor(ffi, q, 1), tensor(ffi, o, 1)
    args.k, args.v = tensor(ffi, k, 2), tensor(ffi, v, 2)
    args.batch = args.seqlen_q = args.n_heads = args.n_heads_kv = args.d_head = 1
    args.seqlen_k = 2
    size = ffi.new("uint64_t *")
    assert lib.flash_workspace_size(args, ffi.NULL, size) == lib.FLASH_SUCCESS
    workspace = ffi.new("char[]", size[0] + 1)
    args.workspace, args.workspace_size = workspace, size[0]
    status = lib.flash_forward(args, ffi.NULL, ffi.NULL)
    assert status == lib.FLASH_SUCCESS, ffi.string(lib.flash_last_error())
    assert o[0] == 4


# ---- clang ----


def walk(node: dict) -> Iterator[dict]:
    yield node
    for child in node.get("inner", ()):
        yield from walk(child)


@pytest.fixture(scope="module", params=["c", "c++"])
def tree(request: pytest.FixtureRequest) -> list[dict]:
    """Returns the header's syntax tree in one of the languages, as a list of its nodes."""
    if shutil.which("clang") is None:
        pytest.skip("clang is not installed")
    command = ["clang", "-fsyntax-only", "-Wno-everything", "-Xclang", "-ast-dump=json"]
    command += ["-x", request.param, str(HEADER)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return list(walk(json.loads(text)))


def named(tree: list[dict], kind: str) -> dict[str, dict]:
    """Returns the header's nodes of a kind, by their names."""
    found = (node for node in tree if node["kind"] == kind and not node.get("isImplicit"))
    return {node["name"]: node for node in found if "flash" in node.get("name", "").lower()}


def has_comment(node: dict) -> bool:
    return any(child["kind"] == "FullComment" for child in node.get("inner", ()))


def test_clang_finds_functions_with_comments(tree: list[dict]) -> None:
    functions = named(tree, "FunctionDecl")
    assert declared_functions() <= functions.keys()
    assert [name for name, node in functions.items() if not has_comment(node)] == []


def test_clang_finds_enumerators_with_comments(tree: list[dict]) -> None:
    assert named(tree, "EnumConstantDecl").keys() == declared_enumerators()
    enums = named(tree, "EnumDecl")
    assert len(enums) == len(re.findall(r"\benum \w+ \{", without_comments()))
    assert [name for name, node in enums.items() if not has_comment(node)] == []


def test_clang_finds_structs_with_comments(tree: list[dict]) -> None:
    records = {**named(tree, "RecordDecl"), **named(tree, "CXXRecordDecl")}
    for name, members in declared_structs().items():
        fields = [c["name"] for c in records[name]["inner"] if c["kind"] == "FieldDecl"]
        assert fields == members
        assert has_comment(records[name]), name
