"""What the public header declares: struct members and enumerators, as its text has them."""

from __future__ import annotations

import re


def without_comments(header: str) -> str:
    return re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)


def structs(header: str) -> dict[str, list[str]]:
    """Returns the members, in order, of each struct that is defined, by its type."""
    bodies = re.findall(
        r"typedef struct \w+ \{(.*?)\} (\w+);", without_comments(header), flags=re.DOTALL
    )
    return {name: re.findall(r"(\w+)(?:\[\w+\])?;", body) for body, name in bodies}


def other_types(header: str) -> list[str]:
    """Returns the types that are not structs: scalars, pointers, functions behind pointers."""
    code = without_comments(header)
    scalars = re.findall(r"^typedef (?:\w+ )+\**(\w+);", code, flags=re.MULTILINE)
    pointers = re.findall(r"^typedef [^;{]*?\(\*(\w+)\)", code, flags=re.MULTILINE)
    opaque = set(re.findall(r"^typedef struct \w+ (\w+);", code, flags=re.MULTILINE))
    return [name for name in (*scalars, *pointers) if name not in opaque]


def enumerators(header: str) -> list[str]:
    """Returns the enumerators, in order."""
    bodies = re.findall(r"\benum(?: \w+)? \{(.*?)\}", without_comments(header), flags=re.DOTALL)
    return [name for body in bodies for name in re.findall(r"\b(FLASH_\w+) *=", body)]


def numbers(header: str) -> list[str]:
    """Returns the macros that are numbers and part of the binary interface."""
    return re.findall(
        r"^#define (FLASH_ABI_VERSION|FLASH_\w+_SIZE) +\d+$", header, flags=re.MULTILINE
    )
