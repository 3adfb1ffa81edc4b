"""The facts that the generator and the C library share: the fields of a configuration, their
enumerators, and for each kernel family and operation its rows' element types, rules, words and
features.

The values of enumerators repeat include/flashattn.h; the generated kernel_table.c asserts that they
agree. Everything else about a configuration is generated from here (config_facts.h and
config_facts.c): order, short form, rules of single fields. Rules between fields are in
the kernels' headers, from which kernel_rules.py reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple, Union

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


class Arch(IntEnum):
    """FLASH_ARCH_..., the kernel families."""

    REFERENCE = 1
    AVX2 = 2
    AVX512 = 3
    AMX = 4
    NEON = 5
    AVX512_BF16 = 6
    NEON_BF16 = 7
    SM80 = 80
    SM80_DECODE = 81
    SM80_MLA = 82
    SM80_WIDE = 83
    SM90 = 90
    SM90_DECODE = 91
    SM90_MLA = 92
    SM90_WIDE = 93
    MIXED = 100


class Op(IntEnum):
    """FLASH_OP_..., what a kernel computes. The short form's word is the name in lower case, if
    any."""

    FORWARD = 0
    BACKWARD_DQ = 1
    BACKWARD_DKV = 2

    @property
    def symbol(self) -> str:
        """The operation in the name of a kernel."""
        symbols = {"FORWARD": "fwd", "BACKWARD_DQ": "bwd_dq", "BACKWARD_DKV": "bwd_dkv"}
        return symbols[self.name]

    @property
    def word(self) -> str:
        return self.name.lower()


class Dtype(IntEnum):
    """FLASH_DTYPE_...; the name is the word of the short form."""

    FP16 = 1
    BF16 = 2
    FP32 = 3
    E4M3 = 4
    LATENT_E4M3 = 5
    Q8_0 = 6
    Q4_0 = 7

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return DTYPE_BYTES[self]


# These repeat kernels/common/dtype.h.
DTYPE_BYTES = {
    Dtype.FP16: 2,
    Dtype.BF16: 2,
    Dtype.FP32: 4,
    Dtype.E4M3: 1,
    Dtype.LATENT_E4M3: 1,
    Dtype.Q8_0: 1,
    Dtype.Q4_0: 1,
}
# CUDA kernels convert K and V of these types where operand_dtype is 0, and multiply others as they
# are. This repeats kernels/common/operand.h.
CONVERTED_TO = {Dtype.E4M3: Dtype.FP16, Dtype.LATENT_E4M3: Dtype.BF16}


class Feature(IntFlag):
    """FLASH_FEATURE_...; the word of the short form is the name in lower case."""

    CAUSAL = 1
    WINDOW = 2
    SOFTCAP = 4
    VARLEN = 8
    PAGED = 16
    BIAS = 32
    DROPOUT = 64

    @property
    def word(self) -> str:
        return str(self.name).lower()


KNOWN_FEATURES = sum(map(int, Feature))
# Every family covers these. Any other feature must be added by name to the families that have it.
BASIC_FEATURES = int(Feature.CAUSAL | Feature.WINDOW | Feature.SOFTCAP | Feature.VARLEN)
PAGED_FEATURES = BASIC_FEATURES | Feature.PAGED.value
ALL_FEATURES = PAGED_FEATURES | Feature.BIAS.value
CPU_FEATURES = ALL_FEATURES
GRADIENT_FEATURES = BASIC_FEATURES | Feature.BIAS.value  # K and V in pages have no gradients
DROPOUT_FEATURES = GRADIENT_FEATURES | Feature.DROPOUT.value  # nor dropout
VARLEN = int(Feature.VARLEN)

# The members of flash_config_t after struct_size, in sort order.
FIELDS = (
    "arch",
    "op",
    "dtype",
    "d_head",
    "B_r",
    "B_c",
    "n_warps",
    "async_copy",
    "eager_load_blocks",
    "swizzled",
    "Q_mma_load_K_fragments",
    "K_mma_load_K_fragments",
    "V_mma_load_K_fragments",
    "mma_double_buffer_loads",
    "optimized_softmax",
    "features",
    "n_stages",
    "overlap",
    "ping_pong",
    "persistent",
    "longest_first",
    "fixed_reference",
    "d_head_v",
    "operand_dtype",
)

# ---- Rules of one field ----


@dataclass(frozen=True)
class Choice:
    """The field is one of these values."""

    values: tuple[int, ...]

    def broken(self, name: str, value: int, _family: str) -> Iterator[str]:
        if value not in self.values:
            yield f"{name} is {value}: the family has no such value"


@dataclass(frozen=True)
class Range:
    """The field is within low ... high, and a multiple of step."""

    low: int
    high: int
    step: int = 1

    def broken(self, name: str, value: int, _family: str) -> Iterator[str]:
        if not self.low <= value <= self.high:
            yield f"{name} is {value}: not within {self.low} ... {self.high}"
        elif value % self.step:
            yield f"{name} is {value}: not a multiple of {self.step}"


@dataclass(frozen=True)
class Zero:
    """The field means nothing to the family."""

    def broken(self, name: str, value: int, family: str) -> Iterator[str]:
        if value != 0:
            yield f"{name} is {value}: it means nothing to the {family} family and must be 0"


@dataclass(frozen=True)
class FeatureBits:
    """The field is a set of features that the family covers, those among them that it needs."""

    covered: int
    needed: int = 0

    def broken(self, name: str, value: int, family: str) -> Iterator[str]:
        bits = value & 0xFFFFFFFF
        unknown = bits & ~self.covered
        if unknown:
            yield f"{name} is 0x{bits:x}: the {family} family does not have 0x{unknown:x}"
        missing = "+".join(f.word for f in Feature if f & self.needed & ~bits)
        if missing:
            yield f"{name} has no {missing}: {family} rows need it"


Rule = Union[Choice, Range, Zero, FeatureBits]

SWITCH = Range(0, 1)
# The values of a field that has this depend on others: rules among fields say how.
ANY_VALUE = Range(INT32_MIN, INT32_MAX)

# ---- Words of the short form ----


@dataclass(frozen=True)
class Word:
    """A word after the colon. A switch is on if its word is there. Counts are a word with the
    numbers of some fields, which is always there."""

    word: str
    fields: tuple[str, ...]
    places: tuple[str, ...] = ()  # of counts: a letter per field, for messages
    suffix: str = ""  # of counts: written at the end, optional when read

    @property
    def is_counts(self) -> bool:
        return bool(self.places)

    @property
    def form(self) -> str:
        """The word with its places, such as load_<Q>_<K>_<V>_tiles."""
        return self.word + "".join(f"_<{place}>" for place in self.places) + self.suffix


def _switch(field_name: str, word: str) -> Word:
    return Word(word, (field_name,))


@dataclass(frozen=True)
class Layout:
    """A kind of rows: the fields of their configurations, and how they are written."""

    name: str  # also that of their Wrapper
    shape: tuple[str, ...]  # in the parentheses, after dtype and d_head
    words: tuple[Word, ...] = ()  # between the colon and the features, in order
    needs: tuple[tuple[str, str], ...] = ()  # a switch, and the switch that it needs
    has_d_head_v: bool = False  # a row may have a head dimension of V and O apart from d_head
    has_operand_dtype: bool = False  # a row may say what type its products are computed in
    has_kernels: bool = True  # if not, such rows are computed by rows of other families
    # Whether a d_head of 0, written "any", stands for every head dimension. If not, a kernel also
    # serves smaller head dimensions than its own, of Q and K and of V and O alike.
    any_d_head: bool = False

    @property
    def counts(self) -> Word | None:
        return next((word for word in self.words if word.is_counts), None)

    @property
    def switches(self) -> tuple[str, ...]:
        return tuple(name for word in self.words if not word.is_counts for name in word.fields)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that mean something in such rows, in sort order."""
        specific = {*self.shape, *(name for word in self.words for name in word.fields)}
        common = {"arch", "op", "dtype", "d_head", "features"}
        if self.has_d_head_v:
            common.add("d_head_v")
        if self.has_operand_dtype:
            common.add("operand_dtype")
        return tuple(field for field in FIELDS if field in specific | common)

    @property
    def words_text(self) -> str:
        """What may follow the colon, for messages."""
        features = f"a feature ({', '.join(f.word for f in Feature)})"
        words = ", ".join(word.form for word in self.words)
        return f"{words} or {features}, each once" if words else f"{features}, each once"


