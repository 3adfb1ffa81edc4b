#!/usr/bin/env python3
"""Pastes what the documents tell a user to type, block by block in the order of the text, into one
shell on a bare Debian (fresh_machine.sh), whose user has sudo: a command that is missing, wrong or
out of order ends it.

usage: tests/pasted.py [--quick] [--print] [OPTION of fresh_machine.sh...]

  --quick   build the reference kernels alone, which are too slow for the benchmarks: in minutes
  --print   print the session, and run nothing

Every command is either pasted or in NOT_PASTED, with the reason; tests/tree/test_pasted.py keeps it
so. Programs in the documents are run by tests/tree/test_examples.py.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PASTED = (
    "README.md",
    "docs/install.md",
    "docs/guides/c-engines.md",
    "docs/guides/python.md",
)
COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ )*"
    r"(?:\./dev|build/\S+|codegen/\S+|cc|cd|cmake|cpack|export|flashattn|pip|python3?|sudo)"
    r"(?: |$)(?!tuning 1)"
)
NOT_PASTED = {
    r"--device cuda|bench-(decode|chunks)|flashattn tune|results/measure": "needs a GPU",
    r"(tests|benchmarks)/gpu": "needs a GPU",
    r"\./dev (demo|test|build)": "fresh_machine.sh runs ./dev by itself",
    r"\./dev bench|flashattn bench --runs|examples/chat": "takes minutes of an idle machine",
    r"examples/engine|main\.c engine\.c|\./engine ": "examples/tests builds and runs it",
    r"pip install transformers": "takes gigabytes",
    r"pip install \. ": "is pip install '.[cli]' with less",
    r"torch_calls\.py|(backward|dropout)_cpu\.py|hf_walk\.py": "needs torch, which takes gigabytes",
    r"jax_host\.py": "needs JAX",
    r"build/described": "needs nvcc",
    r"test_kernels": "a developer's build has it: the step unit of ./dev test",
    r"codegen --list": "tests/codegen runs it",
    r'FLASH_KERNELS="ship': "builds take minutes, and the tests make others of a few rows",
    r"sglang": "tests/engines has SGLang",
    r"llama-cpp-python|ggml install|GGML_BACKEND_PATH": "tests/engines has llama.cpp",
    r"pywhispercpp": "tests/engines has whisper.cpp",
    r"FLASHATTN_TUNING": "names a file that a GPU makes",
}

BEFORE = """\
printf '#!/bin/sh\\nexec "$@"\\n' >/usr/local/bin/sudo && chmod +x /usr/local/bin/sudo
export DEBIAN_FRONTEND=noninteractive
rm -rf /root/pasted && cp -r /root/flashattn /root/pasted && cd /root/pasted && rm -rf build
"""
INPUTS = """\
python -c "import numpy as np
for name in 'qkv': np.save(name, np.ones((1, 64, 2, 16), np.float32))"
"""


def indented_blocks(text: str) -> Iterator[list[str]]:
    """The lines of each indented block outside of fences."""
    for paragraph in re.sub(r"(?ms)^```.*?^```$", "", text).split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        if all(line.startswith("    ") for line in lines):
            yield [line[4:].rstrip() for line in lines]


def commands(text: str) -> Iterator[str]:
    """The commands of a document: blocks whose first line is one. A backslash joins lines."""
    for lines in indented_blocks(text):
        joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
        if COMMAND.match(joined):
            yield from joined.split("\n")


def why_not_pasted(command: str) -> str | None:
    command = command.partition("  #")[0]
    return next((why for words, why in NOT_PASTED.items() if re.search(words, command)), None)


def program(language: str) -> str:
    return re.search(rf"(?ms)^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text())[1]


def cmake_snippets() -> Iterator[str]:
    """The ways to use the library from CMake."""
    for block in indented_blocks((ROOT / "docs/install.md").read_text()):
        if "target_link_libraries" in block[-1]:
            yield "\n".join(block).replace("/path/to/flashattn", "$ENV{HERE}")


def surroundings(command: str) -> tuple[str, str]:
    """What the session does before and after a command, so that it means what it says."""
    if command.startswith("cc engine.c"):
        return (
            f"cat >engine.c <<'END'\n{program('c')}END\n",
            f"./{'engine' if '-o engine' in command else 'a.out'}\n",
        )
    if command.startswith("flashattn forward"):
        return f"rm -f o.npy\n{INPUTS}", ""
    return "", ""


def quick(command: str) -> str:
    """The same with few kernels; nothing of what they are too slow for."""
    if command.startswith("flashattn bench"):
        return ""
    if command.startswith("cmake -B"):
        return command + " -DFLASH_KERNELS='ship arch=REFERENCE'"
    if command.startswith("pip install"):
        setting = "--config-settings=cmake.define.FLASH_KERNELS='ship arch=REFERENCE'"
        return re.sub(r"( +#|$)", rf" {setting}\1", command, count=1)
    return command


def session(is_quick: bool) -> str:
    parts = ["set -e", BEFORE]
    for document in PASTED:
        for command in commands((ROOT / document).read_text()):
            if why_not_pasted(command):
                continue
            before, after = surroundings(command)
            pasted = quick(command) if is_quick else command
            parts += [before, f"echo {shlex.quote(f'{document}: {pasted}')}", pasted, after]
    for i, snippet in enumerate(cmake_snippets()):
        folder = f"/tmp/cmake-{i}"
        options = "-DFLASH_KERNELS='ship arch=REFERENCE'" if is_quick else ""
        parts.append(
            f"mkdir -p {folder} && cp engine.c {folder} && export HERE=$PWD\n"
            f"cat >{folder}/CMakeLists.txt <<'END'\ncmake_minimum_required(VERSION 3.25)\n"
            f"project(engine C)\nadd_executable(engine engine.c)\n{snippet}\nEND\n"
            f"cmake -G Ninja -S {folder} -B {folder}/build {options}\n"
            f"cmake --build {folder}/build && {folder}/build/engine"
        )
    return "\n".join(part for part in parts if part) + "\necho 'all was pasted'\n"


def main(arguments: list[str]) -> int:
    if "-h" in arguments or "--help" in arguments:
        print(__doc__)
        return 0
    text = session("--quick" in arguments)
    if "--print" in arguments:
        print(text)
        return 0
    options = [argument for argument in arguments if argument != "--quick"]
    return subprocess.run([ROOT / "tests/fresh_machine.sh", *options, text]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
