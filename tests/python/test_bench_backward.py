"""`flashattn bench-backward` prints a table of gradients, beside torch's where it is installed."""

from __future__ import annotations

import importlib.util

import pytest
from flashattn.cli import main

SMALL = ["bench-backward", "--seqlen", "32,48", "--heads", "2", "--d-head", "16", "--runs", "2"]


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if "selected (" in line or "torch (" in line]


def test_a_table(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main([*SMALL, "--causal", "--heads-kv", "1"]) == 0
    text = capsys.readouterr().out
    assert "backward: batch 1, as many queries as keys, heads 2/1, d_head 16, causal" in " ".join(
        text.split()
    )
    has_torch = importlib.util.find_spec("torch") is not None
    assert len(rows(text)) == (8 if has_torch else 4)
    assert ("x torch" in text) == has_torch


def test_a_type_and_a_problem_that_torch_does_not_have(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main([*SMALL, "--dtype", "FP16", "--softcap", "2", "--window", "4", "0"]) == 0
    found = rows(capsys.readouterr().out)
    assert len(found) == 2 and all("selected (FP16)" in row for row in found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--runs", "0"], "--runs is 0: at least 1"),
        (["--heads", "3", "--heads-kv", "2"], "n_heads is 3: not a multiple of n_heads_kv, 2"),
    ],
)
def test_refusals(capsys, options: list[str], words: str) -> None:
    assert main([*SMALL, *options]) == 2
    assert words in capsys.readouterr().err
