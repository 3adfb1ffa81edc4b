"""Finds links of Markdown files and HTML pages that lead to a file that is not there, or to a
heading or anchor that its file does not have. Links to other machines are not followed.

    python3 tools/check_links.py README.md docs/*.md build/docs/*.html

prints a line for each, and ends with status 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote

ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)")


def without_code(markdown: str) -> str:
    """Returns the text without fenced blocks, whose lines are neither headings nor links."""
    return re.sub(r"^```.*?^```$", "", markdown, flags=re.DOTALL | re.MULTILINE)


def slug(heading: str) -> str:
    """Returns the anchor that GitHub gives to a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")


def anchors_of_markdown(text: str) -> set[str]:
    """Headings of the same name get -1, -2, ... appended from the second one on."""
    seen: dict[str, int] = {}
    anchors = set()
    for heading in re.findall(r"^#+ +(.+?) *#*$", without_code(text), re.MULTILINE):
        name = slug(heading)
        anchors.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return anchors


def anchors_of_html(text: str) -> set[str]:
    return set(map(unescape, re.findall(r"""\b(?:id|name)=["']([^"']+)["']""", text)))


@cache
def anchors(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    return anchors_of_markdown(text) if path.suffix == ".md" else anchors_of_html(text)


def links(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return re.findall(r"\]\(<?([^)\s>]+)>?\)", without_code(text))
    text = re.sub(r"<script\b.*?</script>", "", text, flags=re.DOTALL)
    return list(map(unescape, re.findall(r"""\b(?:href|src)=["']([^"']+)["']""", text)))


def leads_somewhere(path: Path, link: str) -> bool:
    name, _, anchor = unquote(link).partition("#")
    name = name.partition("?")[0]
    target = (path.parent / name).resolve() if name else path.resolve()
    if not target.exists():
        return False
    has_anchors = target.suffix in {".md", ".html"}
    return not anchor or not has_anchors or anchor in anchors(target)


def broken_links(path: Path) -> list[str]:
    local = [link for link in links(path) if not ELSEWHERE.match(link)]
    return [link for link in local if not leads_somewhere(path, link)]


def main(names: list[str]) -> int:
    broken = [(name, link) for name in names for link in broken_links(Path(name))]
    for name, link in broken:
        print(f"{name}: {link} leads nowhere")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
