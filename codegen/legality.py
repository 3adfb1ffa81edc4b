"""Which configurations a family can have at all, and which are worth building.

The rules are those of src/config_rules.c, reason for reason; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from .config import INT32_MAX, Config
from .facts import (
    ALL_FEATURES,
    FAMILIES,
    LOADS,
    SM80_FIELDS,
    SM90_FIELDS,
    SM90_STRATEGIES,
    STAGES,
    STRATEGIES,
    STRATEGIES_AFTER_LOAD,
    Arch,
    Dtype,
    Feature,
)

FRAGMENT = 8  # columns along the contraction that one fragment covers
MMA_ROWS = 16

# Of families that do not have all.
CPU_DTYPES = {
    Arch.AMX: (Dtype.FP16, Dtype.BF16),
    Arch.AVX512_BF16: (Dtype.BF16,),
    Arch.NEON_BF16: (Dtype.BF16,),
}
CPU_B_R_MAX = 1024
CPU_B_C_MAX = 4096
AMX_SQUARE = 32  # of kernels/cpu/amx/layout.h

SM80_CHOICES = {
    "dtype": (Dtype.FP16, Dtype.BF16),
    "d_head": (32, 64, 96, 128, 192, 256),
    "B_r": (64, 128),
    "B_c": (32, 64, 128),
    "n_warps": (4, 8),
}

SM80_SWITCHES = tuple(field for field, _ in (*STRATEGIES, *STRATEGIES_AFTER_LOAD))

SM90_CHOICES = {
    "dtype": (Dtype.FP16, Dtype.BF16),
    "d_head": (64, 96, 128, 192, 256),
    "B_r": (64, 128, 192),
}
SM90_B_C_MAX = 256
SM90_SWITCHES = tuple(field for field, _ in SM90_STRATEGIES)
SM90_LOADING_WARPS = 4
# Of kernels/sm90/sm90_kernel.h.
SM90_PANEL_ELEMENTS = 64
SM90_ELEMENT_BYTES = 2
SM90_STATE_BYTES = 2816
SM90_SHARED_BYTES_MAX = 227 * 1024


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


def _multiple(config: Config, field: str, of: int) -> Iterator[str]:
    value = getattr(config, field)
    if value % of:
        yield f"{field} is {value}: not a multiple of {of}"


def _cpu_rules(config: Config) -> Iterator[str]:
    amx = config.arch == Arch.AMX
    yield from _choice(config, "dtype", CPU_DTYPES.get(Arch(config.arch), tuple(Dtype)))
    yield from _range(config, "d_head", 0, INT32_MAX)
    yield from _range(config, "B_r", 1, CPU_B_R_MAX)
    yield from _range(config, "B_c", 1, CPU_B_C_MAX)
    for field in ("B_r", "B_c"):
        yield from _multiple(config, field, AMX_SQUARE if amx else 1)
    for field in ("n_warps", *SM80_FIELDS, *SM90_FIELDS):
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
    for field in SM80_SWITCHES:
        yield from _range(config, field, 0, 1)
    if config.eager_load_blocks and not config.async_copy:
        yield "eager_load_blocks is 1: it needs async_copy, which is 0"
    yield from _sm80_loads(config)
    for field in SM90_FIELDS:
        yield from _zero(config, field)
    yield from _features(config)


def sm90_warps(B_r: int) -> int:
    """A warpgroup that loads, and a warp for each 16 rows."""
    return SM90_LOADING_WARPS + B_r // MMA_ROWS


def _sm90_shape(config: Config) -> Iterator[str]:
    for field, allowed in SM90_CHOICES.items():
        yield from _choice(config, field, allowed)
    yield from _range(config, "B_c", MMA_ROWS, SM90_B_C_MAX)
    if config.B_c % MMA_ROWS:
        yield f"B_c is {config.B_c}: not a multiple of {MMA_ROWS}"
    n_warps = sm90_warps(config.B_r)
    if config.n_warps != n_warps:
        yield (
            f"n_warps is {config.n_warps}: {n_warps} with B_r {config.B_r}, "
            f"{SM90_LOADING_WARPS} and one for each {MMA_ROWS} rows"
        )


def _needs(config: Config, switch: str, needed: str) -> Iterator[str]:
    if getattr(config, switch) and not getattr(config, needed):
        yield f"{switch} is 1: it needs {needed}, which is 0"


def _sm90_strategies(config: Config) -> Iterator[str]:
    yield from _range(config, STAGES, 2, 4)
    for field in SM90_SWITCHES:
        yield from _range(config, field, 0, 1)
    yield from _needs(config, "ping_pong", "overlap")
    yield from _needs(config, "longest_first", "persistent")
    if config.ping_pong and config.B_r < 128:
        yield f"ping_pong is 1: it needs a B_r of 128 or more, which is {config.B_r}"


def _sm90_features(config: Config) -> Iterator[str]:
    yield from _features(config)
    if config.features & Feature.VARLEN and not config.longest_first:
        yield "features has varlen: it needs longest_first, which is 0"


def sm90_shared_bytes(config: Config) -> int:
    """Q, n_stages blocks of K and of V, in whole panels, and the state behind them."""
    panels = -(-config.d_head // SM90_PANEL_ELEMENTS)
    rows = config.B_r + 2 * config.n_stages * config.B_c
    return rows * panels * SM90_PANEL_ELEMENTS * SM90_ELEMENT_BYTES + SM90_STATE_BYTES


def _sm90_rules(config: Config) -> Iterator[str]:
    yield from _sm90_shape(config)
    for field in SM80_FIELDS:
        yield from _zero(config, field)
    yield from _sm90_strategies(config)
    yield from _sm90_features(config)
    n_bytes = sm90_shared_bytes(config)
    if n_bytes > SM90_SHARED_BYTES_MAX:
        yield (
            f"d_head {config.d_head}, B_r {config.B_r}, B_c {config.B_c} and n_stages "
            f"{config.n_stages} take {n_bytes} bytes of shared memory: at most "
            f"{SM90_SHARED_BYTES_MAX}"
        )


RULES = {"cpu": _cpu_rules, "sm80": _sm80_rules, "sm90": _sm90_rules}


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
