"""Compares the library's binary interface with the committed baseline, by libabigail.

usage: check_abi.py [--update] flashattn.h libflashattn.so

The library needs debug information (CMAKE_BUILD_TYPE=RelWithDebInfo). Exits with 77, which CTest
shows as skipped, where the tools are not installed or the baseline is of another machine.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

BASELINE = Path(__file__).with_name("flashattn-x86_64.abi")
SKIPPED = 77


def dump(header: Path, library: str, out: Path) -> None:
    options = ["--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--no-elf-needed"]
    options += ["--exported-interfaces-only", "--drop-private-types"]
    options += ["--headers-dir", str(header.parent), "--out-file", str(out)]
    subprocess.run(["abidw", *options, library], check=True)
    # Where the sources lay is not part of the interface.
    out.write_text(re.sub(r" path='[^']*/", " path='", out.read_text()))


def has_debug_information(library: str) -> bool:
    command = ["readelf", "--wide", "--sections", library]
    sections = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return ".debug_info" in sections


def main() -> int:
    arguments = [a for a in sys.argv[1:] if a != "--update"]
    header, library = Path(arguments[0]), arguments[1]
    if shutil.which("abidw") is None or shutil.which("abidiff") is None:
        print("skipped: abidw and abidiff are not installed (Debian: abigail-tools)")
        return SKIPPED
    if platform.machine() != "x86_64":
        print(f"skipped: the baseline is of x86_64, this machine is {platform.machine()}")
        return SKIPPED
    if not has_debug_information(library):
        print("skipped: the library has no debug information (build type RelWithDebInfo)")
        return SKIPPED
    if "--update" in sys.argv:
        dump(header, library, BASELINE)
        print(f"wrote {BASELINE}")
        return 0
    command = ["abidiff", "--headers-dir2", str(header.parent), "--drop-private-types"]
    status = subprocess.run([*command, str(BASELINE), library]).returncode
    if status != 0:
        print("the binary interface changed; if it may, ./dev abi-baseline records it")
    return 1 if status != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
