"""The batches of `bench-decode`: caches of one length, and lengths that are written, named or read
from a file.

64x1-8192                              64 caches, each of 1 to 8192 keys, drawn at random
63x1-500,32768                         63 short ones and a long one
60x1:1-8192,2048:2048,2048:4096        with queries of their own: 60 that decode, two chunks
skewed                                 a name of NAMED
@lengths.txt                           what the file has, one word or several per line
"""

from __future__ import annotations

import re
from pathlib import Path

from . import ragged
from .problem import BadInput
from .ragged import RaggedBatch

NAMED = {
    "ragged": "64x1-8192",
    "skewed": "63x1-500,32768",
    "mixed": "60x1:1-8192,2048:2048,2048:4096",
}
_KEYS_ALONE = re.compile(r"(\d+x)?([^:]*)", re.ASCII)


def uniform(batch: int, keys: int, queries: int) -> RaggedBatch:
    return RaggedBatch(f"{batch} x {keys}", [queries] * batch, [keys] * batch)


def is_uniform(batch: RaggedBatch) -> bool:
    """Whether all caches have one length."""
    return len(set(batch.lengths_k)) == 1 and not is_mixed(batch)


def is_mixed(batch: RaggedBatch) -> bool:
    """Whether sequences have different numbers of queries."""
    return len(set(batch.lengths_q)) > 1


def few_and_many(batch: RaggedBatch) -> tuple[list[int], list[int]]:
    """The sequences with the fewest queries of a mixed batch, and the others."""
    fewest = min(batch.lengths_q)
    numbers = range(len(batch.lengths_q))
    few = [b for b in numbers if batch.lengths_q[b] == fewest]
    return few, [b for b in numbers if batch.lengths_q[b] != fewest]


def parse(text: str, queries: int, seed: int) -> RaggedBatch:
    """The batch that --lengths describes; `queries` is what each sequence has of them where the
    text does not say. Raises BadInput, OSError."""
    words = _words(text)
    batch = ragged.parse(",".join(_with_queries(word, queries) for word in words), seed)
    return RaggedBatch(text, batch.lengths_q, batch.lengths_k)


def _words(text: str) -> list[str]:
    if not text.startswith("@"):
        return NAMED.get(text, text).split(",")
    lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
    words = " ".join(line.partition("#")[0] for line in lines).replace(",", " ").split()
    if not words:
        raise BadInput(f"--lengths {text}: the file has no lengths")
    return words


def _with_queries(word: str, queries: int) -> str:
    match = _KEYS_ALONE.fullmatch(word)
    return f"{match[1] or ''}{queries}:{match[2]}" if match else word
