"""Compiler launcher of kernels with wgmma: fails where ptxas had to help itself.

Its notes C7500 ... C7599 tell that wgmma instructions are serialised, that barriers were injected
among them, or that a change of the register count is ignored. They are information to ptxas, which
has no option that makes errors of them.
"""

from __future__ import annotations

import re
import subprocess
import sys

NOTE = re.compile(r"\(C75[0-9][0-9]\)")


def main(command: list[str]) -> int:
    compiled = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    sys.stdout.write(compiled.stdout)
    if compiled.returncode != 0 or not NOTE.search(compiled.stdout):
        return compiled.returncode
    print("error: notes C75xx of ptxas are refused for this kernel family")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
