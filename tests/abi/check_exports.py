"""The library exports what the header declares, all of it and nothing else.

usage: check_exports.py flashattn.h libflashattn.so
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
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", library]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    symbols = {line.split()[0].split("@")[0] for line in lines if line.split()[1] != "A"}
    return symbols


def main() -> int:
    header, library = declared(Path(sys.argv[1]).read_text()), exported(sys.argv[2])
    for name in sorted(header - library):
        print(f"{name} is declared in the header and not exported")
    for name in sorted(library - header):
        print(f"{name} is exported and not declared in the header")
    print(f"{len(header)} functions declared, {len(library)} symbols exported")
    return 0 if header == library and header else 1


if __name__ == "__main__":
    sys.exit(main())
