"""Each function is in the symbol node of the version that brought it, so that a program which needs
it names that version.

usage: check_nodes.py flashattn.h previous/flashattn.h libflashattn.so
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from check_exports import declared

Version = tuple[int, int]


def version(header: str) -> Version:
    major, minor = (
        re.search(rf"#define FLASH_VERSION_{part} (\d+)", header) for part in ("MAJOR", "MINOR")
    )
    assert major and minor
    return int(major[1]), int(minor[1])


def nodes(library: str) -> dict[str, Version]:
    """Returns the version that each exported function's node names."""
    command = ["nm", "--dynamic", "--defined-only", "--with-symbol-versions", library]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.findall(r"\b(flash_\w+)@@FLASH_(\d+)\.(\d+)$", text, flags=re.MULTILINE)
    return {name: (int(major), int(minor)) for name, major, minor in found}


def problems(header: str, previous: str, library: str) -> list[str]:
    found, own, former = nodes(library), version(header), version(previous)
    unversioned = [f"{name} is in no node" for name in declared(header) - set(found)]
    moved = [
        f"{name} is in {found[name]}, and was released with {former}"
        for name in declared(previous) & set(found)
        if found[name] > former
    ]
    misplaced = [
        f"{name} is in {found[name]}, and comes with {own}"
        for name in set(found) - declared(previous)
        if found[name] != own
    ]
    return sorted(unversioned + moved + misplaced)


def main() -> int:
    header, previous = (Path(argument).read_text() for argument in sys.argv[1:3])
    found = problems(header, previous, sys.argv[3])
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
