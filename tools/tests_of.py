#!/usr/bin/env python3
"""Names the tests of source files, one a line:

    unit NAME           a test in C, as ctest calls it
    python FILE [ROWS]  a file of tests in Python; ROWS: an expression of pytest for its -k
    gpu FILE [ROWS]     the same on a machine with a GPU

usage: tests_of.py FILE...

The tests of a file are those that include or import it, those of its name, the walks over the rows
of a kernel's families, and those of the table TOLD. A file without any of the first three has the
tests of the nearest files that use it.
"""

from __future__ import annotations

import re
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath

from source_graph import (
    FAMILIES,
    ROOT,
    Arch,
    families_of,
    headers_of_micro_kernels,
    sources,
    unit,
    users,
)

Tests = set[str]

# What neither names nor includes say, by patterns of paths: tests that call the library as programs
# do, and tests of more files than they include.
_WHOLE_CALLS = """
    tests/c/kernels.c tests/c/test_executor.c tests/c/test_threads.c
    tests/python/test_few_rows.py tests/python/test_random_problems.py
    tests/python/test_split_keys.py tests/python/test_threads.py tests/python/test_workspace.py
"""
_DEVICE_CALLS = "tests/gpu/test_gpu_table.py tests/gpu/test_gpu_streams.py"
TOLD = {
    "src/api/*": "tests/c/test_arguments.c tests/python/test_refusals.py",
    "src/api/device.c": "tests/python/test_cuda_absent.py tests/python/test_environment.py",
    "src/arguments/*": """
        tests/c/test_arguments.c tests/c/test_bounds.c tests/c/test_types.c
        tests/python/test_refusals.py tests/python/test_overlaps.py
    """,
    "src/arguments/lengths.*": "tests/python/test_leftpad.py",
    "src/arguments/quant.*": "tests/python/test_e4m3_refusals.py",
    "src/config/format.c": "tests/c/test_config_text.c tests/python/test_config.py",
    "src/config/parse.c": "tests/c/test_config_text.c tests/python/test_config.py",
    "src/config/words.*": "tests/c/test_config_text.c tests/python/test_config.py",
    "src/cpu/*": _WHOLE_CALLS,
    "src/cpu/*_row*": "tests/python/test_backward_call.py",
    "kernels/cpu/*backward*": "tests/python/test_backward_call.py",
    "kernels/cpu/gradient_rows.h": "tests/python/test_backward_call.py",
    "kernels/cpu/row_sum.*": "tests/python/test_backward_call.py",
    "kernels/common/gradients.h": "tests/python/test_backward_call.py",
    "src/cpu/family.c": "tests/c/test_select.c tests/c/test_table.c",
    "src/cuda/*/*sm?0*.c": """
        tests/c/test_select_families.c tests/codegen/test_codegen_agrees_with_c.py
    """,
    "src/cuda/decode/*_mla.c": "tests/c/test_select_mla.c",
    "src/cuda/absent.c": "tests/python/test_cuda_absent.py tests/c/test_multiprocessors.c",
    "src/cuda/mixed.c": "tests/c/test_parts.c",
    "src/cuda/decode/plan_*": """
        tests/c/test_select_sm80_decode.c tests/c/test_select_sm90_decode.c
    """,
    "src/cuda/decode/query_rows.*": "tests/c/test_select_sm80_decode.c tests/c/test_select_mla.c",
    "src/cuda/decode/v_in_k.*": "tests/c/test_select_mla.c",
    "src/cuda/decode/wide_heads.*": "tests/c/test_select_wide.c",
    "src/cuda/*/launch_*": _DEVICE_CALLS,
    "src/cuda/*/merge_*": _DEVICE_CALLS + " tests/gpu/test_gpu_decode.py",
    "src/cuda/runtime/*": "tests/gpu/test_gpu_streams.py tests/gpu/test_gpu_devices.py",
    "src/xla/*": """
        tests/python/test_jax.py tests/python/test_jax_refusals.py tests/gpu/test_gpu_jax.py
    """,
    "bindings/python/flashattn/_jax/*": """
        tests/python/test_jax.py tests/python/test_jax_refusals.py
        tests/python/test_jax_transforms.py tests/python/test_jax_gradients.py
    """,
    "bindings/python/extension/*": "tests/python/test_torch_extension.py",
    "bindings/python/flashattn/__main__.py": "tests/python/test_command_line.py",
    "codegen/__init__.py": "tests/codegen/test_codegen_command_line.py",
}

GPU_WALKS = ("tests/gpu/test_gpu_table.py", "tests/gpu/test_gpu_caches.py")

# The sources that a file of tests may be named for, by the tests' folder.
SUBJECTS = {
    "tests/c/": "src/ kernels/common/ kernels/cpu/",
    "tests/codegen/": "codegen/",
    "tests/gpu/": "src/cuda/ kernels/common/ kernels/sm80/ kernels/sm90/",
    "tests/python/": "src/ kernels/cpu/ bindings/",
}
# Words of its name before what it is named for, and the sources that it may then be of.
QUALIFIERS = {
    "codegen": "codegen/",
    "cpu": "src/cpu/ kernels/cpu/",
    "gpu": "src/cuda/ kernels/",
    "select": "src/cpu/ src/cuda/",
    "torch": "bindings/",
}


