"""Few kernels that stand for all of the set ship, for a test that compiles them and runs none."""

from __future__ import annotations

from functools import cache

from .config import Config
from .facts import FIELDS
from .sets import ship


def values_of(config: Config) -> set[tuple]:
    """Returns each value of a field that a configuration has, with its family and operation; d_head
    and d_head_v are one, because kernels where they differ have code of their own."""
    values = {field: getattr(config, field) for field in FIELDS}
    values["d_head"] = values["d_head"], values.pop("d_head_v")
    return {(config.arch, config.op, *value) for value in values.items()}


@cache
def values() -> tuple[Config, ...]:
    """Returns few of the shipped kernels, such that every value of a field that a family has in one
    kernel is in one of these too: every type, head dimension, class of features and tactic. None of
    them can be left out, and where there is a choice they are in few files, each of which takes its
    time for the headers."""
    candidates = {config: values_of(config) for config in sorted(ship())}
    missing = set().union(*candidates.values())
    chosen: list[Config] = []
    while missing:
        files = set(map(_file_of, chosen))
        best = max(
            candidates,
            key=lambda config: (len(candidates[config] & missing), _file_of(config) in files),
        )
        missing -= candidates.pop(best)
        chosen.append(best)
    return _without_superfluous(chosen)


def _without_superfluous(configs: list[Config]) -> tuple[Config, ...]:
    """Returns the configurations without those all of whose values others have."""
    needed = list(configs)
    for config in configs:
        others = [other for other in needed if other != config]
        if values_of(config) <= set().union(*map(values_of, others)):
            needed = others
    return tuple(needed)


def _file_of(config: Config) -> tuple:
    """Returns a key that is the same only for kernels of one file (cmake/cuda.cmake)."""
    fields = ("arch", "op", "dtype", "operand_dtype", "d_head", "d_head_v")
    return tuple(getattr(config, field) for field in fields)