CPU = Layout("cpu", shape=("B_r", "B_c"), any_d_head=True)
SM80 = Layout(
    "sm80",
    shape=("B_r", "B_c", "n_warps"),
    words=(
        _switch("async_copy", "async"),
        _switch("eager_load_blocks", "eager"),
        _switch("swizzled", "swizzled"),
        Word(
            "load",
            ("Q_mma_load_K_fragments", "K_mma_load_K_fragments", "V_mma_load_K_fragments"),
            places=("Q", "K", "V"),
            suffix="_tiles",
        ),
        _switch("mma_double_buffer_loads", "buffer"),
        _switch("optimized_softmax", "opt_softmax"),
    ),
    needs=(("eager_load_blocks", "async_copy"),),
)
SM80_BACKWARD = Layout(
    "sm80_backward",
    shape=("B_r", "B_c", "n_warps"),
    words=(Word("stages", ("n_stages",), places=("N",)),),
)
SM80_DECODE = Layout(
    "sm80_decode",
    shape=("B_r", "B_c", "n_warps"),
    words=(Word("stages", ("n_stages",), places=("N",)),),
)
SM80_MLA = Layout(
    "sm80_mla",
    shape=("B_r", "B_c", "n_warps"),
    words=(Word("stages", ("n_stages",), places=("N",)),),
    has_d_head_v=True,
)
SM80_WIDE = Layout(
    "sm80_wide",
    shape=("B_r", "B_c", "n_warps"),
    words=(Word("stages", ("n_stages",), places=("N",)),),
)
SM90 = Layout(
    "sm90",
    shape=("B_r", "B_c", "n_warps"),
    words=(
        Word("stages", ("n_stages",), places=("N",)),
        _switch("overlap", "overlap"),
        _switch("ping_pong", "ping_pong"),
        _switch("persistent", "persistent"),
        _switch("longest_first", "longest_first"),
        _switch("fixed_reference", "fixed_reference"),
    ),
    needs=(("longest_first", "persistent"),),
    has_d_head_v=True,
    has_operand_dtype=True,
)
SM90_BACKWARD = Layout(
    "sm90_backward",
    shape=("B_r", "B_c", "n_warps"),
    words=(Word("stages", ("n_stages",), places=("N",)), _switch("overlap", "overlap")),
    has_d_head_v=True,
)
MIXED = Layout("mixed", shape=("B_r",), has_kernels=False)

