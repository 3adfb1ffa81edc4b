"""Every command in the documents is pasted by tests/pasted.py on a bare machine, or left out for a
reason that it gives."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PASTED = runpy.run_path(str(ROOT / "tests/pasted.py"))
FOLDERS = ("docs", "examples")
DOCUMENTS = [*ROOT.glob("*.md"), *(path for f in FOLDERS for path in (ROOT / f).rglob("*.md"))]


def commands() -> dict[str, list[str]]:
    names = {str(path.relative_to(ROOT)): path.read_text() for path in DOCUMENTS}
    return {name: list(PASTED["commands"](text)) for name, text in names.items()}


def test_every_command_is_pasted_or_left_out_for_a_reason() -> None:
    found = commands()
    assert sum(len(found[name]) for name in PASTED["PASTED"]) > 30
    assert all(found[name] for name in PASTED["PASTED"])
    assert len(list(PASTED["cmake_snippets"]())) == 2
    others = {name: lines for name, lines in found.items() if name not in PASTED["PASTED"]}
    left = [
        line for lines in others.values() for line in lines if not PASTED["why_not_pasted"](line)
    ]
    assert left == []


def test_every_reason_is_needed() -> None:
    lines = [line for lines in commands().values() for line in lines]
    for words in PASTED["NOT_PASTED"]:
        assert any(re.search(words, line) for line in lines), words


def test_the_session_is_bash() -> None:
    for is_quick in (False, True):
        session = PASTED["session"](is_quick)
        assert subprocess.run(["bash", "-n"], input=session, text=True).returncode == 0
        assert "\ncc engine.c" in session and "\n./engine\n" in session


def test_what_is_indented_and_no_command_is_no_command() -> None:
    text = "text\n\n    cd x\n    y \\\n        z\n\n    AVX512 (BF16)\n\n```\n    cd no\n```\n"
    assert list(PASTED["commands"](text)) == ["cd x", "y z"]
