"""The key of the kernel table: flash_config_t, its order, its C initialiser and its kernel's name.

Any integers make a Config; legality.py says which ones are sound.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from .facts import (
    FAMILIES,
    LOADS,
    SM90_STRATEGIES,
    STRATEGIES,
    STRATEGIES_AFTER_LOAD,
    Arch,
    Dtype,
    Feature,
)

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


@dataclass(frozen=True, order=True)
class Config:
    """flash_config_t without its struct_size. The order of the fields is the sort order."""

    arch: int = 0
    dtype: int = 0
    d_head: int = 0
    B_r: int = 0
    B_c: int = 0
    n_warps: int = 0
    async_copy: int = 0
    eager_load_blocks: int = 0
    swizzled: int = 0
    Q_mma_load_K_fragments: int = 0
    K_mma_load_K_fragments: int = 0
    V_mma_load_K_fragments: int = 0
    mma_double_buffer_loads: int = 0
    optimized_softmax: int = 0
    features: int = 0
    n_stages: int = 0
    overlap: int = 0
    ping_pong: int = 0
    persistent: int = 0
    longest_first: int = 0
    fixed_reference: int = 0


FIELDS = tuple(field.name for field in fields(Config))


def features_of(config: Config) -> list[Feature]:
    return [feature for feature in Feature if config.features & feature]


def c_initialiser(config: Config) -> str:
    """The initialiser of a flash_config_t, braces included; for known enumerators."""
    enumerators = {
        "arch": f"FLASH_ARCH_{Arch(config.arch).name}",
        "dtype": f"FLASH_DTYPE_{Dtype(config.dtype).name}",
        "features": " | ".join(f"FLASH_FEATURE_{f.name}" for f in features_of(config)) or "0",
    }
    values = [enumerators.get(field, str(getattr(config, field))) for field in FIELDS]
    return "{" + ", ".join(["(uint32_t)sizeof(flash_config_t)", *values]) + "}"


def _switches_on(config: Config, strategies: Iterable[tuple[str, str]]) -> list[str]:
    """Their words as parts of a name, one a strategy: "opt_softmax" would read as two."""
    return [word.replace("_", "") for field, word in strategies if getattr(config, field)]


def _sm80_parts(config: Config) -> list[str]:
    return [
        *_switches_on(config, STRATEGIES),
        "load",
        *(str(getattr(config, field)) for field in LOADS),
        *_switches_on(config, STRATEGIES_AFTER_LOAD),
    ]


def _sm90_parts(config: Config) -> list[str]:
    return ["stages", str(config.n_stages), *_switches_on(config, SM90_STRATEGIES)]


STRATEGY_PARTS = {"cpu": lambda config: [], "sm80": _sm80_parts, "sm90": _sm90_parts}


def kernel_name(config: Config) -> str:
    """The symbol of a legal configuration's kernel; different for different configurations."""
    family = FAMILIES[Arch(config.arch)]
    parts = [
        "flash_fwd",
        family.name.replace("_", ""),
        Dtype(config.dtype).name.lower(),
        f"d{config.d_head or 'any'}",
        f"{config.B_r}x{config.B_c}",
    ]
    if config.n_warps:
        parts.append(f"w{config.n_warps}")
    parts += STRATEGY_PARTS[family.layout](config)
    parts += [feature.word for feature in features_of(config)]
    return "_".join(parts)
