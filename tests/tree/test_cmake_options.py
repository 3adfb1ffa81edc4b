"""Every option of CMakeLists.txt is documented."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/install.md", "CONTRIBUTING.md")


def test_every_option_has_a_line_in_a_table() -> None:
    text = (ROOT / "CMakeLists.txt").read_text()
    options = set(re.findall(r"^option\((FLASH_\w+)", text, flags=re.MULTILINE))
    options |= set(re.findall(r"^set\((FLASH_\w+) .*CACHE", text, flags=re.MULTILINE))
    assert {"FLASH_CUDA", "FLASH_KERNELS", "FLASH_STATIC", "FLASH_COMPILED_KERNELS"} <= options
    pages = "".join((ROOT / page).read_text() for page in PAGES)
    assert options - set(re.findall(r"^\| `(FLASH_\w+)=", pages, flags=re.MULTILINE)) == set()
