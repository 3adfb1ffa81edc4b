"""Compiles the emitted C as the build does: C11, with every warning an error."""

import shutil
import subprocess

import pytest

COMPILERS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"no C compiler named {name}"),
    )
    for name in ("gcc", "clang")
]
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wmissing-prototypes", "-Werror")


def compile_c(compiler, root, sources, *arguments, include=()):
    """Runs the compiler over the sources; `include` comes before the library's own directories."""
    directories = [*include, root / "include", root, root / "src", root / "kernels"]
    command = [compiler, "-std=c11", *WARNINGS, *(f"-I{path}" for path in directories)]
    return subprocess.run(
        [*command, *map(str, sources), *map(str, arguments)], capture_output=True, text=True
    )
