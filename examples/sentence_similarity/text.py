"""The demo's text: passages of well-known works, and for most a query that means the same in other
words. texts.txt explains its form.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TEXTS = Path(__file__).with_name("texts.txt")


@dataclass(frozen=True)
class Passage:
    title: str
    text: str
    query: str | None  # a sentence whose nearest passage should be this one


def read_passages(path: Path = TEXTS) -> list[Passage]:
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    blocks: list[list[str]] = []
    for line in lines:
        if not line or line.startswith("#"):
            continue
        if line.startswith("="):
            blocks.append([])
        blocks[-1].append(line)
    return [parse_passage(block) for block in blocks]


def parse_passage(block: list[str]) -> Passage:
    title, *body = block
    queries = [line[1:].strip() for line in body if line.startswith("?")]
    text = " ".join(line for line in body if not line.startswith("?"))
    return Passage(title[1:].strip(), text, queries[0] if queries else None)
