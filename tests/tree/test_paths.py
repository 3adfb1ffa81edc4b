"""What documents and comments name exists: files, and constants of CPU kernels with values."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from codegen.emit import generated_files  # noqa: E402

FOLDERS = """
    .ci benchmarks bindings cmake codegen docs examples include kernels src tests tools
""".split()
SUFFIX = r"\.(?:c|h|cu|cuh|hpp|py|md|cmake|sh)\b"

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted(
    path
    for folder in ("include", "src", "kernels")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".c", ".h", ".hpp", ".cu", ".cuh"} and "vendor" not in path.parts
)

# Files that the generator writes into a build; those of single kernels are never named.
GENERATED = set(generated_files([]))


def ids(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# ---- Documents: paths from the root ----


def paths_of_document(text: str) -> list[str]:
    """Returns words that begin with a folder of the tree, and in backticks also file names without
    one. A path with a <placeholder> in it stands for no file."""
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


# ---- Documents: constants, as in `FEW_ROWS` (12)


def constants_of_document(text: str) -> list[tuple[str, str]]:
    return re.findall(r"`([A-Z][A-Z0-9_]+)` \((\d+)\)", text)


def is_a_constant(name: str, value: str) -> bool:
    tuning = (ROOT / "kernels/cpu/tuning.h").read_text()
    return re.search(rf"^ *{name} = {value}\b", tuning, re.MULTILINE) is not None


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_documents_have_the_values_of_constants(document: Path) -> None:
    constants = constants_of_document(document.read_text())
    assert [constant for constant in constants if not is_a_constant(*constant)] == []


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


def test_stale_values_are_found() -> None:
    text = "At least `SPLIT_ROW_KEYS` (16), `SPLIT_ROW_KEYS` (1) and `GONE` (16)."
    stale = [c for c in constants_of_document(text) if not is_a_constant(*c)]
    assert stale == [("SPLIT_ROW_KEYS", "1"), ("GONE", "16")]


def test_stale_paths_in_comments_are_found() -> None:
    text = '#include "gone.h"\n/* As in plan.h,\n * cpu_plan.h and src/cpu_plan.c. */ // cpu/way.h'
    stale = [p for p in paths_of_comments(text) if not is_near(p, ROOT / "src/cpu/call.c")]
    assert stale == ["cpu_plan.h", "src/cpu_plan.c"]