SM90_DECODE = Layout(
    "sm90_decode",
    shape=("B_r", "B_c", "n_warps"),
    words=(Word("stages", ("n_stages",), places=("N",)), _switch("ping_pong", "ping_pong")),
    has_operand_dtype=True,
)
SM90_MLA = Layout(
    "sm90_mla",
    shape=("B_r", "B_c", "n_warps"),
    words=(Word("stages", ("n_stages",), places=("N",)), _switch("persistent", "persistent")),
    has_d_head_v=True,
)

SM90_WIDE = Layout(
    "sm90_wide",
    shape=("B_r", "B_c", "n_warps"),
    words=(Word("stages", ("n_stages",), places=("N",)),),
)

# ---- Element types that go together ----


class Types(NamedTuple):
    """Element types of a problem that a row serves. That of K is the row's dtype, that of V is the
    same or one that may stand beside it (Rows.mixed), and operand is the row's operand_dtype."""

    kv: Dtype
    q: Dtype
    o: Dtype
    operand: int = 0


def _wide_o(*types: Dtype) -> tuple[Types, ...]:
    """Q is of the type of K and V, and O is of that type or fp32."""
    return tuple(Types(kv, kv, o) for kv in types for o in sorted({kv, Dtype.FP32}))


def _wide_q_and_o(*types: Dtype) -> tuple[Types, ...]:
    """Each of Q and O is of the type of K and V or fp32."""
    return tuple(
        Types(kv, q, o)
        for kv in types
        for q in sorted({kv, Dtype.FP32})
        for o in sorted({kv, Dtype.FP32})
    )


def _quantised(kv: Dtype, *types: Dtype) -> tuple[Types, ...]:
    """K and V are of a type of 8 bits or less, which is no type of O, and Q is of one of the
    types."""
    return tuple(Types(kv, q, o) for q in types for o in BASIC_TYPES)


def _all_of_8_bits(kv: Dtype, *outputs: Dtype, operand: int = 0) -> tuple[Types, ...]:
    """Q is of the type of K and V, which is no type of O."""
    return tuple(Types(kv, kv, o, operand) for o in outputs)


# ---- Families ----


