"""A new operation enters through the steps of docs/adding-a-kernel.md, which are taken in a copy of
the sources (toy_operation.py). It breaks no test that walks over the kernel table.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toy_operation import ADDED, CHANGES

FOLDERS = ("bindings/python/extension", "cmake", "codegen", "include", "kernels", "src", "tests")

# Programs and tests that walk over the table, or look for rows in it.
WALKS_IN_C = (
    "smoke",
    "test_arguments",
    "test_config_text",
    "test_environment",
    "test_forward",
    "test_measure",
    "test_parts",
    "test_select",
    "test_shapes",
    "test_table",
    "test_tuning",
    "test_types",
)
WALKS_IN_PYTHON = (
    "test_arrays.py::test_config_by_object_and_by_short_form",
    "test_arrays.py::test_config_that_is_refused",
    "test_arrays.py::test_support_tells_the_truth",
    "test_command_line.py::test_info",
    "test_command_line.py::test_list",
    "test_config.py::test_lookup_says_why_not",
    "test_refusals.py::test_cuda_kernels_do_not_serve_the_cpu_device",
    "test_table.py::test_every_near_miss_is_answered",
    "test_table.py::test_every_row_is_found_by_its_configuration_and_its_short_form",
    "test_types.py::test_families_that_multiply_bf16_leave_a_q_of_fp32_to_others",
)
WALKS_OF_THE_GENERATOR = (
    "test_codegen_command_line.py::test_out_leaves_other_families_out_and_says_what_it_removes",
    "test_codegen_config.py::test_the_name_of_every_configuration_of_the_sets_tells_it_whole",
    "test_codegen_covers.py",
    "test_codegen_machine_code.py",
    "test_codegen_sets.py",
    "test_codegen_short_form.py::test_what_the_text_cannot_carry_is_refused",
)

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")


def take_the_steps(root: Path, copy: Path) -> None:
    """Copies the sources and takes the steps."""
    shutil.copy(root / "CMakeLists.txt", copy)
    for name in FOLDERS:
        shutil.copytree(root / name, copy / name)
    for path, changes in CHANGES.items():
        text = (copy / path).read_text()
        for old, new in changes:
            assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times"
            text = text.replace(old, new)
        (copy / path).write_text(text)
    for path, text in ADDED.items():
        (copy / path).write_text(text)


def run(*command: object, **variables: str) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env={**os.environ, **variables}
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def run_pytest(tests: list[Path], **variables: str) -> None:
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, **variables)


def build(copy: Path) -> Path:
    """Builds the copy with the kernels of the reference family and the programs in C, and returns
    the library."""
    options = ["-DFLASH_CUDA=OFF", "-DFLASH_KERNELS=ship arch=REFERENCE", "-DFLASH_STATIC=OFF"]
    options += ["-DFLASH_INSTALL=OFF", "-DFLASH_BUILD_TESTS=ON"]
    options += ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS=-O0 -g0"]
    folder = copy / "build"
    run("cmake", "-S", copy, "-B", folder, "-G", "Ninja", *options)
    run("cmake", "--build", folder, "--target", "flashattn", *WALKS_IN_C)
    return folder / "libflashattn.so"


def check_walks_in_c(folder: Path) -> None:
    names = "|".join(name.removeprefix("test_") for name in WALKS_IN_C)
    run("ctest", "--test-dir", folder, "--output-on-failure", "-R", f"^({names})$")


def check_walks_in_python(root: Path, **variables: str) -> None:
    run_pytest([root / "tests/python" / name for name in WALKS_IN_PYTHON], **variables)
    output = run(sys.executable, "-m", "flashattn", "check", "dtype=FP32", **variables)
    assert "REFERENCE (FP32" in output and "count" not in output


def test_an_operation_enters_by_the_documented_steps(root, tmp_path):
    take_the_steps(root, tmp_path)
    library = build(tmp_path)
    calls = Path(__file__).with_name("toy_operation_calls.py")
    variables = {"FLASHATTN_LIBRARY": str(library), "PYTHONPATH": str(root / "bindings/python")}
    for forced in ("", "REFERENCE count (FP32, any, 1)"):
        output = run(sys.executable, calls, **variables, FLASHATTN_CONFIG=forced)
        assert output == "counted\n"
    check_walks_in_c(library.parent)
    check_walks_in_python(root, **variables)


def test_an_operation_breaks_no_walk_of_the_generator(root, tmp_path):
    take_the_steps(root, tmp_path)
    tests = tmp_path / "tests/codegen"
    run_pytest([tests / name for name in WALKS_OF_THE_GENERATOR])


def test_the_page_names_each_file_of_the_steps(root):
    page = (root / "docs" / "adding-a-kernel.md").read_text()
    section = page.partition("\n## An operation\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([\w/]+\.\w+)`", section))
    changed = {path for path in CHANGES if path != "include/flashattn.h"}
    assert changed <= named
