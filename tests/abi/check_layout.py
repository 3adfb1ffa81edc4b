"""Compares the layout of the public header with the one that built clients rely on.

usage: check_layout.py layout.txt PROGRAM...   (the program that prints the layout)

layout.txt changes with FLASH_ABI_VERSION, or by lines added at the end of a struct.
"""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path


def main() -> int:
    golden = Path(sys.argv[1]).read_text()
    printed = subprocess.run(sys.argv[2:], check=True, capture_output=True, text=True).stdout
    sys.stdout.writelines(
        difflib.unified_diff(
            golden.splitlines(True), printed.splitlines(True), "layout.txt", "this build"
        )
    )
    return int(printed != golden or not printed)


if __name__ == "__main__":
    sys.exit(main())
