"""The demo that trains, as a test: the losses of both attentions, what is drawn, and refusals."""

from __future__ import annotations

import re

import pytest
from program import assert_refusal, environment_without, run_demo

torch = pytest.importorskip("torch")

from train import app, curve, training  # noqa: E402
from train.gpt import Sizes, flash_attention, torchs_attention  # noqa: E402
from train.text import VOCABULARY, batch_of, library_source, text_of  # noqa: E402

SIZES = Sizes(VOCABULARY, context=16, width=32, n_layers=2, n_heads=2)


def _runs() -> list[training.Run]:
    attentions = {"ours": flash_attention, "torch": torchs_attention}
    return training.make_runs(SIZES, attentions, seed=1)


def test_a_model_learns_as_with_torchs_attention() -> None:
    runs, text = _runs(), library_source(20_000)
    for n_done in training.train(runs, text, 30, batch=4, seed=2):
        ours, theirs = (run.losses for run in runs)
        assert len(ours) == len(theirs) == n_done
        assert abs(ours[-1] - theirs[-1]) < 1e-3
    assert ours[-1] < ours[0] - 0.3
    for x, y in zip(*(run.model.parameters() for run in runs)):
        torch.testing.assert_close(x, y, atol=1e-2, rtol=0)


def test_gradients_are_those_of_torchs_attention() -> None:
    runs = _runs()
    ids = torch.randint(VOCABULARY, (3, 16), generator=torch.Generator().manual_seed(3))
    for run in runs:
        run.model(ids).square().mean().backward()
    for x, y in zip(*(run.model.parameters() for run in runs)):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-6)


def test_the_text_is_python() -> None:
    text = library_source(1000)
    assert len(text) == 1000 and int(text.max()) < VOCABULARY
    found = text_of(text)
    generator = torch.Generator().manual_seed(0)
    batch = batch_of(text, 5, 8, generator)
    assert batch.shape == (5, 9) and all(text_of(x) in found for x in batch)


def test_curves_are_drawn() -> None:
    drawn = curve.drawn({"ours": [4.0, 3.0, 2.0], "theirs": [4.0, 3.5, 2.0]}, rows=5)
    lines = drawn.splitlines()
    assert [line[7:] for line in lines[:5]] == ["*", " .", " o", "", "  *"]
    assert lines[0].startswith(" 4.00 |") and lines[4].startswith(" 2.00 |")
    assert lines[-1].split() == ["o", "ours,", ".", "theirs,", "*", "both"]
    assert curve.smoothed([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]


def test_losses_that_are_apart_are_a_failure(capsys: pytest.CaptureFixture) -> None:
    first, second = _runs()
    first.losses, second.losses = [4.0, 2.0], [4.0, 2.5]
    assert not app._agree([first, second])
    assert capsys.readouterr().out.startswith("FAILED: ")
    second.losses[1] = 2.01
    assert app._agree([first, second])


def test_the_program() -> None:
    result = run_demo("train", "--steps", "3", "--batch", "2", "--context", "8")
    assert result.returncode == 0, result.stderr
    assert "OK: the losses differ by" in result.stdout
    steps = re.findall(r"(?m)^ +(\d+) +(\d\.\d+) +\d+ +(\d\.\d+) +\d+$", result.stdout)
    assert [int(x[0]) for x in steps] == [1, 2, 3]
    assert all(abs(float(x[1]) - float(x[2])) <= 1e-3 for x in steps)
    assert "  | " in result.stdout


def test_plot(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "losses.png"
    options = ("--steps", "2", "--batch", "1", "--context", "4", "--plot", str(file))
    assert run_demo("train", *options).returncode == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_refusals(tmp_path) -> None:
    result = run_demo("train", "--steps", "0")
    assert result.returncode == 2 and "--steps is 0; at least 1 is needed" in result.stderr
    hidden = environment_without("torch", tmp_path)
    assert_refusal(run_demo("train", **hidden), "torch", "pip install torch")
