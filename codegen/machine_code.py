"""The compute capabilities that a CUDA kernel has machine code for.

Kernels for compute capability 8.0 and newer mostly have it for 8.0 and 9.0. Some rows are of no use
on 9.0, where a row of SM90's families serves whatever they serve in less time, or where there is
shared memory for a larger tile: these have it only for 8.0. A caller that names such a row on 9.0,
or the rare problem that no row of SM90's families can load, gets it all the same: the driver
compiles its PTX when it is first used.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from .config import Config, converts, is_latent
from .facts import FAMILIES, Arch, Feature, Op

HOPPER = 90  # compute capability 9.0
HOPPER_FAMILIES = (Arch.SM90, Arch.SM90_DECODE, Arch.SM90_MLA, Arch.SM90_WIDE)
SMALL_MLA_TILE = (64, 16)  # (B_r, B_c) of SM80_MLA, for blocks of less shared memory than 9.0 has


class Code(Enum):
    """What kernels of a family have machine code for, and how. The value is what the names of the
    lists in kernels.cmake end in."""

    OF_FAMILY = ""  # as the rest of the family
    BEFORE_HOPPER = "_BEFORE_90"  # none for 9.0
    ONE_SOURCE = "_ONE_SOURCE"  # all from one PTX: the kernels test no compute capability that pays


def is_before_hopper(config: Config) -> bool:
    """Says whether a row is one of those without machine code for 9.0, where rows of the forward
    pass have better ones; with dropout there are none."""
    if config.op != Op.FORWARD:
        return False
    if config.arch == Arch.SM80:
        return bool(config.async_copy) and not config.features & Feature.DROPOUT
    if config.arch == Arch.SM80_MLA:
        is_served = not converts(config) or not config.features & Feature.BIAS
        is_small = (config.B_r, config.B_c) == SMALL_MLA_TILE
        return is_served or (is_small and not is_latent(config))  # which have no larger tile
    if config.arch == Arch.SM80_WIDE:
        return not converts(config)  # beside a bias SM90_WIDE converts nothing
    return False


def code_of(config: Config) -> Code:
    if is_before_hopper(config):
        return Code.BEFORE_HOPPER
    if config.arch == Arch.SM80 and not converts(config):
        return Code.ONE_SOURCE
    return Code.OF_FAMILY


def has_machine_code(config: Config, capabilities: Collection[int]) -> bool:
    """Says whether a row belongs to a library for these compute capabilities, 10 * major + minor;
    none: for all. CPU rows do, and so do rows that have no kernel of their own."""
    if FAMILIES[Arch(config.arch)].on_cpu or not capabilities:
        return True
    if config.arch in HOPPER_FAMILIES:
        return HOPPER in capabilities
    return not is_before_hopper(config) or any(c != HOPPER for c in capabilities)
