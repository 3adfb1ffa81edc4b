"""python3 -m codegen: what it prints, writes and refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from codegen.__main__ import main
from codegen.config import kernel_name
from codegen.emit import with_kernels
from codegen.facts import Arch
from codegen.selection import select
from codegen.sets import ship, tune
from codegen.short_form import format_config, parse_config
from codegen.wrappers import files_of


@pytest.fixture
def run(capsys):
    """Runs main() with these arguments; returns (exit code, lines printed, lines of errors)."""

    def call(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err.splitlines()

    return call


def stems_of(configs):
    """Returns the names of the files of kernels, without their suffix."""
    return sorted(Path(file.name).stem for file in files_of(with_kernels(configs)))


def names_in_table(directory):
    lines = (directory / "kernel_table.c").read_text().splitlines()
    return [line.strip(' ",') for line in lines if line.startswith('     "')]


def test_list_prints_short_forms_and_names(run):
    code, lines, errors = run("--list", "--kernels", "tune")
    assert (code, errors) == (0, [])
    listed = [line.rsplit(maxsplit=1) for line in lines]
    assert [(parse_config(text), name) for text, name in listed] == [
        (config, kernel_name(config)) for config in sorted(tune())
    ]


def test_list_holds_the_ship_set_by_default(run):
    _, lines, _ = run("--list")
    assert [parse_config(line.rsplit(maxsplit=1)[0]) for line in lines] == sorted(ship())


def test_list_does_not_ask_for_families(run):
    assert run("--list", "--kernels", "progression", "--families", "reference")[0] == 0


def test_filter_is_a_synonym_and_adds_up(run):
    listed = run("--list", "--filter", "tune dtype=BF16")
    assert len(listed[1]) == 40
    assert run("--list", "--kernels", "tune", "--filter", "dtype=BF16") == listed


def test_out_writes_the_ship_set(run, tmp_path):
    code, lines, errors = run("--out", tmp_path / "generated")
    assert (code, errors) == (0, [])
    written = stems_of(ship())
    assert lines[:-1] == [f"+ {name}" for name in written]
    n = len(ship())
    assert lines[-1] == f"codegen: {n} kernels in the table, {len(written)} files added, 0 removed"
    assert names_in_table(tmp_path / "generated") == [kernel_name(c) for c in sorted(ship())]


def test_out_leaves_other_families_out_and_says_what_it_removes(run, tmp_path):
    run("--out", tmp_path)
    code, lines, _ = run("--out", tmp_path, "--families", "reference,avx2")
    gone = [config for config in ship() if config.arch not in (Arch.REFERENCE, Arch.AVX2)]
    assert code == 0
    assert lines[:-1] == [f"- {name}" for name in stems_of(gone)]
    left = select("ship arch=REFERENCE,AVX2")
    assert names_in_table(tmp_path) == [kernel_name(config) for config in left]
    assert run("--out", tmp_path, "--families", "reference,avx2")[1] == [
        f"codegen: {len(left)} kernels in the table, 0 files added, 0 removed"
    ]


@pytest.mark.parametrize("selection", ["tune", "arch=REFERENCE dtype=FP32"])
def test_the_reference_kernels_are_always_in_the_table(run, tmp_path, selection):
    families = ["--families", "reference,avx2,avx512"]
    assert run("--out", tmp_path, "--kernels", selection, *families)[0] == 0
    assert names_in_table(tmp_path) == [kernel_name(c) for c in select("ship arch=REFERENCE")]


def test_a_selection_of_one_family(run, tmp_path):
    run("--out", tmp_path, "--kernels", "dtype=BF16 arch=AVX512")
    expected = select("ship arch=REFERENCE") + select("dtype=BF16 arch=AVX512")
    assert names_in_table(tmp_path) == [kernel_name(config) for config in expected]


def test_the_committed_manifest_is_fresh(run, root, monkeypatch):
    monkeypatch.chdir(root)
    code, _, errors = run("--check", "codegen/ship.manifest")
    assert code == 0, "\n".join(errors)


def test_manifest_round_trip(run, tmp_path):
    manifest = tmp_path / "ship.manifest"
    assert run("--manifest", manifest) == (0, [], [])
    assert manifest.read_text().splitlines() == [
        f"{kernel_name(config)}  {format_config(config)}" for config in sorted(ship())
    ]
    assert run("--check", manifest) == (0, [], [])


def swap_first_lines(text):
    first, second, *rest = text.splitlines(keepends=True)
    return "".join([second, first, *rest])


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda text: text.split("\n", 1)[1], "+ flash_fwd_reference_fp16"),
        (lambda text: text + "flash_fwd_gone\n", "- flash_fwd_gone"),
        (swap_first_lines, "the lines are in another order"),
        (lambda text: text.rstrip("\n"), "the lines are in another order or form"),
        (lambda text: "", "+ flash_fwd_reference_fp16"),
    ],
)
def test_a_stale_manifest_is_refused_with_the_command_that_refreshes_it(
    run, tmp_path, damage, told
):
    manifest = tmp_path / "ship.manifest"
    run("--manifest", manifest)
    manifest.write_text(damage(manifest.read_text()))
    code, lines, errors = run("--check", manifest)
    assert (code, lines) == (1, [])
    assert errors[0] == f"{manifest} is stale:"
    assert errors[1].startswith(told)
    assert errors[-1] == f"    python3 -m codegen --manifest {manifest}"


def test_a_missing_manifest_is_stale(run, tmp_path):
    code, _, errors = run("--check", tmp_path / "none")
    assert code == 1
    assert len([line for line in errors if line.startswith("+ ")]) == len(ship())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--list", "--kernels", "head=1"], "codegen: unknown field 'head'"),
        (["--list", "--kernels", "dtype=FP8"], "codegen: unknown value 'FP8'"),
        (["--list", "--kernels", "fast"], "codegen: unknown set 'fast'"),
        (["--list", "--kernels", ""], "codegen: nothing selected"),
        (["--list", "--kernels", "B_r=77"], "codegen: no configuration passes 'B_r=77'"),
        (["--out", "OUT", "--kernels", "dtype=FP8"], "codegen: unknown value 'FP8'"),
        (
            ["--out", "OUT", "--families", "avx9"],
            "codegen: no kernels of family 'avx9'; there are those of reference, avx2, ",
        ),
        (["--out", "OUT", "--families", ""], "codegen: none of the selected kernels"),
        (
            ["--out", "OUT", "--kernels", "tune", "--families", "avx2"],
            "codegen: none of the selected kernels is of the families of this build",
        ),
        (["--out", "FILE/below"], "codegen: FILE/below"),
        (["--manifest", "FILE/below"], "codegen: FILE"),
    ],
)
def test_mistakes_take_one_line_and_exit_code_2(run, tmp_path, monkeypatch, arguments, error):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("in the way")
    code, lines, errors = run(*arguments)
    assert (code, lines, len(errors)) == (2, [], 1)
    assert errors[0].startswith(error)
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--list", "--out", "OUT"],
        ["--manifest", "FILE", "--kernels", "tune"],
        ["--check", "FILE", "--filter", "tune"],
        ["--fast"],
    ],
)
def test_arguments_that_do_not_go_together(run, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    code, lines, errors = run(*arguments)
    assert (code, lines) == (2, [])
    assert errors[-1].startswith("codegen: error: ")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_enough_is_no_error(root):
    """This is `python3 -m codegen --list --kernels all | head`, run as a module."""
    with subprocess.Popen(
        [sys.executable, "-m", "codegen", "--list", "--kernels", "all"],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        errors = process.stderr.read()
        assert (process.wait(), errors) == (0, b"")
