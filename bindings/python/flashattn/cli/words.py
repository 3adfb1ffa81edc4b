"""Numbers in the sentences that commands print."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def count(n: int, noun: str, plural: str | None = None) -> str:
    """ "1 kernel", "2 kernels"; the plural is the noun with an s, or given."""
    return f"{n} {noun if n == 1 else plural or noun + 's'}"


def choice(words: Sequence[str]) -> str:
    """ ".png, .svg or .pdf": of two or more."""
    return f"{', '.join(words[:-1])} or {words[-1]}"


def size(n_bytes: int) -> str:
    """ "1.5 GiB": in the largest unit of which there is one."""
    power = min((max(n_bytes, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{n_bytes / 1024**power:.{1 if power else 0}f} {_UNITS[power]}"
