"""Who may include whom: the table of docs/architecture.md."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PUBLIC = r"flashattn\.h"
GENERATED = r"config_facts\.h"
COMMON = rf"common/\w+\.h|{PUBLIC}"
# Also of device code: what the CUDA families share.
DEVICE_COMMON = rf"{COMMON}|common/(\w+/)?\w+\.cuh"
# What src/ sees of a kernel family: how its kernels are called, and its whole-call functions.
KERNEL_INTERFACES = r"\w+/(\w+_kernel|combine)\.h"

# The rooms of kernels/sm90: all may include what lies outside of them, and load/ the schedule's
# interface.
SM90_SHARED = r"sm90/(sm90_kernel\.h|(derive|tile|fragments|block_state)\.cuh)"
SM90_SCHEDULE = r"sm90/schedule/schedule\.cuh"


def sm90_room(*rooms: str) -> str:
    """What the first of the rooms may include: itself and the others."""
    return rf"{DEVICE_COMMON}|{SM90_SHARED}|sm90/({'|'.join(rooms)})/\w+\.cuh"


# Folder: the quoted includes that its files may have, the first folder that fits a path. A plain
# name is of the same folder.
RULES = {
    "include": r"(?!)",
    "kernels/common": DEVICE_COMMON,
    "kernels/cpu": rf"{COMMON}|cpu/(\w+/)?\w+\.h",
    "kernels/sm80": rf"{DEVICE_COMMON}|sm80/(\w+/)?\w+\.(h|cuh)",
    "kernels/sm90/ptx": rf"{DEVICE_COMMON}|sm90/sm90_kernel\.h",
    "kernels/sm90/schedule": sm90_room("schedule", "ptx"),
    "kernels/sm90/load": rf"{sm90_room('load', 'ptx')}|{SM90_SCHEDULE}",
    "kernels/sm90/softmax": sm90_room("softmax", "ptx"),
    "kernels/sm90/mma": sm90_room("mma", "softmax", "ptx"),
    "kernels/sm90/store": sm90_room("store", "mma", "softmax", "ptx"),
    # Puts the rooms together; block_state.cuh gives the schedule's state its memory.
    "kernels/sm90": rf"{DEVICE_COMMON}|{SM90_SCHEDULE}|sm90/schedule/state\.cuh"
    r"|sm90/((load|mma|softmax|store|ptx)/)?\w+\.(h|cuh)",
    "src": rf"{COMMON}|{GENERATED}|{KERNEL_INTERFACES}|\w+\.h",
    "examples": PUBLIC,
}
SUFFIXES = {".c", ".h", ".cu", ".cuh"}


def sources() -> list[Path]:
    folders = [ROOT / folder for folder in RULES if (ROOT / folder).exists()]
    files = {p for folder in folders for p in folder.rglob("*") if p.suffix in SUFFIXES}
    assert len(files) > 20
    return sorted(files)


def rule_of(path: str) -> str:
    folder = next(folder for folder in RULES if path.startswith(f"{folder}/"))
    return RULES[folder]


def violations(path: str, text: str) -> list[str]:
    quoted = re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, flags=re.MULTILINE)
    return [name for name in quoted if not re.fullmatch(rule_of(path), name)]


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_includes_follow_the_rule(path: Path) -> None:
    assert violations(path.relative_to(ROOT).as_posix(), path.read_text()) == []


@pytest.mark.parametrize(
    ("path", "include"),
    [
        ("kernels/cpu/x.h", "status.h"),
        ("kernels/cpu/x.h", "sm80/forward/tile.cuh"),
        ("kernels/sm80/x.cuh", "cpu/rows.h"),
        ("kernels/sm80/x.cuh", "sm90/tile.cuh"),
        ("kernels/sm90/x.cuh", "sm80/forward/tile.cuh"),
        ("kernels/sm90/x.cuh", "sm90/schedule/ragged.cuh"),
        ("kernels/sm90/load/x.cuh", "sm90/schedule/ranks.cuh"),
        ("kernels/sm90/load/x.cuh", "sm90/mma/products.cuh"),
        ("kernels/sm90/schedule/x.cuh", "sm90/load/kv.cuh"),
        ("kernels/sm90/softmax/x.cuh", "sm90/mma/products.cuh"),
        ("kernels/sm90/mma/x.cuh", "sm90/store/direct.cuh"),
        ("kernels/sm90/ptx/x.cuh", "sm90/tile.cuh"),
        ("kernels/common/x.h", "cpu/rows.h"),
        ("src/x.c", "cpu/rows.h"),
        ("src/x.c", "sm80/forward/mainloop.cuh"),
        ("src/x.c", "sm90/forward.cuh"),
        ("include/flashattn.h", "config.h"),
        ("examples/x.c", "config.h"),
    ],
)
def test_the_rule_refuses(path: str, include: str) -> None:
    assert violations(path, f'#include "{include}"\n') == [include]


def test_the_public_header_needs_the_c_library_alone() -> None:
    header = (ROOT / "include/flashattn.h").read_text()
    assert re.findall(r"#\s*include\s*[<\"](.+?)[>\"]", header) == ["stddef.h", "stdint.h"]


def imported(path: Path) -> set[str]:
    """Top-level packages that a Python file imports; its own package is ""."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("" if node.level else (node.module or "").split(".")[0])
    return names


@pytest.mark.skipif(sys.version_info < (3, 10), reason="sys.stdlib_module_names is of Python 3.10")
def test_codegen_imports_the_standard_library_alone() -> None:
    files = list((ROOT / "codegen").glob("*.py"))
    assert files
    for path in files:
        assert imported(path) <= sys.stdlib_module_names | {"", "codegen"}, path
