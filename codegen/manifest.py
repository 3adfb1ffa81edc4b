"""The committed manifest of the ship set: a review shows which kernels a change adds or drops."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .config import Config, kernel_name
from .short_form import format_config


def refresh_command(path: Path) -> str:
    return f"python3 -m codegen --manifest {path}"


def manifest_text(configs: Iterable[Config]) -> str:
    """Returns one line per kernel, ascending."""
    lines = [f"{kernel_name(config)}  {format_config(config)}" for config in sorted(configs)]
    return "".join(f"{line}\n" for line in lines)


def stale_lines(path: Path, configs: Iterable[Config]) -> list[str]:
    """Returns what a refresh would change, as '+ line' and '- line'; [] if nothing."""
    text = manifest_text(configs)
    committed = path.read_text(encoding="utf-8") if path.is_file() else ""
    if committed == text:
        return []
    old, new = committed.splitlines(), text.splitlines()
    changes = [f"- {line}" for line in old if line not in new]
    changes += [f"+ {line}" for line in new if line not in old]
    return changes or ["the lines are in another order or form"]
