"""The links of the repository's documents lead somewhere, and docs/README.md lists every page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from check_links import broken_links, links  # noqa: E402

PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *PAGES]


def ids(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_links_lead_somewhere(document: Path) -> None:
    assert broken_links(document) == []


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs/README.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert [ids(page) for page in PAGES if page not in listed | {index}] == []


def test_broken_links_of_markdown_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# One\n## Two words, `code`\n# One\n```\n# No heading\n```\n")
    page = tmp_path / "a.md"
    page.write_text(
        "# Here\n[a](b.md#one-1) [b](b.md#two-words-code) [c](#here) [d](https://example.org/x)\n"
        "[e](c.md) [f](b.md#three) [g](#there) [h](b.md#no-heading)\n```\n[i](nowhere.md)\n```\n"
    )
    assert broken_links(page) == ["c.md", "b.md#three", "#there", "b.md#no-heading"]


def test_broken_links_of_pages_are_found(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    page.write_text('<p id="x"><a href="#y"></a><img src="gone.png"><a href="a.html">')
    assert broken_links(page) == ["#y", "gone.png"]
