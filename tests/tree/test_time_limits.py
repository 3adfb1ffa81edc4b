"""No test fails because a machine is slow: limits of time only end what hangs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".c", ".cc", ".cmake", ".cu", ".h", ".py", ".sh", ".txt"}
HANG = 3600  # seconds
LIMITS = (
    r"timeout[ =]+(\d+)",  # of subprocesses, ctest and libFuzzer
    r"TIMEOUT (\d+)",  # of CMake's tests
    r"\balarm\((\d+)",
    r"(?:CHILD_SECONDS|HANG|TIME_LIMIT) = (\d+)",
)
DEADLINE = re.compile(r"deadline=(?!None)")  # of hypothesis's examples


def sources() -> dict[str, str]:
    folders = (ROOT / "tests", ROOT / "examples/tests", ROOT / "tools")
    paths = [path for folder in folders for path in folder.rglob("*") if path.suffix in SUFFIXES]
    paths = [path for path in paths if path != Path(__file__).resolve()]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def test_limits_of_time_are_for_what_hangs() -> None:
    found = {
        (name, match[0]): int(match[1])
        for name, text in sources().items()
        for limit in LIMITS
        for match in re.finditer(limit, text)
    }
    assert len(found) > 4
    assert {where: n for where, n in found.items() if n < HANG} == {}


def test_no_example_of_hypothesis_has_a_deadline() -> None:
    assert [name for name, text in sources().items() if DEADLINE.search(text)] == []
    drawn = [name for name, text in sources().items() if re.search(r"(?m)^@given", text)]
    assert len(drawn) > 5
    without = re.compile(r"deadline=None|random_problems")  # the latter are settings
    for name in drawn:  # tests/codegen/conftest.py sets it for all of that folder
        assert name.startswith("tests/codegen/") or without.search(sources()[name]), name
