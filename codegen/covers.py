"""Few kernels that stand for all of the set ship, for a test that compiles them and runs none."""

from __future__ import annotations

from collections import Counter
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
    chosen: list[Config] = []
    while missing:
        in_files = Counter(map(_file_of, chosen))
        best = max(
            candidates,
            key=lambda config: (len(candidates[config] & missing), -in_files[_file_of(config)]),
        )
        missing -= candidates.pop(best)
        chosen.append(best)
    return tuple(chosen)


def _file_of(config: Config) -> tuple:
    """What the kernels of a file have in common where FLASH_GROUP_CUDA_KERNELS joins them. Files of
    about as many kernels end at about the same time."""
    return config.arch, config.dtype, config.operand_dtype, config.d_head, config.d_head_v
