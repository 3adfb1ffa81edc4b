"""Few kernels that stand for all of the set ship, for a test that compiles them and runs none."""

from __future__ import annotations

from functools import cache

from .config import Config
from .facts import FIELDS
from .sets import ship


def values_of(config: Config) -> set[tuple]:
    """Returns each value of a field that a configuration has, with its family."""
    return {(config.arch, field, getattr(config, field)) for field in FIELDS}


@cache
def values() -> tuple[Config, ...]:
    """Returns few of the shipped kernels, such that every value of a field that a family has in one
    kernel is in one of these too: every type, head dimension, class of features and tactic."""
    candidates = {config: values_of(config) for config in sorted(ship())}
    missing = set().union(*candidates.values())
    chosen = []
    while missing:
        best = max(candidates, key=lambda config: len(candidates[config] & missing))
        missing -= candidates.pop(best)
        chosen.append(best)
    return tuple(chosen)
