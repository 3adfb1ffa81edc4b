"""The dynamic section of the library: its name, what it needs, how it is bound.

usage: check_dynamic.py flashattn.h libflashattn.so
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# The C library, under the names of its files.
ALLOWED = re.compile(r"(libc|libm|libpthread|ld-linux-[\w-]+)\.so\.\d+")


def readelf(option: str, library: str) -> str:
    command = ["readelf", "--wide", option, library]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def problems(header: str, library: str) -> list[str]:
    dynamic = readelf("--dynamic", library)
    segments = readelf("--segments", library)
    abi = re.search(r"#define FLASH_ABI_VERSION (\d+)", header)
    found = []
    soname = re.search(r"\(SONAME\).*\[(.+)\]", dynamic)
    expected = f"libflashattn.so.{abi[1] if abi else '?'}"
    if soname is None or soname[1] != expected:
        found.append(f"soname is {soname and soname[1]}: expected {expected}")
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    found += [f"needs {name}" for name in needed if not ALLOWED.fullmatch(name)]
    if not needed:
        found.append("needs nothing, not even the C library")
    if re.search(r"\((RPATH|RUNPATH|TEXTREL)\)", dynamic):
        found.append("has a search path or text relocations")
    if not re.search(r"\bNOW\b|BIND_NOW", dynamic):
        found.append("binds lazily")
    if "NODELETE" in dynamic:
        found.append("cannot be unloaded")
    if "STATIC_TLS" in dynamic:
        found.append("uses static TLS, which dlopen may have no room for")
    if re.search(r"GNU_STACK.*\bRWE\b", segments):
        found.append("wants an executable stack")
    return found


def main() -> int:
    found = problems(Path(sys.argv[1]).read_text(), sys.argv[2])
    for problem in found:
        print(f"{sys.argv[2]}: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
