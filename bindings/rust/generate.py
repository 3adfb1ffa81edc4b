#!/usr/bin/env python3
"""Writes the bindings of the crate flashattn-sys from include/flashattn.h: constants, structs with
their layout checked at compile time, functions. It needs pycparser and a C preprocessor (CC).

usage: generate.py [--check]

    --check   write nothing, and fail where the committed file is another
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pycparser import c_ast, c_parser

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "include/flashattn.h"
LAYOUT = ROOT / "tests/abi/layout.txt"
BINDINGS = ROOT / "bindings/rust/flashattn-sys/src/bindings.rs"

SCALARS = {
    "int32_t": "i32",
    "uint32_t": "u32",
    "int64_t": "i64",
    "uint64_t": "u64",
    "size_t": "usize",
    "float": "f32",
    "double": "f64",
    "char": "c_char",
    "void": "c_void",
}
# Enumerators of these are bits of members that have no sign; the others are of int32_t members.
OF_BITS = ("flash_isa", "flash_flag", "flash_mask_flag", "flash_rotary_flag")
HEAD = """\
// Made of include/flashattn.h by bindings/rust/generate.py: change these, and run it.

use core::ffi::{c_char, c_void};
use core::mem::{offset_of, size_of};
"""


# ---- The header ----


def preprocessed() -> str:
    """Returns the header without comments and macros, as tests/python/test_header_readers.py has
    it for another parser."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("stddef.h", "stdint.h"):
            (Path(folder) / name).touch()
        command = [os.environ.get("CC", "cc"), "-E", "-P", "-std=c11", "-U__GNUC__"]
        command += ["-DFLASH_NO_INLINE", "-nostdinc", "-isystem", folder, str(HEADER)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def parsed() -> list[c_ast.Node]:
    """Returns the declarations of the header. To the parser standard types are of no kind."""
    names = [name for name in SCALARS if name.endswith("_t")]
    known = "".join(f"typedef int {name};\n" for name in names)
    return list(c_parser.CParser().parse(known + preprocessed()).ext)[len(names) :]


def numbers() -> Iterator[tuple[str, str]]:
    """Yields the macros that are numbers, and the version as one number."""
    found = re.findall(r"^#define (FLASH_\w+[A-Z]) (\d+)$", HEADER.read_text(), re.MULTILINE)
    yield from found
    major, minor, patch = (dict(found)[f"FLASH_VERSION_{x}"] for x in ("MAJOR", "MINOR", "PATCH"))
    yield "FLASH_VERSION_NUMBER", str(10000 * int(major) + 100 * int(minor) + int(patch))


# ---- Types ----


def rust_type(node: c_ast.Node) -> str:
    if isinstance(node, c_ast.PtrDecl):
        if isinstance(node.type, c_ast.FuncDecl):
            return f'Option<unsafe extern "C" fn({parameters(node.type)}){result(node.type)}>'
        return f"*{'const' if is_const(node.type) else 'mut'} {rust_type(node.type)}"
    if isinstance(node, c_ast.ArrayDecl):
        return f"[{rust_type(node.type)}; {node.dim.value}]"
    if isinstance(node.type, c_ast.IdentifierType):
        name = " ".join(node.type.names)
        return SCALARS.get(name, name)
    return f"{node.type.name}_t"  # a struct by its tag


def is_const(node: c_ast.Node) -> bool:
    return "const" in (getattr(node, "quals", None) or ())


def parameters(function: c_ast.FuncDecl) -> str:
    given = function.args.params if function.args else []
    named = [(p.name, rust_type(p.type)) for p in given]
    return ", ".join(f"{name}: {kind}" for name, kind in named if kind != "c_void")


def result(function: c_ast.FuncDecl) -> str:
    kind = rust_type(function.type)
    return "" if kind == "c_void" else f" -> {kind}"


# ---- Text ----


def constants(nodes: list[c_ast.Node]) -> Iterator[str]:
    for name, value in numbers():
        kind = "usize" if name.endswith("_SIZE") or name.endswith("_BYTES") else "i32"
        yield f"pub const {name}: {kind} = {value};"
    header = re.search(r'^#define FLASH_TUNING_HEADER "(.*)"$', HEADER.read_text(), re.MULTILINE)
    yield f'pub const FLASH_TUNING_HEADER: &str = "{header[1]}";'
    for node in nodes:
        if isinstance(node.type, c_ast.Enum):
            kind = "u32" if node.type.name in OF_BITS else "i32"
            for item in node.type.values.enumerators:
                yield f"pub const {item.name}: {kind} = {item.value.value};"


def structs_and_names(nodes: list[c_ast.Node]) -> Iterator[str]:
    for node in nodes:
        if not isinstance(node, c_ast.Typedef):
            continue
        of = node.type.type if isinstance(node.type, c_ast.TypeDecl) else None
        if not isinstance(of, c_ast.Struct):
            yield f"pub type {node.name} = {rust_type(node.type)};"
        elif of.decls:
            members = {m.name: rust_type(m.type) for m in of.decls}
            yield struct(node.name, members)
        else:
            yield f"#[repr(C)]\npub struct {node.name} {{\n    _opaque: [u8; 0],\n}}\n"


def struct(name: str, members: dict[str, str]) -> str:
    """Returns a struct with the value that its ..._INIT macro has: zero, but for its size."""
    lines = "".join(f"    pub {member}: {kind},\n" for member, kind in members.items())
    zeros = "unsafe { core::mem::zeroed() }"
    if "struct_size" in members:
        zeros = f"Self {{ struct_size: size_of::<Self>() as u32, ..{zeros} }}"
    return (
        f"#[repr(C)]\n#[derive(Clone, Copy)]\npub struct {name} {{\n{lines}}}\n"
        f"impl {name} {{\n    pub const INIT: Self = {zeros};\n}}\n"
    )


def functions(nodes: list[c_ast.Node]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node.type, c_ast.FuncDecl):
            yield f"    pub fn {node.name}({parameters(node.type)}){result(node.type)};"


def layout() -> Iterator[str]:
    """Yields assertions of what a C compiler makes of the header."""
    for line in LAYOUT.read_text().splitlines():
        if member := re.match(r"(flash_\w+)\.(\w+) offset (\d+)", line):
            kind, name, offset = member.groups()
            yield f"    assert!(offset_of!({kind}, {name}) == {offset});"
        elif size := re.match(r"(flash_\w+) size (\d+)", line):
            yield f"    assert!(size_of::<{size[1]}>() == {size[2]});"


def text() -> str:
    nodes = parsed()
    exported = "\n".join(functions(nodes))
    checks = "\n".join(layout())
    parts = (
        HEAD,
        "\n".join(constants(nodes)),
        "\n".join(structs_and_names(nodes)),
        f'extern "C" {{\n{exported}\n}}',
        f"const _: () = {{\n{checks}\n}};",
    )
    return "\n".join(f"{part.rstrip()}\n" for part in parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    made = text()
    if not parser.parse_args().check:
        BINDINGS.write_text(made)
        return 0
    if BINDINGS.read_text() == made:
        return 0
    print(f"{BINDINGS.relative_to(ROOT)} is stale: run python bindings/rust/generate.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
