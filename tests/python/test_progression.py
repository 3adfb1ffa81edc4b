"""`bench --set progression...` without a GPU: what it refuses, and its table of given times."""

from __future__ import annotations

import argparse
import io
import re
from collections.abc import Callable
from types import SimpleNamespace

import flashattn
import pytest
from flashattn.cli import bench, main, progression
from flashattn.cli.problem import BadInput
from flashattn.cli.timing import Contender
from rich.console import Console

PEERS = ("torch FA2", "torch cuDNN")
Table = list[list[str]]


def _measure(contenders: list, _seqlen: int, _batch: int, args: argparse.Namespace) -> list:
    """Step i takes i + 1 ms, and a peer one."""
    steps = [(contender, 1e-3 * (i + 1)) for i, contender in enumerate(contenders)]
    peers = () if args.no_peers else PEERS
    return [*steps, *((Contender(f"{p} (X)", None, None, is_peer=True), 1e-3) for p in peers)]


@pytest.fixture
def table_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Table]:
    """Returns the cells that `bench --set` prints, heads first, in a library with every step."""
    steps = [s for chosen in progression.SETS.values() for s in (*chosen.full, *chosen.causal)]
    held = [SimpleNamespace(config=flashattn.Config.parse(step)) for step in steps]
    monkeypatch.setattr(progression, "kernels", lambda: held)
    monkeypatch.setattr(progression.bench_cuda, "measure", _measure)
    monkeypatch.setattr(progression.device, "device_info", lambda _: SimpleNamespace(name="a GPU"))

    def run(name: str, *options: str) -> Table:
        parser = argparse.ArgumentParser()
        bench.add_parser(parser.add_subparsers())
        shape = ["--device", "cuda", "--seqlen", "512"]
        args = parser.parse_args(["bench", "--set", name, *shape, *options])
        output = io.StringIO()
        assert progression.run(Console(file=output, width=200), args) == 0
        rows = [line for line in output.getvalue().splitlines() if re.search("[│┃]", line)]
        return [[cell.strip() for cell in re.split("[│┃]", row)[1:-1]] for row in rows]

    return run


@pytest.mark.parametrize(
    ("name", "options", "peer", "n_steps"),
    [
        ("progression", [], "torch FA2", 7),
        ("progression_sm90", [], "torch cuDNN", 5),
        ("progression_sm90", ["--causal"], "torch cuDNN", 6),
    ],
)
def test_a_step_is_compared_with_the_one_before_and_with_the_peer(
    table_of: Callable[..., Table], name: str, options: list[str], peer: str, n_steps: int
) -> None:
    steps = progression.SETS[name].steps("--causal" in options)
    head, *rows = table_of(name, *options)
    assert head == ["seqlen", "step", "median ms", "TFLOP/s", "x step before", f"x {peer}"]
    assert [row[1] for row in rows] == [*steps, f"{peer} (X)"] and len(steps) == n_steps
    assert [row[4] for row in rows[:3]] == ["", "0.50", "0.67"] and rows[-1][4] == ""
    assert [row[5] for row in rows[:3]] == ["1.00", "0.50", "0.33"] and rows[-1][5] == "1.00"


def test_steps_without_peers(table_of: Callable[..., Table]) -> None:
    head, *rows = table_of("progression_sm90", "--no-peers")
    assert head[-1] == "x step before" and len(rows) == 5


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("progression", ["--causal"], "has steps for full attention alone"),
        ("progression_sm90", ["--all"], "no filters, --all or --plot"),
        ("progression_sm90", ["arch=SM90"], "no filters, --all or --plot"),
    ],
)
def test_options_that_do_not_fit(
    table_of: Callable[..., Table], name: str, options: list[str], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        table_of(name, *options)


def test_a_problem_that_no_step_serves(
    table_of: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progression.bench_cuda, "measure", lambda *_: [])
    with pytest.raises(BadInput, match="do not serve this problem"):
        table_of("progression_sm90")


@pytest.mark.parametrize("name", progression.SETS)
def test_a_library_without_the_steps(
    table_of: Callable[..., Table], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(progression, "kernels", list)
    with pytest.raises(BadInput, match=f'build it with -DFLASH_KERNELS="ship {name}"'):
        table_of(name)


@pytest.mark.parametrize("name", progression.SETS)
def test_it_compares_cuda_kernels(capsys: pytest.CaptureFixture, name: str) -> None:
    assert main(["bench", "--set", name]) == 2
    assert f"--set {name} compares CUDA kernels: add --device cuda" in capsys.readouterr().err


def test_other_sets_have_no_steps(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--set", "ship"])
    assert "invalid choice: 'ship'" in capsys.readouterr().err


@pytest.mark.parametrize("name", progression.SETS)
def test_steps_are_short_forms(name: str) -> None:
    steps = [*progression.SETS[name].full, *progression.SETS[name].causal]
    assert [str(flashattn.Config.parse(step)) for step in steps] == steps
