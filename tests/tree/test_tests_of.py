"""./dev test --of FILE: every source has tests, and they are those that are there."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import tests_of as finder  # noqa: E402
from source_graph import sources  # noqa: E402

from codegen.facts import Arch  # noqa: E402
from codegen.selection import select  # noqa: E402
from codegen.short_form import format_config  # noqa: E402

PRODUCT = ("bindings/", "codegen/", "kernels/", "src/")


def names_of_ctest() -> set[str]:
    """Returns all words of the files that declare tests."""
    texts = [path.read_text() for path in (ROOT / "tests").rglob("CMakeLists.txt")]
    return set(re.findall(r"\w+", "\n".join(texts)))


def test_every_source_has_tests_that_are_there() -> None:
    files, known = [path for path in sources() if path.startswith(PRODUCT)], names_of_ctest()
    assert len(files) > 500
    for path in files:
        tests = [line.split(" ", 2) for line in finder.tests_of(path)]
        assert tests, path
        for kind, test, *_ in tests:
            assert test in known if kind == "unit" else (ROOT / test).is_file(), (path, test)


def test_what_is_told_is_there() -> None:
    for pattern, tests in finder.TOLD.items():
        assert any(fnmatch(path, pattern) for path in sources()), pattern
        assert set(tests.split()) <= sources(), pattern


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("src/cpu/countdown.c", "unit countdown"),  # which includes its header
        ("src/cpu/cut.c", "unit cpu_plan"),  # of the file that uses it
        ("src/arguments/paging.c", "python tests/python/test_paging_refusals.py"),  # of its name
        ("src/arguments/latent_arguments.c", "python tests/python/test_latent.py"),
        ("src/arguments/paging.c", "unit arguments"),  # which is told
        ("kernels/cpu/neon_bf16.h", "python tests/python/test_table.py NEON_BF16"),
        ("kernels/cpu/neon.h", "python tests/python/test_table.py NEON and not NEON_BF16"),
        ("kernels/cpu/neon_vectors.h", "python tests/python/test_table.py NEON or NEON_BF16"),
        ("kernels/cpu/avx2.h", "unit micro_kernels"),
        ("kernels/sm90/decode_combine.cu", "gpu tests/gpu/test_gpu_table.py SM90_DECODE"),
        ("kernels/sm80/forward/mask.cuh", "gpu tests/gpu/test_gpu_caches.py"),
        ("kernels/common/combine.cu", "gpu tests/gpu/test_gpu_combine.py"),
        ("codegen/covers.py", "python tests/codegen/test_codegen_covers.py"),
        ("bindings/python/flashattn/cli/rates.py", "python tests/python/test_bench.py"),
        ("tests/c/test_bounds.c", "unit bounds"),
        ("tests/python/pairwise.py", "python tests/python/test_pairwise.py"),
        ("tests/python/test_bias.py", "python tests/python/test_bias.py"),
    ],
)
def test_tests_are_found_by_each_rule(path: str, test: str) -> None:
    assert test in finder.tests_of(path)


def test_short_forms_name_all_families_but_one() -> None:
    """By these words pytest chooses the rows of families."""
    unnamed = {c.arch for c in select("ship") if not format_config(c).startswith(Arch(c.arch).name)}
    assert unnamed == {Arch.SM80}


def test_a_namesake_in_another_part_is_no_test() -> None:
    assert "unit tensor" in finder.tests_of("src/arguments/tensor.c")
    assert "unit tensor" not in finder.tests_of("bindings/python/extension/tensor.c")
    of_sm90 = finder.tests_of("kernels/sm90/softmax/bias.cuh")
    assert "python tests/python/test_bias.py" not in of_sm90


def listed(*files: str) -> subprocess.CompletedProcess[str]:
    command = [ROOT / "dev", "test", "--list", "--of", *files]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_tests_of_files_are_listed_once() -> None:
    lines = listed("src/cpu/countdown.c", "src/cpu/countdown.h").stdout.splitlines()
    assert lines == sorted(finder.tests_of("src/cpu/countdown.c"))


@pytest.mark.parametrize("file", ["src/gone.c", "src/cpu", "LICENSE", "/bin/sh"])
def test_a_file_without_tests_is_refused_by_name(file: str) -> None:
    result = listed(file)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"'{file}'" in result.stderr
