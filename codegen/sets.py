"""The named sets of configurations: cartesian products and the filters that thin them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from .config import Config
from .facts import ALL_FEATURES, Arch, Dtype
from .legality import legal, worth_building
from .short_form import parse_config

# One optimisation more from row to row, so that a person can see what each brings; the last row
# keeps Q in registers instead of double-buffering its loads.
PROGRESSION = (
    "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles",
    "(FP16, 128, 64, 64, 4): async+swizzled+load_0_0_0_tiles",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_0_0_tiles",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
)

# Tiles (B_r, B_c) of the CPU kernels that are installed.
CPU_SHIP_TILES = {
    Arch.REFERENCE: (16, 1),
    Arch.AVX2: (96, 128),
    Arch.AVX512: (96, 128),
}


def cartesian(**values: Iterable[int]) -> list[Config]:
    """Every combination of the fields' values; fields not named are 0."""
    return [Config(**dict(zip(values, combination))) for combination in product(*values.values())]


def progression() -> list[Config]:
    """In the order of the steps, which is not the sort order."""
    return [parse_config(step) for step in PROGRESSION]


def progression_all_block_sizes() -> list[Config]:
    """The progression at every block shape, step by step."""
    shapes = [
        {"B_r": B_r, "B_c": B_c, "n_warps": n_warps}
        for B_r, B_c, n_warps in product((128, 64), (128, 64, 32), (4, 8))
        if B_r >= B_c and not (n_warps == 8 and B_r < 128)
    ]
    return [replace(step, **shape) for shape in shapes for step in progression()]


def tune() -> list[Config]:
    """What tuning measures: every strategy that always pays is on, the rest is open."""
    candidates = cartesian(
        arch=[Arch.SM80],
        dtype=[Dtype.FP16, Dtype.BF16],
        d_head=[128],
        B_r=[64, 128],
        B_c=[32, 64],
        n_warps=[4],
        async_copy=[1],
        eager_load_blocks=[1],
        swizzled=[1],
        Q_mma_load_K_fragments=[0, 2],
        K_mma_load_K_fragments=[0, 2],
        V_mma_load_K_fragments=[0, 2],
        mma_double_buffer_loads=[0, 1],
        optimized_softmax=[0, 1],
    )
    return [config for config in candidates if legal(config) and worth_building(config)]


def ship() -> list[Config]:
    """What an installed library holds. CPU kernels take any d_head and every feature."""
    return [
        config
        for arch, (B_r, B_c) in CPU_SHIP_TILES.items()
        for config in cartesian(
            arch=[arch], dtype=list(Dtype), B_r=[B_r], B_c=[B_c], features=[ALL_FEATURES]
        )
    ]


def all_sets() -> list[Config]:
    """Everything legal that the other sets name."""
    named = {*progression(), *progression_all_block_sizes(), *tune(), *ship()}
    return sorted(config for config in named if legal(config))


SETS = {
    "progression": progression,
    "progression_all_block_sizes": progression_all_block_sizes,
    "tune": tune,
    "ship": ship,
    "all": all_sets,
}
