"""Which files include or import which, and which kernel families a file of kernels/ is part of."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from codegen.emit import with_kernels  # noqa: E402
from codegen.facts import FAMILIES, Arch  # noqa: E402
from codegen.selection import select  # noqa: E402
from codegen.wrappers import files_of  # noqa: E402

C_SUFFIXES = {".c", ".h", ".cu", ".cuh"}
C_FOLDERS = ("include", "src", "kernels", "bindings/python/extension", "tests/c", "tests/kernels")
C_FOLDERS += ("tests/amx", "tools/amx")
PYTHON_FOLDERS = ("codegen", "bindings/python/flashattn", "tests", "tools", "examples/tests")
# Where a quoted include is looked for after the includer's own folder.
INCLUDE_FOLDERS = ("include", "src", "kernels", ".", "tests/c", "tests/kernels", "tools/amx")
# Where an absolute import is looked for.
IMPORT_FOLDERS = (".", "bindings/python", "tests", "tests/python", "tests/gpu", "tests/codegen")
IMPORT_FOLDERS += ("tools", "tests/abi")


@cache
def sources() -> frozenset[str]:
    """Returns the paths of all C, CUDA and Python files of the folders above."""
    found = [p for f in C_FOLDERS for p in (ROOT / f).rglob("*") if p.suffix in C_SUFFIXES]
    found += [p for f in PYTHON_FOLDERS for p in (ROOT / f).rglob("*.py")]
    return frozenset(p.relative_to(ROOT).as_posix() for p in found)


def _first_there(name: str, folders: tuple[str, ...]) -> str | None:
    paths = (PurePosixPath(folder, name).as_posix() for folder in folders)
    return next((path for path in paths if path in sources()), None)


def _headers_of_text(text: str, folder: str) -> set[str]:
    names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, flags=re.MULTILINE)
    return {p for name in names if (p := _first_there(name, (folder, *INCLUDE_FOLDERS)))}


def _modules_of(path: str, text: str) -> set[str]:
    """Returns the files that a Python file imports."""
    package = PurePosixPath(path).parent
    names: set[tuple[str, tuple[str, ...]]] = set()  # dotted name, where it is looked for
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {(alias.name, IMPORT_FOLDERS) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = [package, *package.parents][node.level - 1] if node.level else None
            folders = (str(above),) if above else IMPORT_FOLDERS
            base = f"{node.module}." if node.module else ""
            names |= {(base + alias.name, folders) for alias in node.names}
            names |= {(node.module, folders)} if node.module else set()
    found = (
        _first_there(name.replace(".", "/") + ending, folders)
        for name, folders in names
        for ending in (".py", "/__init__.py")
    )
    return {path for path in found if path}


@cache
def uses(path: str) -> frozenset[str]:
    """Returns the files that a file includes or imports."""
    text = (ROOT / path).read_text()
    if path.endswith(".py"):
        return frozenset(_modules_of(path, text))
    return frozenset(_headers_of_text(text, str(PurePosixPath(path).parent)))


def unit(path: str) -> str:
    """Returns the name of a header together with its source."""
    return path if path.endswith(".py") else re.sub(r"\.\w+$", "", path)


@cache
def _users(suffixes: frozenset[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in (path for path in sources() if PurePosixPath(path).suffix in suffixes):
        for used in uses(path):
            if unit(used) != unit(path):
                found.setdefault(unit(used), set()).add(path)
    return found


def users(path: str) -> set[str]:
    """Returns the files that include or import a file, or the header of a source."""
    language = {".py"} if path.endswith(".py") else C_SUFFIXES
    return _users(frozenset(language)).get(unit(path), set())


# ---- Kernel families ----


def _reached(headers: set[str]) -> set[str]:
    """Returns headers and all that they include."""
    found: set[str] = set()
    waiting = list(headers)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += uses(path)
    return found


def _entries() -> dict[Arch, set[str]]:
    """Returns the headers that the generated sources of each family's kernels include, and the CUDA
    sources that CMake compiles with them."""
    entries: dict[Arch, set[str]] = {arch: set() for arch in FAMILIES}
    for file in files_of(with_kernels(select("ship"))):
        for row in (*file.kernels, *file.served):
            entries[Arch(row.arch)] |= _headers_of_text(file.text, ".")
    sets = re.findall(r"set\(_sources_(\w+) ([^)]+)\)", (ROOT / "CMakeLists.txt").read_text())
    for name, files in sets:
        entries[Arch[name.upper()]].update(files.split())
    return entries


@cache
def _files_of_families() -> dict[Arch, set[str]]:
    return {arch: _reached(headers) for arch, headers in _entries().items()}


def families_of(path: str) -> set[Arch]:
    """Returns the families whose kernels are compiled with a file."""
    return {arch for arch, files in _files_of_families().items() if path in files}


def headers_of_micro_kernels() -> set[str]:
    """Returns the files that tests/kernels is compiled with, for one CPU family or another: CMake
    names its header."""
    families = {f"kernels/cpu/{family.name}.h" for family in FAMILIES.values()}
    own = {path for path in sources() if path.startswith("tests/kernels/")}
    return _reached(own | {path for path in families if path in sources()})