@dataclass(frozen=True)
class Rows:
    """These facts say what the rows of a family for one operation may be."""

    layout: Layout
    types: tuple[Types, ...]  # types that they serve; each row those of its kv and operand
    rules: Mapping[str, Rule]  # of the fields, but for those that rule() knows
    features: int = BASIC_FEATURES  # features that they may cover
    needed_features: int = 0  # features that each row covers
    mixed: tuple[Dtype, ...] = ()  # types of which K and V may have any two

    @property
    def row_types(self) -> tuple[tuple[int, int], ...]:
        """The pairs of dtype and operand_dtype that a row may have."""
        return tuple(sorted({(int(types.kv), int(types.operand)) for types in self.types}))

    def v_types(self, dtype: int) -> tuple[Dtype, ...]:
        """The types of V that go with a K of this type."""
        return self.mixed if dtype in self.mixed else (Dtype(dtype),)

    def outputs(self, dtype: int, operand_dtype: int) -> dict[Dtype, list[Dtype]]:
        """The types of O that go with each type of Q, in rows of this dtype and operand_dtype."""
        pairs = [(t.q, t.o) for t in self.types if (t.kv, t.operand) == (dtype, operand_dtype)]
        return {q: sorted(o for of, o in pairs if of == q) for q in sorted({q for q, _ in pairs})}

    def rule(self, name: str) -> Rule:
        """The rule of a field other than arch and op."""
        if name == "features":
            return FeatureBits(self.features, self.needed_features)
        if name == "dtype":
            return Choice(tuple(sorted({types.kv for types in self.types})))
        if name == "operand_dtype" and self.layout.has_operand_dtype:
            return ANY_VALUE
        if name in self.layout.switches:
            return SWITCH
        return self.rules[name] if name in self.layout.fields else Zero()


@dataclass(frozen=True)
class Family:
    """A kernel family: the kernels of one arch."""

    arch: Arch
    on_cpu: bool
    operations: Mapping[Op, Rows]
    flags: tuple[str, ...] = ()  # what its kernels need from the compiler
    capabilities: tuple[int, int] = (0, 0)  # compute capabilities that run its rows: from, to

    @property
    def lack(self) -> str:
        """What another CUDA device lacks, for messages."""
        least, most = self.capabilities
        has_kernels = all(rows.layout.has_kernels for rows in self.operations.values())
        what = "kernels" if has_kernels else "rows"
        others = "no other" if least == most else "or newer"
        comma = ", " if least == most else " "
        return f"{self.arch.name} {what} need compute capability {least / 10}{comma}{others}"

    @property
    def name(self) -> str:
        """The family's name on the command line, in kernel names and in file names."""
        return self.arch.name.lower()


AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c")
AVX512_FLAGS = (*AVX2_FLAGS, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
AVX512_BF16_FLAGS = (*AVX512_FLAGS, "-mavx512bf16")
AMX_FLAGS = (*AVX512_BF16_FLAGS, "-mamx-tile", "-mamx-bf16")

# Compute capabilities of CUDA devices, from one to another.
FROM_80 = (80, INT32_MAX)
ONLY_90 = (90, 90)

AMX_SQUARE = 32  # repeats kernels/cpu/amx/layout.h
MMA_ROWS = 16
HALVES = (Dtype.FP16, Dtype.BF16)
BASIC_TYPES = (*HALVES, Dtype.FP32)  # listed, so that no family gets a new type by itself
QUANT_BLOCK_TYPES = (Dtype.Q8_0, Dtype.Q4_0)
MIXED_TYPES = (*BASIC_TYPES, *QUANT_BLOCK_TYPES)
ANY_TYPES = (
    *_wide_q_and_o(*BASIC_TYPES),
    *_quantised(Dtype.E4M3, *BASIC_TYPES),
    *_all_of_8_bits(Dtype.E4M3, *BASIC_TYPES),
    *_quantised(Dtype.LATENT_E4M3, *BASIC_TYPES),
    *_quantised(Dtype.Q8_0, *BASIC_TYPES),
    *_quantised(Dtype.Q4_0, *BASIC_TYPES),
)
HALF_TYPES = _wide_o(*HALVES)
GRADIENT_TYPES = _wide_q_and_o(*BASIC_TYPES)
# Products of bf16 pairs would round a dO of fp32, which is of O's type.
PAIR_GRADIENT_TYPES = (Types(Dtype.BF16, Dtype.BF16, Dtype.BF16),)
GRADIENT_ARCHS = (Arch.REFERENCE, Arch.AVX2, Arch.AVX512, Arch.NEON)
PAIR_ARCHS = (Arch.AVX512_BF16, Arch.NEON_BF16)
# Families whose gradients multiply pairs, and whose forward rows have no dropout.
TILE_ARCHS = (Arch.AMX,)
CUDA_TYPES = (*HALF_TYPES, *_quantised(Dtype.E4M3, *HALVES))
SM90_TYPES = (*CUDA_TYPES, *_all_of_8_bits(Dtype.E4M3, *BASIC_TYPES, operand=Dtype.E4M3))
DECODE_TYPES = (*CUDA_TYPES, *_all_of_8_bits(Dtype.E4M3, *BASIC_TYPES))
MLA_TYPES = (*CUDA_TYPES, *_quantised(Dtype.LATENT_E4M3, Dtype.BF16))


def _cpu(
    arch: Arch,
    types: tuple[Types, ...],
    step: int = 1,
    flags: tuple[str, ...] = (),
) -> Family:
    rules = {
        "d_head": Range(0, INT32_MAX),
        "B_r": Range(1, 1024, step),
        "B_c": Range(1, 4096, step),
    }
    # Kernels that multiply pairs of 16 bits have no products of K and V of two types.
    mixed = MIXED_TYPES if types is ANY_TYPES else ()
    multiplies_pairs = arch in PAIR_ARCHS
    trains = arch in GRADIENT_ARCHS or multiplies_pairs
    features = CPU_FEATURES | (Feature.DROPOUT.value if trains else 0)
    operations = {Op.FORWARD: Rows(CPU, types, rules, features, mixed=mixed)}
    if trains or arch in TILE_ARCHS:
        gradient_types = GRADIENT_TYPES if arch in GRADIENT_ARCHS else PAIR_GRADIENT_TYPES
        gradients = Rows(CPU, gradient_types, rules, DROPOUT_FEATURES)
        operations |= {Op.BACKWARD_DQ: gradients, Op.BACKWARD_DKV: gradients}
    return Family(arch, True, operations, flags)


def _cuda(
    arch: Arch,
    layout: Layout,
    types: tuple[Types, ...],
    rules: Mapping[str, Rule],
    capabilities: tuple[int, int] = FROM_80,
    needed: int = 0,
    gradients: Rows | None = None,
    more_features: int = 0,
) -> Family:
    features = ALL_FEATURES | more_features
    operations = {Op.FORWARD: Rows(layout, types, rules, features, needed)}
    if gradients is not None:
        operations |= {Op.BACKWARD_DQ: gradients, Op.BACKWARD_DKV: gradients}
    return Family(arch, False, operations, capabilities=capabilities)


_SM80_RULES = {
    "d_head": Choice((32, 64, 96, 128, 192, 256)),
    "B_r": Choice((64, 128)),
    "B_c": Choice((32, 64, 128)),
    "n_warps": Choice((4, 8)),
    "Q_mma_load_K_fragments": ANY_VALUE,
    "K_mma_load_K_fragments": ANY_VALUE,
    "V_mma_load_K_fragments": ANY_VALUE,
}
_SM80_BACKWARD_RULES = {
    "d_head": Choice((64, 128, 192, 256)),
    "B_r": Choice((32, 64, 128)),
    "B_c": Choice((32, 64, 128)),
    "n_warps": Choice((4, 8)),
    "n_stages": Choice((1, 2)),
}
_SM80_GRADIENTS = Rows(SM80_BACKWARD, HALF_TYPES, _SM80_BACKWARD_RULES, DROPOUT_FEATURES)
_SM80_DECODE_RULES = {
    "d_head": Choice((64, 128, 256)),
    "B_r": Choice((8, 16)),
    "B_c": Choice((16, 32)),
    "n_warps": Choice((4, 8)),
    "n_stages": Range(2, 8),
}
_SM80_MLA_RULES = {
    "d_head": Choice((576,)),
    "d_head_v": Choice((512,)),
    "B_r": Choice((16, 32, 64)),
    "B_c": Choice((16, 32)),
    "n_warps": Choice((4, 8)),
    "n_stages": Range(3, 6),
}
_SM80_WIDE_RULES = {
    "d_head": Choice((512,)),
    "B_r": Choice((32, 64)),
    "B_c": Choice((16, 32)),
    "n_warps": Choice((4, 8)),
    "n_stages": Range(2, 4),
}
_SM90_RULES = {
    "d_head": Choice((64, 96, 128, 192, 256)),
    "B_r": Choice((64, 128, 192)),
    "B_c": Range(MMA_ROWS, 256, MMA_ROWS),
    "n_warps": Choice((8, 12, 16)),
    "n_stages": Range(2, 4),
    "d_head_v": Choice((0, 128)),
}
_SM90_BACKWARD_RULES = {
    "d_head": Choice((64, 128, 192, 256)),
    "B_r": Range(MMA_ROWS, 128, MMA_ROWS),
    "B_c": Range(MMA_ROWS, 128, MMA_ROWS),
    "n_warps": Choice((12,)),
    "n_stages": Range(2, 4),
    "d_head_v": Choice((0, 128)),
}
_SM90_GRADIENTS = Rows(
    SM90_BACKWARD,
    HALF_TYPES,
    _SM90_BACKWARD_RULES,
    Feature.CAUSAL | Feature.WINDOW | Feature.SOFTCAP | Feature.VARLEN,
)
_SM90_DECODE_RULES = {
    "d_head": Choice((64, 128, 256)),
    "B_r": Choice((64, 128)),
    "B_c": Choice((64, 128)),
    "n_warps": Choice((8, 12, 16)),
    "n_stages": Range(2, 4),
}
_SM90_MLA_RULES = {
    "d_head": Choice((576,)),
    "d_head_v": Choice((512,)),
    "B_r": Choice((64,)),
    "B_c": Choice((64,)),
    "n_warps": Choice((12, 16)),
    "n_stages": Choice((2,)),
}
_SM90_WIDE_RULES = {
    "d_head": Choice((512,)),
    "B_r": Choice((64,)),
    "B_c": Choice((64,)),
    "n_warps": Choice((12, 16)),
    "n_stages": Choice((1,)),
}
_MIXED_RULES = {
    "d_head": Choice((256,)),
    "B_r": Choice((8, 16, 32)),
}

FAMILIES = {
    family.arch: family
    for family in (
        _cpu(Arch.REFERENCE, ANY_TYPES),
        _cpu(Arch.AVX2, ANY_TYPES, flags=AVX2_FLAGS),
        _cpu(Arch.AVX512, ANY_TYPES, flags=AVX512_FLAGS),
        _cpu(Arch.AMX, _wide_q_and_o(*HALVES), AMX_SQUARE, flags=AMX_FLAGS),
        _cpu(Arch.NEON, ANY_TYPES),
        # Products of bf16 pairs would round a Q of fp32, which the families above do not.
        _cpu(Arch.AVX512_BF16, _wide_o(Dtype.BF16), flags=AVX512_BF16_FLAGS),
        _cpu(Arch.NEON_BF16, _wide_o(Dtype.BF16), flags=("-march=armv8.2-a+bf16",)),
        _cuda(
            Arch.SM80,
            SM80,
            CUDA_TYPES,
            _SM80_RULES,
            gradients=_SM80_GRADIENTS,
            more_features=int(Feature.DROPOUT),
        ),
        _cuda(Arch.SM80_DECODE, SM80_DECODE, DECODE_TYPES, _SM80_DECODE_RULES),
        _cuda(Arch.SM80_MLA, SM80_MLA, MLA_TYPES, _SM80_MLA_RULES),
        _cuda(Arch.SM80_WIDE, SM80_WIDE, CUDA_TYPES, _SM80_WIDE_RULES),
        _cuda(Arch.SM90, SM90, SM90_TYPES, _SM90_RULES, ONLY_90, gradients=_SM90_GRADIENTS),
        _cuda(Arch.SM90_DECODE, SM90_DECODE, SM90_TYPES, _SM90_DECODE_RULES, ONLY_90, VARLEN),
        _cuda(Arch.SM90_MLA, SM90_MLA, MLA_TYPES, _SM90_MLA_RULES, ONLY_90, VARLEN),
        _cuda(Arch.SM90_WIDE, SM90_WIDE, CUDA_TYPES, _SM90_WIDE_RULES, ONLY_90, VARLEN),
        _cuda(Arch.MIXED, MIXED, CUDA_TYPES, _MIXED_RULES, needed=VARLEN),
    )
}
# The family whose short form is written without its name.
UNNAMED_ARCH = Arch.SM80


def rows_name(family: Family, op: Op) -> str:
    """Returns the name of a family's rows for an operation, as sm90_fwd."""
    return f"{family.name}_{op.symbol}"


def rows_of(arch: int, op: int) -> Rows:
    """Returns what the rows of a family for an operation that it has may be."""
    return FAMILIES[Arch(arch)].operations[Op(op)]
