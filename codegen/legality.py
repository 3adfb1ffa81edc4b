"""Which configurations a family can have at all, and which are worth building.

The rules are those of src/config.c (config_check), reason for reason; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from .config import INT32_MAX, Config
from .facts import (
    ALL_FEATURES,
    FAMILIES,
    LOADS,
    STRATEGIES,
    STRATEGIES_AFTER_LOAD,
    Arch,
    Dtype,
)

FRAGMENT = 8  # columns along the contraction that one fragment covers
MMA_ROWS = 16

CPU_B_R_MAX = 1024
CPU_B_C_MAX = 4096

SM80_CHOICES = {
    "dtype": (Dtype.FP16, Dtype.BF16),
    "d_head": (32, 64, 96, 128, 192, 256),
    "B_r": (64, 128),
    "B_c": (32, 64, 128),
    "n_warps": (4, 8),
}

SWITCHES = tuple(field for field, _ in (*STRATEGIES, *STRATEGIES_AFTER_LOAD))


def _choice(config: Config, field: str, allowed: tuple[int, ...]) -> Iterator[str]:
    value = getattr(config, field)
    if value not in allowed:
        yield f"{field} is {value}: the family has no such value"


def _range(config: Config, field: str, low: int, high: int) -> Iterator[str]:
    value = getattr(config, field)
    if not low <= value <= high:
        yield f"{field} is {value}: not within {low} ... {high}"


def _zero(config: Config, field: str) -> Iterator[str]:
    value = getattr(config, field)
    if value != 0:
        family = Arch(config.arch).name
        yield f"{field} is {value}: it means nothing to the {family} family and must be 0"


def _features(config: Config) -> Iterator[str]:
    bits = config.features & 0xFFFFFFFF
    unknown = bits & ~ALL_FEATURES
    if unknown:
        yield f"features is 0x{bits:x}: unknown bits 0x{unknown:x}"


def _cpu_rules(config: Config) -> Iterator[str]:
    yield from _choice(config, "dtype", tuple(Dtype))
    yield from _range(config, "d_head", 0, INT32_MAX)
    yield from _range(config, "B_r", 1, CPU_B_R_MAX)
    yield from _range(config, "B_c", 1, CPU_B_C_MAX)
    for field in ("n_warps", *SWITCHES, *LOADS):
        yield from _zero(config, field)
    yield from _features(config)


def _fragments(config: Config, field: str, axis: str) -> Iterator[str]:
    """The count held at a time: 0, or a power of two from 2 up to what the contraction has, half
    of that when the next ones load meanwhile."""
    count = getattr(config, field)
    contraction = getattr(config, axis)
    buffered = config.mma_double_buffer_loads
    most = contraction // FRAGMENT // (2 if buffered else 1)
    if count < 0 or count == 1 or count & (count - 1):
        yield f"{field} is {count}: not 0 or a power of two from 2 on"
    if count > most:
        with_buffer = " and double buffering" if buffered else ""
        yield f"{field} is {count}: at most {most} with {axis} {contraction}{with_buffer}"


def _sm80_loads(config: Config) -> Iterator[str]:
    q_field, k_field, v_field = LOADS
    yield from _fragments(config, q_field, "d_head")
    yield from _fragments(config, k_field, "d_head")
    yield from _fragments(config, v_field, "B_c")
    q_count, k_count = getattr(config, q_field), getattr(config, k_field)
    if q_count not in (0, k_count):
        yield f"{q_field} is {q_count}: neither 0 nor {k_field}, {k_count}"


def _sm80_rules(config: Config) -> Iterator[str]:
    for field, allowed in SM80_CHOICES.items():
        yield from _choice(config, field, allowed)
    if config.B_r % (MMA_ROWS * config.n_warps):
        yield (
            f"n_warps is {config.n_warps}: B_r {config.B_r} does not divide into rows of "
            f"{MMA_ROWS} for each"
        )
    for field in SWITCHES:
        yield from _range(config, field, 0, 1)
    if config.eager_load_blocks and not config.async_copy:
        yield "eager_load_blocks is 1: it needs async_copy, which is 0"
    yield from _sm80_loads(config)
    yield from _features(config)


RULES = {"cpu": _cpu_rules, "sm80": _sm80_rules}


def broken_rule(config: Config) -> str | None:
    """The first rule of its family that the configuration breaks; None: it is legal.

    Rules run in order and lazily: each may rely on those before it.
    """
    if config.arch not in set(Arch):
        return f"arch is {config.arch}: no such kernel family"
    rules = RULES[FAMILIES[Arch(config.arch)].layout]
    return next(rules(config), None)


def legal(config: Config) -> bool:
    return broken_rule(config) is None


def worth_building(config: Config) -> bool:
    """The tuning filter of SM80, on top of legal(): which block shapes keep the whole block of Q
    in registers, and which load it by fragments."""
    q_count, k_count = config.Q_mma_load_K_fragments, config.K_mma_load_K_fragments
    whole_q = q_count == 0
    if not whole_q and q_count != k_count:
        return False
    if config.B_r == 64:
        if config.n_warps == 8:
            return False
        return not (config.B_c == 32 and whole_q) and not (config.B_c == 64 and not whole_q)
    return not whole_q
