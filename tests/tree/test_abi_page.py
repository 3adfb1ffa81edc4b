"""docs/abi.md and the public header name the same experimental things."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = (ROOT / "include/flashattn.h").read_text()
TABLE = (ROOT / "docs/abi.md").read_text().split("| experimental |")[1].split("\n\n")[0]
ROWS = [row for row in TABLE.splitlines() if "`" in row]


def test_what_is_experimental_is_in_the_header() -> None:
    names = re.findall(r"`(\w+?)(?:_\.\.\.)?(?:\(\))?`", TABLE)
    assert len(names) > 10 and [name for name in names if name not in HEADER] == []


def test_the_header_marks_each() -> None:
    convention = len(re.findall('"experimental"', HEADER))
    marks = re.findall(r"\bexperimental\b(?!\")", HEADER, flags=re.IGNORECASE)
    # The type of latent tokens is marked at the enumerator, too.
    assert convention == 1 and len(marks) == len(ROWS) + 1
