"""Files that the documents and the comments of the sources name are there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from codegen.emit import generated_files  # noqa: E402

FOLDERS = ".ci bindings cmake codegen docs examples include kernels src tests".split()
SUFFIX = r"\.(?:c|h|cu|cuh|hpp|py|md|cmake|sh)\b"

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted(
    path
    for folder in ("include", "src", "kernels")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".c", ".h", ".hpp", ".cu", ".cuh"}
)

# What the generator writes into a build; a kernel's own file is never named.
GENERATED = set(generated_files([]))


def ids(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# ---- Documents: paths from the root ----


def paths_of_document(text: str) -> list[str]:
    """Words that begin with a folder of the tree, and in backticks also file names without one.
    A path with a <placeholder> in it stands for no file."""
    folders = "|".join(map(re.escape, FOLDERS))
    words = re.findall(rf"(?<![\w./<>-])((?:{folders})/[\w./*<>-]*)", text)
    words += re.findall(rf"`([\w-]+{SUFFIX})`", text)
    return [word.rstrip(".") for word in words if "<" not in word]


def is_in_the_tree(path: str) -> bool:
    return path in GENERATED or any(ROOT.glob(path))


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_documents_name_files_that_are_there(document: Path) -> None:
    paths = paths_of_document(document.read_text())
    assert [path for path in paths if not is_in_the_tree(path)] == []


# ---- Comments: paths from the file's own folder, one above it, that of its name (tiled.h: tiled/),
# ---- or where includes begin


def paths_of_comments(text: str) -> list[str]:
    comments = re.findall(r"/\*.*?\*/|//[^\n]*", text, flags=re.DOTALL)
    return re.findall(rf"(?<![<\w./-])([\w./-]+{SUFFIX})", "\n".join(comments))


def is_near(path: str, source: Path) -> bool:
    above = [folder for folder in source.parents if folder.is_relative_to(ROOT)]
    roots = [ROOT / folder for folder in ("include", "kernels", "src")]
    begins = [*above, source.with_suffix(""), *roots]
    return path in GENERATED or any((folder / path).is_file() for folder in begins)


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_comments_name_files_that_are_there(source: Path) -> None:
    paths = paths_of_comments(source.read_text())
    assert [path for path in paths if not is_near(path, source)] == []


# ---- The rules themselves ----


def test_stale_paths_are_found() -> None:
    text = "See `src/gone.c`, src/cpu/gone/, `gone.h`, kernels/*/gone.h and docs/abi.md."
    stale = [path for path in paths_of_document(text) if not is_in_the_tree(path)]
    assert stale == ["src/gone.c", "src/cpu/gone/", "kernels/*/gone.h", "gone.h"]


def test_stale_paths_in_comments_are_found() -> None:
    text = '#include "gone.h"\n/* As in plan.h,\n * cpu_plan.h and src/cpu_plan.c. */ // cpu/way.h'
    stale = [p for p in paths_of_comments(text) if not is_near(p, ROOT / "src/cpu/call.c")]
    assert stale == ["cpu_plan.h", "src/cpu_plan.c"]