# ---- Tests ----


@cache
def test_files() -> tuple[str, ...]:
    return tuple(sorted(p for p in sources() if re.search(r"^tests/.*/test_\w+\.(c|py)$", p)))


@cache
def _ctest_names() -> dict[str, list[str]]:
    """Returns the names of ctest by the sources of programs that tests/c and others declare."""
    found: dict[str, list[str]] = {}
    for path in (ROOT / "tests").rglob("CMakeLists.txt"):
        text, folder = path.read_text(), path.parent.relative_to(ROOT).as_posix()
        names: dict[str, list[str]] = {}
        for name, program in re.findall(r"add_test\(NAME (\w+) COMMAND (\w+)", text):
            names.setdefault(program, []).append(name)
        for program, files in re.findall(r"flash_add_program\((\w+) ([\w. ]+)\)", text):
            for file in files.split():
                found.setdefault(f"{folder}/{file}", []).extend(names.get(program, []))
    return found


def _test_of_file(path: str) -> Tests:
    """Returns the lines for a file of tests: none, if it is only part of some."""
    if path in _ctest_names():
        return {f"unit {name}" for name in _ctest_names()[path]}
    if path not in test_files():
        return set()
    if path.endswith(".c"):
        return {f"unit {PurePosixPath(path).stem[len('test_') :]}"}
    return {f"gpu {path}" if path.startswith("tests/gpu/") else f"python {path}"}


# ---- Rules ----


def _subject(test: str, path: str) -> str:
    """Returns the name of what a test is for, as far as it may be for this file."""
    folder = next((folder for folder in SUBJECTS if test.startswith(folder)), None)
    if folder is None or not path.startswith(tuple(SUBJECTS[folder].split())):
        return ""
    name = PurePosixPath(test).stem[len("test_") :]
    while (word := name.partition("_")[0]) in QUALIFIERS and word != name:
        if not path.startswith(tuple(QUALIFIERS[word].split())):
            return ""
        name = name[len(word) + 1 :]
    return name


def _of_its_name(path: str) -> Tests:
    name = re.sub(r"^_+|_(arguments|cpu|cuda)$", "", PurePosixPath(path).stem)
    fits = re.compile(rf"{re.escape(name)}(_|$)")
    named = [file for file in test_files() if fits.match(_subject(file, path))]
    return {test for file in named for test in _test_of_file(file)}


def _that_use_it(path: str) -> Tests:
    """Returns the tests that include or import a file, in C also by a header of their own."""
    direct = users(path)
    shared = {header for header in direct if re.match(r"tests/.*\.h$", header)}
    files = direct.union(*(users(header) for header in shared))
    return {test for file in files for test in _test_of_file(file)}


def _rows(families: set[Arch]) -> str:
    """Returns the expression that chooses the rows of families among names of tests; "" where none
    does, because the short forms of SM80's rows do not name it."""
    if Arch.SM80 in families:
        return ""
    parts = []
    for name in sorted(family.name for family in families):
        others = sorted(a.name for a in Arch if a.name.startswith(f"{name}_") and a not in families)
        parts.append(" and not ".join([name, *others]))
    return " or ".join(parts)


def _walks(path: str) -> Tests:
    """Returns the walks over the table's rows that are compiled with a file."""
    families, found = families_of(path), set()
    on_cpu = {family for family in families if FAMILIES[family].on_cpu}
    if on_cpu:
        found |= {"unit table", f"python tests/python/test_table.py {_rows(on_cpu)}"}
    for file in GPU_WALKS if families - on_cpu else ():
        found.add(f"gpu {file} {_rows(families - on_cpu)}".rstrip())
    if path in headers_of_micro_kernels():
        found |= {"unit micro_kernels"}
    return found if path.startswith("kernels/") else set()


def _told(path: str) -> Tests:
    return {
        test
        for pattern, tests in TOLD.items()
        if fnmatch(path, pattern)
        for file in tests.split()
        for test in _test_of_file(file)
    }


def _nearest(path: str) -> Tests:
    """Returns the tests of a file; if it has none, those of the nearest files that use it."""
    seen, level = {unit(path)}, {path}
    while level:
        found = {
            test
            for file in level
            for rule in (_test_of_file, _of_its_name, _that_use_it, _walks)
            for test in rule(file)
        }
        if found:
            return found
        above = {user for file in level for user in users(file)}
        level = {user for user in above if unit(user) not in seen}
        seen |= {unit(user) for user in level}
    return set()


def tests_of(path: str) -> Tests:
    """Returns the lines of a file's tests."""
    return _nearest(path) | _told(path)


def main(files: list[str]) -> int:
    found: Tests = set()
    for file in files:
        path = Path(file).resolve()
        if not path.is_file():
            print(f"there is no file '{file}'", file=sys.stderr)
            return 2
        own = tests_of(path.relative_to(ROOT).as_posix()) if path.is_relative_to(ROOT) else set()
        if not own:
            print(f"no test is known for '{file}'", file=sys.stderr)
            return 2
        found |= own
    print("\n".join(sorted(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
