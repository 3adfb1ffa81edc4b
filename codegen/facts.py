"""The one list of what the generator and the C library share: enumerators, words and families.

The values repeat include/flashattn.h; the generated kernel_table.c asserts that they agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import reduce
from operator import or_


class Arch(IntEnum):
    """FLASH_ARCH_..."""

    REFERENCE = 1
    AVX2 = 2
    AVX512 = 3
    AMX = 4
    NEON = 5
    AVX512_BF16 = 6
    NEON_BF16 = 7
    SM80 = 80
    SM90 = 90


class Dtype(IntEnum):
    """FLASH_DTYPE_...; the name is the word of the short form."""

    FP16 = 1
    BF16 = 2
    FP32 = 3


class Feature(IntFlag):
    """FLASH_FEATURE_...; the word of the short form is the name in lower case."""

    CAUSAL = 1
    WINDOW = 2
    SOFTCAP = 4
    VARLEN = 8

    @property
    def word(self) -> str:
        return str(self.name).lower()


ALL_FEATURES = int(reduce(or_, Feature))

# The switches of SM80, with their words before and after the load part.
STRATEGIES = (("async_copy", "async"), ("eager_load_blocks", "eager"), ("swizzled", "swizzled"))
STRATEGIES_AFTER_LOAD = (
    ("mma_double_buffer_loads", "buffer"),
    ("optimized_softmax", "opt_softmax"),
)
# The three counts of the load part, in its order.
LOADS = ("Q_mma_load_K_fragments", "K_mma_load_K_fragments", "V_mma_load_K_fragments")
# The switches of SM90, with their words, after stages_<n_stages>.
STAGES = "n_stages"
SM90_STRATEGIES = (
    ("overlap", "overlap"),
    ("ping_pong", "ping_pong"),
    ("persistent", "persistent"),
    ("longest_first", "longest_first"),
    ("fixed_reference", "fixed_reference"),
)

# What means something to one of the CUDA families alone, in sort order.
SM80_FIELDS = (
    *(field for field, _ in STRATEGIES),
    *LOADS,
    *(field for field, _ in STRATEGIES_AFTER_LOAD),
)
SM90_FIELDS = (STAGES, *(field for field, _ in SM90_STRATEGIES))


@dataclass(frozen=True)
class Family:
    """A kernel family: the kernels of one arch."""

    arch: Arch
    layout: str  # kind of short form, of rules and of wrapper: "cpu", "sm80" or "sm90"
    flags: tuple[str, ...] = ()  # what its kernels need from the compiler

    @property
    def name(self) -> str:
        """The family's word on the command line, in kernel names and in file names."""
        return self.arch.name.lower()


AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c")
AVX512_FLAGS = (*AVX2_FLAGS, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
AVX512_BF16_FLAGS = (*AVX512_FLAGS, "-mavx512bf16")
AMX_FLAGS = (*AVX512_BF16_FLAGS, "-mamx-tile", "-mamx-bf16")

FAMILIES = {
    family.arch: family
    for family in (
        Family(Arch.REFERENCE, "cpu"),
        Family(Arch.AVX2, "cpu", AVX2_FLAGS),
        Family(Arch.AVX512, "cpu", AVX512_FLAGS),
        Family(Arch.AMX, "cpu", AMX_FLAGS),
        Family(Arch.NEON, "cpu"),
        Family(Arch.AVX512_BF16, "cpu", AVX512_BF16_FLAGS),
        Family(Arch.NEON_BF16, "cpu", ("-march=armv8.2-a+bf16",)),
        Family(Arch.SM80, "sm80"),
        Family(Arch.SM90, "sm90"),
    )
}
