"""The library exports what the public header and those of the handlers for XLA declare, all of it
and nothing else.

usage: check_exports.py flashattn.h xla_backward.h xla_forward.h libflashattn.so|libflashattn.a
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def declared(header: str) -> set[str]:
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    return set(re.findall(r"^FLASH_API\b[^;(]*?\b(\w+)\(", code, flags=re.MULTILINE))


def exported(library: str) -> set[str]:
    """Returns the symbols that a program can see: dynamic ones, or global ones of an archive."""
    kind = "--extern-only" if library.endswith(".a") else "--dynamic"
    command = ["nm", kind, "--defined-only", "--format=posix", library]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [line.split() for line in lines if len(line.split()) > 1]
    return {name.split("@")[0] for name, symbol_type, *_ in rows if symbol_type != "A"}


def main() -> int:
    *headers, path = sys.argv[1:]
    header = {name for text in headers for name in declared(Path(text).read_text())}
    library = exported(path)
    for name in sorted(header - library):
        print(f"{name} is declared in a header and not exported")
    for name in sorted(library - header):
        print(f"{name} is exported and not declared in a header")
    print(f"{len(header)} functions declared, {len(library)} symbols exported")
    return 0 if header == library and header else 1


if __name__ == "__main__":
    sys.exit(main())
