"""Compares the layout of the public header with the one that built clients rely on.

usage: check_layout.py flashattn.h layout.txt PROGRAM...   (the program that prints the layout)

layout.txt changes with FLASH_ABI_VERSION, or by lines added at the end of a struct.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path


def enumerators(header: str) -> set[str]:
    """Names in the header's anonymous enums."""
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    bodies = re.findall(r"\benum\s*\{(.*?)\}", code, flags=re.DOTALL)
    return {name for body in bodies for name in re.findall(r"\b(FLASH_\w+)\s*=", body)}


def main() -> int:
    header, golden = Path(sys.argv[1]).read_text(), Path(sys.argv[2]).read_text()
    printed = subprocess.run(sys.argv[3:], check=True, capture_output=True, text=True).stdout
    if printed != golden:
        sys.stdout.writelines(
            difflib.unified_diff(
                golden.splitlines(True), printed.splitlines(True), "layout.txt", "this build"
            )
        )
        return 1
    names = enumerators(header)
    missing = sorted(names - set(re.findall(r"^(\w+) = ", golden, flags=re.MULTILINE)))
    if missing or not names:
        print(f"enumerators of the header that print_layout.c does not print: {missing}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
