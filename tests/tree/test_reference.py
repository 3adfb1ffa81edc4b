"""The pages of the reference name all that the APIs have, and docstrings become what they mean."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs/reference"
sys.path.insert(0, str(ROOT / "bindings/python"))
AS_RST = runpy.run_path(str(REFERENCE / "docstrings.py"))["as_rst"]


def names(pattern: str, path: Path) -> set[str]:
    found = set(re.findall(pattern, path.read_text(), re.MULTILINE))
    assert found, f"nothing like {pattern}"
    return found


@pytest.mark.parametrize(
    "kind, pattern",
    [
        ("function", r"^FLASH_(?:API|INLINE_) [^(]*?(\w+)\("),
        ("struct", r"^\} (flash_\w+_t);"),
        ("enum", r"^enum (\w+) \{"),
        ("typedef", r"^typedef (?!struct flash_\w+ \{)[^;]*?\b\(?\*?(flash_\w+_t)\)?(?:;|\()"),
        ("define", r"^#define (FLASH_(?!API|INLINE_|SIZEOF_|NULL_)\w+)[ (]"),
    ],
)
def test_the_page_of_c_has_all_of_the_header(kind: str, pattern: str) -> None:
    header = names(pattern, ROOT / "include/flashattn.h")
    page = names(rf"^\.\. doxygen{kind}:: (\w+)$", REFERENCE / "c.rst")
    assert page == header


def test_the_page_of_c_begins_with_the_call() -> None:
    page = (REFERENCE / "c.rst").read_text()
    assert re.findall(r"doxygen\w+:: (\w+)", page)[0] == "flash_forward"


def test_the_page_of_cpp_has_all_types() -> None:
    header = names(r"^(?:class|struct) (\w+)[^;]*\{$", ROOT / "include/flashattn.hpp")
    page = names(r"doxygen(?:class|struct):: flashattn::(\w+)$", REFERENCE / "cpp.rst")
    assert page == header


def test_the_page_of_python_has_all_of_the_package() -> None:
    import flashattn

    page = re.findall(r"auto\w+:: (\w+)$", (REFERENCE / "python.rst").read_text(), re.MULTILINE)
    assert page[:2] == ["flashattn", "flash_attn_func"]
    assert sorted(page[1:]) == sorted(flashattn.__all__)


def test_what_the_pages_describe_can_be_read_without_the_library_and_torch(tmp_path: Path) -> None:
    pages = "".join(page.read_text() for page in REFERENCE.glob("python*.rst"))
    modules = re.findall(r"automodule:: (\S+)", pages)
    assert "flashattn.torch_ops" in modules
    program = "import stand_in; stand_in.install(); import " + ", ".join(modules)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REFERENCE), str(ROOT / "bindings/python")]),
        "FLASHATTN_LIBRARY": str(tmp_path / "there_is_none.so"),
    }
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_columns_become_fields_and_indented_lines_code() -> None:
    text = "Merges *all*.\n\n    a = `1`\n\n    b\n\nq, k  first\n      second\nout_  `x_`"
    assert AS_RST(text.split("\n"), is_function=True) == [
        "Merges \\*all\\*.",
        "",
        *[".. code-block:: python", "", "    a = `1`", "", "    b", ""],
        *[":param q, k: first second", ":param out\\_: `x_`", ""],
    ]
    assert AS_RST(["q  first"], is_function=False) == ["`q`", "    first", ""]
