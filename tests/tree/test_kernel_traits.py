"""CUDA kernels ask named traits what follows from a type (kernels/common/operand.h), such as
converts<C>. They never compare the configuration's dtype, which does not say what is multiplied.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    path
    for folder in ("kernels/sm80", "kernels/sm90", "src/cuda")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".h", ".c", ".cuh", ".cu")
]
COMPARISON = re.compile(r"\b(?:C\.|c->|config->|config\.)dtype\s*(?:[=!]=|\?)")


def comparisons(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if COMPARISON.search(line)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_kernel_compares_dtype(path: Path) -> None:
    assert comparisons(path.read_text()) == []


@pytest.mark.parametrize(
    "line", ["if (C.dtype == FLASH_DTYPE_E4M3)", "c->dtype != x", "config->dtype ? 1 : 2"]
)
def test_a_comparison_is_found(line: str) -> None:
    assert comparisons(f"a;\n    {line}\n") == [line]


@pytest.mark.parametrize("line", ["dtype_size(C.dtype)", "p.q_dtype == FLASH_DTYPE_BF16"])
def test_other_uses_are_not(line: str) -> None:
    assert comparisons(line) == []
