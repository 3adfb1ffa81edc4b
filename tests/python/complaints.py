"""What every command does with bad input."""

from __future__ import annotations


def assert_complains(capsys, code: int, *parts: str) -> None:
    """One line on standard error, with these parts, nothing else, and exit code 2."""
    output = capsys.readouterr()
    assert code == 2
    assert output.out == ""
    lines = output.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("flashattn: "), output.err
    for part in parts:
        assert part in lines[0]
