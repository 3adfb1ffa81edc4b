"""The chat as a program over a tiny random model, whose file is written here, and what the README's
picture of the demo says, compared with what the program says today.
"""

from __future__ import annotations

import re
from pathlib import Path
from subprocess import CompletedProcess

import demo_support
import numpy as np
import pytest
from chat import report
from chat.app import PROMPT
from chat.checkpoint import load_model
from chat.dialogue import SYSTEM, question
from chat_support import OF_FILE, model_file, tiny_model
from program import EXAMPLES, assert_refusal, run_demo

RECORD = EXAMPLES.parent / "docs/demo/chat.txt"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny-random.gguf"
    path.write_bytes(model_file(tiny_model(0, OF_FILE)))
    return path


@pytest.fixture(scope="module")
def run(path: Path) -> CompletedProcess[str]:
    """On the CPU, with the prompt of the record."""
    arguments = "--model", str(path), "--tokens", "24", "--lengths", "16"
    return run_demo("chat", *arguments, CUDA_VISIBLE_DEVICES="")


def test_the_file_has_the_model(path: Path) -> None:
    model, tokenizer = load_model(path)
    expected = tiny_model(0, OF_FILE)
    assert model.sizes == expected.sizes
    for weights in ("norm", "embedding"):
        np.testing.assert_array_equal(getattr(model, weights), getattr(expected, weights))
    for layer, of in zip(model.layers, expected.layers):
        for name, weights in vars(of).items():
            np.testing.assert_array_equal(getattr(layer, name), weights)
    text = f"system\n{SYSTEM}\nuser\n{PROMPT}\nassistant\n"
    assert tokenizer.decode(question(tokenizer, PROMPT), skip_special_tokens=True) == text


def test_the_program_answers_as_float64_attention_does(run: CompletedProcess[str]) -> None:
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("model   tiny-random: 2 layers, 3 query and 1 K/V heads of 64\n")
    same = re.search(r"\nOK: (\d+) of (\d+) tokens are those of float64", run.stdout)
    assert same and same[1] == same[2] and int(same[1]) > 1
    assert run.stdout.splitlines()[-1].split()[0] == "16"


def test_the_context_is_as_long_as_the_file_says(path: Path) -> None:
    result = run_demo("chat", "Why?", "--model", str(path), "--tokens", "1000")
    assert_refusal(result, "24 fit into the model's context of 1024")


# ---- The record ----


def fixed_words(printed: str) -> list[str]:
    """Returns the words of a run without what may differ from run to run: the answer, numbers, the
    machine and its kernels, and columns for torch. Lines of times count once."""
    printed = re.sub(r"(?ms)^(> [^\n]*\n).*?^(?=\d+ tokens of prompt)", r"\1", printed)
    lines: list[str] = []
    for line in printed.splitlines():
        line = re.sub(r"^(model|device) .*?(:.*)?$", r"\1 #\2", line)
        line = re.sub(r"(libflashattn's) \w+ (kernels, in) \w+", r"\1 # \2 #", line)
        line = "# times" if re.match(r"\d+ {2}", line) else line
        line = re.sub(r"\b\d[\d.]*(e-?\d+)?\b", "#", line)
        line = " ".join(line.replace(" torch", "").split())
        if line and line != "".join(lines[-1:]):
            lines.append(line)
    return " ".join(lines).split()  # lines are broken where numbers let them


def test_the_record_says_what_the_program_says(run: CompletedProcess[str]) -> None:
    """It is to be recorded again where the program was changed, as docs/demo/draw.py says."""
    record = fixed_words(RECORD.read_text())
    assert record == fixed_words(run.stdout)
    assert len(record) > 100


# ---- Terminals ----


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> int:
    """The columns of a terminal."""
    monkeypatch.setattr(demo_support, "terminal_columns", lambda: 40)
    return 40


def test_words_are_not_broken_by_a_terminal(narrow: int, capsys) -> None:
    text = "a bb ccc " * 30 + "\n\n  x\n" + "y" * 90 + " end"
    words = demo_support.Words()
    for i in range(0, len(text), 5):
        words.add(text[i : i + 5])
    words.end()
    printed = capsys.readouterr().out
    assert printed.split() == text.split()
    assert all(
        len(line.rstrip()) <= narrow or " " not in line.strip() for line in printed.split("\n")
    )
    assert max(map(len, printed.split("\n"))) > narrow - 5


def test_text_is_as_wide_as_the_terminal(narrow: int, capsys) -> None:
    demo_support.print_wrapped("one two three " * 20)
    demo_support.print_labelled("model", "one two three " * 20)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= narrow for line in lines) and lines[-1].startswith("        ")


def test_tables_fit_a_terminal_of_80_columns(capsys) -> None:
    report.print_times_header(["flashattn", "numpy", "torch"])
    report.print_times(4096, [0.19, 12.0, 0.3], [1e-4, 2e-4, 1e-2])
    lines = capsys.readouterr().out.splitlines()
    assert [len(line) <= 80 for line in lines[-3:]] == [True] * 3
