"""The named sets of configurations: cartesian products and the filters that thin them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import combinations, product

from .config import Config
from .facts import (
    BASIC_FEATURES,
    BASIC_TYPES,
    CPU_FEATURES,
    DROPOUT_FEATURES,
    FIELDS,
    GRADIENT_FEATURES,
    PAGED_FEATURES,
    QUANT_BLOCK_TYPES,
    Arch,
    Dtype,
    Feature,
    Op,
    rows_of,
)
from .kernel_rules import computed
from .legality import legal, worth_building
from .short_form import parse_config

# Each row adds one optimisation, to show what it brings. The last row keeps Q in registers instead
# of double-buffering its loads.
PROGRESSION = (
    "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles",
    "(FP16, 128, 64, 64, 4): async+swizzled+load_0_0_0_tiles",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_0_0_tiles",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
)

# Each row of SM90 has one strategy more than the row before. Full attention has no longest_first,
# because all its tiles have one length.
PROGRESSION_SM90 = (
    "stages_2",
    "stages_2+overlap",
    "stages_2+overlap+ping_pong",
    "stages_2+overlap+ping_pong+persistent",
    "stages_2+overlap+ping_pong+persistent+longest_first",
    "stages_2+overlap+ping_pong+persistent+longest_first+fixed_reference",
)
PROGRESSION_SM90_FULL = (
    *PROGRESSION_SM90[:4],
    "stages_2+overlap+ping_pong+persistent+fixed_reference",
)
PROGRESSION_SM90_SHAPE = "SM90 (BF16, 128, 128, 128, 12)"

# CPU kernels that are installed. AMX and the families with products of bf16 leave types of 8 bits
# and less to AVX512 and NEON.
CPU_TYPES = (*BASIC_TYPES, Dtype.E4M3, Dtype.LATENT_E4M3, *QUANT_BLOCK_TYPES)
CPU_SHIP_TILES = (
    # arch, types, (B_r, B_c)
    (Arch.REFERENCE, CPU_TYPES, (16, 1)),
    (Arch.AVX2, CPU_TYPES, (96, 128)),
    (Arch.AVX512, CPU_TYPES, (96, 128)),
    (Arch.AMX, (Dtype.FP16,), (256, 128)),  # P takes twice the memory of BF16's
    (Arch.AMX, (Dtype.BF16,), (256, 256)),
    (Arch.NEON, CPU_TYPES, (96, 128)),
    (Arch.AVX512_BF16, (Dtype.BF16,), (96, 256)),
    (Arch.NEON_BF16, (Dtype.BF16,), (96, 256)),
)

GRADIENT_SHIP_TILES = (
    # arch, types, (B_r, B_c)
    (Arch.REFERENCE, BASIC_TYPES, (16, 16)),
    (Arch.AVX2, BASIC_TYPES, (96, 128)),
    (Arch.AVX512, BASIC_TYPES, (96, 128)),
    (Arch.AMX, (Dtype.BF16,), (128, 256)),
    (Arch.NEON, BASIC_TYPES, (96, 128)),
    (Arch.AVX512_BF16, (Dtype.BF16,), (96, 256)),
    (Arch.NEON_BF16, (Dtype.BF16,), (96, 256)),
)

# SM80 kernels that are installed: for each head dimension and class of features the tile and the
# fragments held at a time that measured best (docs/performance.md). A row serves every problem
# that needs no more features than it has, so only features that cost time have rows of their own.
FULL = 0
CAUSAL = Feature.CAUSAL
CAUSAL_VARLEN = Feature.CAUSAL | Feature.VARLEN
SM80_SHIP_TILES = (
    # d_head, features, (B_r, B_c), (Q, K, V fragments)
    (32, FULL, (128, 64), (0, 2, 2)),
    (32, CAUSAL, (128, 64), (0, 2, 2)),
    (32, BASIC_FEATURES, (128, 64), (0, 2, 2)),
    (64, FULL, (128, 128), (2, 2, 2)),
    (64, CAUSAL, (128, 64), (0, 2, 2)),
    (64, BASIC_FEATURES, (128, 64), (0, 2, 2)),
    (96, FULL, (128, 64), (2, 2, 2)),
    (96, CAUSAL, (128, 64), (2, 2, 2)),
    (96, BASIC_FEATURES, (128, 64), (2, 2, 2)),
    (128, FULL, (128, 64), (2, 2, 2)),
    (128, CAUSAL_VARLEN, (128, 64), (2, 2, 2)),  # without varlen it spills on compute capability 8
    (128, BASIC_FEATURES, (128, 64), (2, 2, 2)),
    (192, FULL, (64, 64), (0, 2, 2)),
    (192, CAUSAL, (64, 64), (0, 2, 2)),
    (192, BASIC_FEATURES, (64, 64), (0, 2, 2)),
    (256, FULL, (64, 64), (2, 2, 2)),
    (256, FULL, (64, 32), (0, 2, 2)),
    (256, CAUSAL, (64, 64), (2, 2, 2)),
    (256, CAUSAL, (64, 32), (0, 2, 2)),
    (256, BASIC_FEATURES, (64, 64), (2, 2, 2)),
)
# These load through registers and serve every alignment, with every feature.
SM80_SHIP_UNALIGNED_TILES = (
    (32, (64, 64)),
    (64, (128, 64)),
    (96, (64, 64)),
    (128, (64, 64)),
    (192, (64, 64)),
    (256, (64, 32)),
)
# These add ALiBi and masks, contiguous and in pages; problems at other alignments take the rows
# above with that feature.
SM80_SHIP_BIAS_TILES = (
    (64, (128, 64)),
    (128, (64, 64)),
    (256, (64, 32)),
)
# These serve K and V of e4m3, contiguous and in pages. They load through registers, and serve every
# alignment.
SM80_SHIP_E4M3_TILES = (
    (64, (128, 64)),
    (128, (64, 64)),
    (256, (64, 32)),
)

# These have dropout, contiguous alone: causal rows, and rows that add it to ALiBi and masks. The
# last one serves every alignment.
CAUSAL_DROPOUT = CAUSAL_VARLEN | Feature.DROPOUT
SM80_SHIP_DROPOUT_TILES = (
    # d_head, features, (B_r, B_c), fragments, async_copy
    (64, CAUSAL_DROPOUT, (128, 64), (0, 2, 2), 1),
    (128, CAUSAL_DROPOUT, (128, 64), (2, 2, 2), 1),
    (256, CAUSAL_DROPOUT, (64, 64), (2, 2, 2), 1),
    (64, DROPOUT_FEATURES, (64, 64), (2, 2, 2), 1),
    (128, DROPOUT_FEATURES, (64, 64), (2, 2, 2), 1),
    (256, DROPOUT_FEATURES, (64, 32), (2, 2, 2), 1),
    (256, DROPOUT_FEATURES, (64, 32), (2, 2, 2), 0),
)

# SM80 kernels of gradients that are installed: for each operation, head dimension and class of
# features the tile, warps and stages. The last rows are for blocks of 99 KB of shared memory.
SM80_GRADIENT_SHIP_TILES = (
    # op, d_head, features, (B_r, B_c, n_warps, n_stages)
    (Op.BACKWARD_DQ, 64, CAUSAL_VARLEN, (128, 64, 4, 2)),
    (Op.BACKWARD_DQ, 64, GRADIENT_FEATURES, (128, 64, 4, 2)),
    (Op.BACKWARD_DQ, 128, CAUSAL_VARLEN, (128, 32, 4, 2)),
    (Op.BACKWARD_DQ, 128, GRADIENT_FEATURES, (64, 64, 4, 2)),
    (Op.BACKWARD_DQ, 256, CAUSAL_VARLEN, (64, 32, 4, 1)),
    (Op.BACKWARD_DQ, 256, GRADIENT_FEATURES, (64, 32, 4, 1)),
    (Op.BACKWARD_DKV, 64, CAUSAL_VARLEN, (64, 128, 4, 2)),
    (Op.BACKWARD_DKV, 64, GRADIENT_FEATURES, (64, 128, 8, 2)),
    (Op.BACKWARD_DKV, 128, CAUSAL_VARLEN, (64, 64, 4, 1)),
    (Op.BACKWARD_DKV, 128, GRADIENT_FEATURES, (32, 64, 4, 2)),
    (Op.BACKWARD_DKV, 256, CAUSAL_VARLEN, (64, 64, 8, 1)),
    (Op.BACKWARD_DKV, 256, GRADIENT_FEATURES, (64, 64, 8, 1)),
    (Op.BACKWARD_DQ, 256, GRADIENT_FEATURES, (32, 32, 4, 2)),
    (Op.BACKWARD_DKV, 256, GRADIENT_FEATURES, (32, 32, 4, 1)),
    (Op.BACKWARD_DQ, 64, DROPOUT_FEATURES, (128, 64, 4, 2)),
    (Op.BACKWARD_DQ, 128, DROPOUT_FEATURES, (64, 32, 4, 2)),
    (Op.BACKWARD_DQ, 256, DROPOUT_FEATURES, (32, 32, 4, 2)),
    (Op.BACKWARD_DKV, 64, DROPOUT_FEATURES, (64, 128, 8, 2)),
    (Op.BACKWARD_DKV, 128, DROPOUT_FEATURES, (64, 64, 8, 1)),
    (Op.BACKWARD_DKV, 256, DROPOUT_FEATURES, (32, 32, 4, 1)),
    (Op.BACKWARD_DKV, 64, CAUSAL_DROPOUT, (64, 128, 4, 2)),
    (Op.BACKWARD_DKV, 128, CAUSAL_DROPOUT, (64, 64, 4, 1)),
    (Op.BACKWARD_DKV, 256, CAUSAL_DROPOUT, (64, 64, 8, 1)),
)

# SM90 kernels of gradients: for each operation and head dimension the tile, stages and whether they
# overlap, and the classes of features.
SM90_GRADIENT_CLASSES = (
    Feature.CAUSAL,
    Feature.CAUSAL | Feature.VARLEN,
    Feature.CAUSAL | Feature.WINDOW | Feature.VARLEN,
)
SM90_GRADIENT_TILES = (
    # op, d_head, d_head_v, (B_r, B_c, n_stages, overlap)
    (Op.BACKWARD_DQ, 64, 0, (128, 80, 4, 1)),
    (Op.BACKWARD_DQ, 128, 0, (128, 64, 4, 1)),
    (Op.BACKWARD_DQ, 192, 128, (128, 64, 3, 1)),
    (Op.BACKWARD_DQ, 256, 0, (128, 48, 2, 0)),
    (Op.BACKWARD_DKV, 64, 0, (96, 128, 3, 0)),
    (Op.BACKWARD_DKV, 128, 0, (64, 128, 3, 0)),
    (Op.BACKWARD_DKV, 192, 128, (64, 64, 4, 0)),
    (Op.BACKWARD_DKV, 256, 0, (48, 64, 3, 0)),
)
# These cap scores, with every feature that SM90 kernels of gradients have.
SM90_SOFTCAP_GRADIENT_TILES = (
    (Op.BACKWARD_DQ, 64, 0, (128, 64, 4, 1)),
    (Op.BACKWARD_DQ, 128, 0, (128, 64, 4, 1)),
    (Op.BACKWARD_DQ, 256, 0, (128, 32, 3, 0)),
    (Op.BACKWARD_DKV, 64, 0, (64, 128, 3, 0)),
    (Op.BACKWARD_DKV, 128, 0, (48, 128, 3, 0)),
    (Op.BACKWARD_DKV, 256, 0, (32, 64, 3, 0)),
)
SM90_GRADIENT_CANDIDATES = (
    (Op.BACKWARD_DQ, 64, 0, (128, 64, 4, 1)),
    (Op.BACKWARD_DKV, 64, 0, (80, 128, 4, 0)),
    (Op.BACKWARD_DKV, 192, 128, (96, 64, 2, 0)),
)

# Decode kernels that are installed, for K and V of 16 bits and of e4m3. Each takes 96 KB of shared
# memory, or 128 KB at d_head 256.
SM80_DECODE_SHIP_SHAPES = (
    # d_head, B_r, B_c, n_warps
    ("64, 8, 32, 4", "stages_3"),
    ("64, 16, 32, 4", "stages_3"),
    ("128, 8, 16, 4", "stages_3"),
    ("128, 16, 16, 4", "stages_3"),
    ("256, 8, 16, 4", "stages_2"),
)
SM80_DECODE_SHIP_E4M3_SHAPES = (
    ("64, 8, 32, 4", "stages_6"),
    ("64, 16, 32, 4", "stages_6"),
    ("128, 8, 32, 4", "stages_3"),
    ("128, 16, 32, 4", "stages_3"),
    ("256, 8, 16, 4", "stages_4"),
)

# SM80_MLA kernels that are installed: for few query heads, for many, and for many where a block has
# less than 128 KB of shared memory.
SM80_MLA_SHIP_SHAPES = (
    # B_r, B_c, n_warps
    ("32, 16, 4", "stages_4"),
    ("64, 32, 8", "stages_3"),
    ("64, 16, 8", "stages_4"),
)
# These tiles serve latent tokens. One alone has ALiBi and masks too, so that rows are few.
SM80_MLA_SHIP_LATENT_ROWS = (
    ("32, 16, 4", "stages_3", 0),
    ("64, 32, 8", "stages_3", 0),
    ("64, 16, 8", "stages_4", 0),
    ("64, 16, 8", "stages_4", Feature.BIAS),
)

# SM80_WIDE kernels that are installed: those of 16 keys, for blocks of any size, have ALiBi and
# masks too; those of 32 are for blocks of 160 KB or more, and for calls without either.
SM80_WIDE_SHIP_ROWS = (
    # dtype, (B_r, B_c, n_warps), strategies, features
    (Dtype.FP16, "64, 16, 8", "stages_2", Feature.BIAS),
    (Dtype.BF16, "64, 16, 8", "stages_2", Feature.BIAS),
    (Dtype.E4M3, "64, 16, 8", "stages_3", Feature.BIAS),
    (Dtype.FP16, "64, 32, 8", "stages_2", 0),
    (Dtype.BF16, "64, 32, 8", "stages_2", 0),
)

# SM90 kernels that are installed, with the strategies of each in the words of the short form.
MASKED = Feature.CAUSAL | Feature.WINDOW | Feature.SOFTCAP
ALTERNATING = "stages_3+overlap+ping_pong+persistent+fixed_reference"
# UNEVEN is for tiles that differ in length.
ALTERNATING_UNEVEN = "stages_3+overlap+ping_pong+persistent+longest_first+fixed_reference"
TWO_STAGES = "stages_2+overlap+ping_pong+persistent+fixed_reference"
TWO_STAGES_UNEVEN = "stages_2+overlap+ping_pong+persistent+longest_first+fixed_reference"
OVERLAPPED = "stages_2+overlap+persistent+fixed_reference"
OVERLAPPED_UNEVEN = "stages_2+overlap+persistent+longest_first+fixed_reference"
SM90_SHIP_TILES = (
    # d_head, or d_head/d_head_v; features; (B_r, B_c); strategies
    (64, FULL, (128, 128), ALTERNATING),  # few tiles
    (64, FULL, (192, 128), ALTERNATING),
    (64, CAUSAL, (128, 128), ALTERNATING_UNEVEN),
    (64, CAUSAL, (192, 128), ALTERNATING_UNEVEN),  # from 8,192 keys on
    (64, MASKED, (128, 128), ALTERNATING_UNEVEN),
    (64, MASKED, (192, 96), ALTERNATING_UNEVEN),  # narrow windows, as gpt-oss has them
    (96, FULL, (128, 128), ALTERNATING),
    (96, CAUSAL, (128, 128), ALTERNATING_UNEVEN),
    (96, MASKED, (128, 128), ALTERNATING_UNEVEN),
    (128, FULL, (128, 128), ALTERNATING),
    (128, CAUSAL, (128, 128), ALTERNATING_UNEVEN),
    (128, MASKED, (128, 128), ALTERNATING_UNEVEN),
    ("192/128", FULL, (128, 128), TWO_STAGES),
    ("192/128", CAUSAL, (128, 128), TWO_STAGES_UNEVEN),
    ("192/128", MASKED, (128, 128), TWO_STAGES_UNEVEN),
    (192, FULL, (128, 64), ALTERNATING),
    (192, CAUSAL, (128, 64), ALTERNATING_UNEVEN),
    (192, MASKED, (128, 64), ALTERNATING_UNEVEN),
    (256, FULL, (128, 64), OVERLAPPED),
    (256, CAUSAL, (128, 64), OVERLAPPED_UNEVEN),
    (256, MASKED, (128, 64), OVERLAPPED_UNEVEN),
)

# These serve ragged batches, in the classes of features below, and pages.
SM90_SHIP_VARLEN_TILES = (
    # d_head, or d_head/d_head_v; (B_r, B_c); strategies
    (64, (128, 128), ALTERNATING_UNEVEN),
    (96, (128, 128), ALTERNATING_UNEVEN),
    (128, (128, 128), ALTERNATING_UNEVEN),
    ("192/128", (128, 96), TWO_STAGES_UNEVEN),
    (192, (128, 64), ALTERNATING_UNEVEN),
    (256, (128, 64), OVERLAPPED_UNEVEN),
)
SM90_RAGGED_CLASSES = (
    Feature.VARLEN,
    CAUSAL_VARLEN,
    CAUSAL_VARLEN | Feature.PAGED,
    BASIC_FEATURES,
    PAGED_FEATURES,
)
# No call is more than 3 % slower without these: rows of more features, or of 192, serve as fast
# (benchmarks/gpu/row_worth.py on an H100, 2026-11-27).
SM90_NOT_WORTH_A_ROW = (
    (64, Feature.VARLEN),
    ("192/128", Feature.VARLEN),
    ("192/128", BASIC_FEATURES),
    (256, CAUSAL_VARLEN | Feature.PAGED),
)

# Tiles and stages that tuning compares at d_head 192 and d_head_v 128. Q stays in registers up to a
# B_c of 96, O has a slot of its own up to 112, and three warpgroups leave registers for 80 keys.
SM90_TUNE_TILES_192_128 = (
    ((128, 80), 3),
    ((128, 96), 2),
    ((128, 112), 2),
    ((128, 128), 2),
    ((192, 80), 2),
)
# These serve K and V of e4m3, contiguous and in pages.
SM90_SHIP_E4M3_TILES = (
    # d_head, (B_r, B_c), strategies
    (64, (128, 128), ALTERNATING_UNEVEN),
    (128, (128, 128), TWO_STAGES_UNEVEN),
    (256, (128, 64), OVERLAPPED_UNEVEN),
)
# These multiply Q, K and V of e4m3 as such: rows to tune, and those that are installed.
SM90_FP8_D_HEADS = (64, 128, 192, 256)
SM90_FP8_CLASSES = (FULL, CAUSAL, BASIC_FEATURES)
SM90_SHIP_FP8_ROWS = (
    # d_head, features, strategies
    (64, FULL, "stages_3+overlap+ping_pong+persistent"),
    (64, CAUSAL, "stages_3+overlap+ping_pong+persistent+longest_first"),
    (128, FULL, "stages_3+overlap+ping_pong+persistent"),
    (128, CAUSAL, "stages_3+overlap+ping_pong+persistent+longest_first"),
    (192, FULL, "stages_2+ping_pong+persistent"),
    (192, CAUSAL, "stages_2+ping_pong+persistent+longest_first"),
    (192, BASIC_FEATURES, "stages_2+ping_pong+persistent+longest_first"),
    (256, FULL, "stages_2+ping_pong+persistent"),
    (256, CAUSAL, "stages_2+ping_pong+persistent+longest_first"),
    (256, BASIC_FEATURES, "stages_2+ping_pong+persistent+longest_first"),
)
# These add ALiBi and masks, contiguous and in pages, in tiles of rows for ragged batches.
SM90_SHIP_BIAS_D_HEADS = (64, 128, 256)

# These serve chunks of prompts and long drafts, contiguous and in pages.
SM90_DECODE_SHIP_SHAPES = (
    # d_head, (B_r, B_c), strategies
    (64, (64, 128), "stages_4"),
    (64, (128, 128), "stages_4+ping_pong"),
    (128, (64, 128), "stages_3"),
    (128, (128, 128), "stages_3+ping_pong"),
    (256, (64, 64), "stages_3"),
)
SM90_DECODE_SHIP_E4M3_SHAPES = (
    (64, (64, 128), "stages_4"),
    (64, (128, 128), "stages_4+ping_pong"),
    (128, (64, 128), "stages_3"),
    (128, (128, 128), "stages_2+ping_pong"),
    (256, (64, 64), "stages_2"),
)
# These multiply e4m3 as such, for Q of e4m3.
SM90_DECODE_SHIP_FP8_SHAPES = (
    (64, (64, 128), "stages_4"),
    (64, (128, 128), "stages_4+ping_pong"),
    (128, (64, 128), "stages_4"),
    (128, (128, 128), "stages_4+ping_pong"),
)
SM90_DECODE_TUNE_FP8_SHAPES = (
    (128, (64, 128), "stages_3"),
    (128, (128, 128), "stages_3+ping_pong"),
)
# Tiles and stages of e4m3 that tuning compares with those at d_head 128.
SM90_DECODE_TUNE_E4M3_SHAPES = (
    (128, (64, 64), "stages_4"),
    (128, (64, 128), "stages_2"),
    (128, (128, 64), "stages_4+ping_pong"),
    (128, (128, 64), "stages_4"),
    (128, (128, 128), "stages_2"),
)


def cartesian(**values: Iterable[int]) -> list[Config]:
    """Returns every combination of the fields' values; fields that are not given are 0."""
    return [Config(**dict(zip(values, combination))) for combination in product(*values.values())]


def progression() -> list[Config]:
    """Returns the progression step by step, which is not in sort order."""
    return [parse_config(step) for step in PROGRESSION]


def progression_sm90() -> list[Config]:
    """Returns the progression of SM90 step by step, for full attention and then for causal."""
    steps = [(text, FULL) for text in PROGRESSION_SM90_FULL]
    steps += [(text, CAUSAL) for text in PROGRESSION_SM90]
    return [
        replace(parse_config(f"{PROGRESSION_SM90_SHAPE}: {text}"), features=int(features))
        for text, features in steps
    ]


def progression_all_block_sizes() -> list[Config]:
    """Returns the progression at every block shape, step by step."""
    shapes = [
        {"B_r": B_r, "B_c": B_c, "n_warps": n_warps}
        for B_r, B_c, n_warps in product((128, 64), (128, 64, 32), (4, 8))
        if B_r >= B_c and not (n_warps == 8 and B_r < 128)
    ]
    return [replace(step, **shape) for shape in shapes for step in progression()]


def tune() -> list[Config]:
    """Returns what tuning measures: every strategy that always pays is on, the rest varies."""
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


def tune_sm90() -> list[Config]:
    """Returns what tuning measures of SM90, with strategies that pay: at d_head 128 blocks of keys
    and stages, and the tiles of SM90_TUNE_TILES_192_128."""
    shapes = [
        (128, (128, B_c), n_stages)
        for B_c in (80, 96, 112, 128, 144, 160, 176)
        for n_stages in (2, 3, 4)
    ]
    shapes += [("192/128", tile, n_stages) for tile, n_stages in SM90_TUNE_TILES_192_128]
    candidates = [
        replace(_sm90(dtype, d_head, features, tile, strategies), n_stages=n_stages)
        for dtype in (Dtype.FP16, Dtype.BF16)
        for features, strategies in ((FULL, ALTERNATING), (CAUSAL, ALTERNATING_UNEVEN))
        for d_head, tile, n_stages in shapes
    ]
    return [config for config in candidates if legal(config)]


def tune_sm80_mla() -> list[Config]:
    """Returns what tuning measures of SM80_MLA, without pages: every tile, with few stages, so that
    two blocks fit a multiprocessor where they can."""
    candidates = cartesian(
        arch=[Arch.SM80_MLA],
        dtype=[Dtype.FP16, Dtype.BF16, Dtype.E4M3],
        d_head=[576],
        d_head_v=[512],
        B_r=[16, 32, 64],
        B_c=[16, 32],
        n_warps=[4, 8],
        n_stages=[3, 4],
        features=[BASIC_FEATURES],
    )
    return [config for config in candidates if legal(config)]


def tune_sm90_fp8() -> list[Config]:
    """Returns rows of SM90 and SM90_DECODE that multiply e4m3."""
    candidates = [
        replace(_sm90_fp8(d_head, features, _fp8_strategies(d_head, features)), ping_pong=ping_pong)
        for d_head in SM90_FP8_D_HEADS
        for features in SM90_FP8_CLASSES
        for ping_pong in (0, 1)
        if features != BASIC_FEATURES or not ping_pong or d_head > 128
    ]
    prefill = [config for config in candidates if legal(config)]
    return prefill + _sm90_decode(Dtype.E4M3, SM90_DECODE_TUNE_FP8_SHAPES, Dtype.E4M3)


def _sm90_gradient(
    dtype: Dtype,
    op: Op,
    d_head: int,
    d_head_v: int,
    shape: tuple[int, int, int, int],
    features: int,
) -> Config:
    B_r, B_c, n_stages, overlap = shape
    return Config(
        arch=Arch.SM90,
        op=op,
        dtype=dtype,
        d_head=d_head,
        d_head_v=d_head_v,
        B_r=B_r,
        B_c=B_c,
        n_warps=12,
        n_stages=n_stages,
        overlap=overlap,
        features=int(features),
    )


def ship_sm90_gradients() -> list[Config]:
    """Returns per type, operation and head dimension a row per class of features, and one of all
    with softcap."""
    types = (Dtype.FP16, Dtype.BF16)
    plain = [
        _sm90_gradient(dtype, op, d_head, d_head_v, shape, features)
        for dtype in types
        for op, d_head, d_head_v, shape in SM90_GRADIENT_TILES
        for features in SM90_GRADIENT_CLASSES
    ]
    capped = [
        _sm90_gradient(dtype, op, d_head, d_head_v, shape, BASIC_FEATURES)
        for dtype in types
        for op, d_head, d_head_v, shape in SM90_SOFTCAP_GRADIENT_TILES
    ]
    return plain + capped


def tune_sm90_gradients() -> list[Config]:
    """Returns rows of other tiles beside them."""
    return ship_sm90_gradients() + [
        _sm90_gradient(Dtype.BF16, op, d_head, d_head_v, shape, Feature.CAUSAL)
        for op, d_head, d_head_v, shape in SM90_GRADIENT_CANDIDATES
    ]


def ship_cpu() -> list[Config]:
    """Returns the CPU kernels, which take any d_head and every feature of their family. Those with
    dropout are rows of their own, for training."""
    plain = [
        config
        for arch, types, (B_r, B_c) in CPU_SHIP_TILES
        for config in cartesian(
            arch=[arch], dtype=types, B_r=[B_r], B_c=[B_c], features=[CPU_FEATURES]
        )
    ]
    dropping = [
        replace(config, features=DROPOUT_FEATURES)
        for config in plain
        if config.dtype in BASIC_TYPES
        and rows_of(config.arch, Op.FORWARD).features & Feature.DROPOUT
    ]
    return plain + dropping


def ship_gradients() -> list[Config]:
    """Returns the CPU kernels of gradients, which take any d_head and every feature that they may
    have; with and without dropout."""
    return [
        config
        for arch, types, (B_r, B_c) in GRADIENT_SHIP_TILES
        for op in (Op.BACKWARD_DQ, Op.BACKWARD_DKV)
        for config in cartesian(
            arch=[arch],
            op=[op],
            dtype=types,
            B_r=[B_r],
            B_c=[B_c],
            features=[GRADIENT_FEATURES, DROPOUT_FEATURES],
        )
    ]


def _sm80(
    dtype: Dtype,
    d_head: int,
    features: int,
    tile: tuple[int, int],
    fragments: tuple[int, int, int],
    async_copy: int,
) -> Config:
    return Config(
        arch=Arch.SM80,
        dtype=dtype,
        d_head=d_head,
        B_r=tile[0],
        B_c=tile[1],
        n_warps=4,
        async_copy=async_copy,
        eager_load_blocks=async_copy,
        swizzled=1,
        Q_mma_load_K_fragments=fragments[0],
        K_mma_load_K_fragments=fragments[1],
        V_mma_load_K_fragments=fragments[2],
        optimized_softmax=1,
        features=int(features),
    )


def ship_sm80() -> list[Config]:
    """Returns per head dimension a row per class of features, one for pages and one for every
    alignment; for e4m3 a row with all features but pages, and one with all. ALiBi and masks have
    rows of their own, of which some read pages at every alignment."""
    types = (Dtype.FP16, Dtype.BF16)
    aligned = [
        _sm80(dtype, d_head, features, tile, fragments, async_copy=1)
        for dtype in types
        for d_head, features, tile, fragments in SM80_SHIP_TILES
    ]
    paged = [
        replace(config, features=PAGED_FEATURES)
        for config in aligned
        if config.features == BASIC_FEATURES
    ]
    unaligned = [
        _sm80(dtype, d_head, BASIC_FEATURES, tile, (2, 2, 2), async_copy=0)
        for dtype in types
        for d_head, tile in SM80_SHIP_UNALIGNED_TILES
    ]
    converting = [
        _sm80(Dtype.E4M3, d_head, features, tile, (2, 2, 2), async_copy=0)
        for d_head, tile in SM80_SHIP_E4M3_TILES
        for features in (BASIC_FEATURES, PAGED_FEATURES)
    ]
    biased = [
        _sm80(dtype, d_head, features | Feature.BIAS, tile, (2, 2, 2), async_copy=1)
        for dtype in types
        for d_head, tile in SM80_SHIP_BIAS_TILES
        for features in (BASIC_FEATURES, PAGED_FEATURES)
    ]
    general = [
        replace(config, features=config.features | Feature.BIAS)
        for config in unaligned + converting
    ]
    unaligned_paged = [
        replace(config, features=PAGED_FEATURES | Feature.BIAS)
        for config in unaligned
        if config.d_head in dict(SM80_SHIP_BIAS_TILES)
    ]
    dropping = [
        _sm80(dtype, d_head, features, tile, fragments, async_copy)
        for dtype in types
        for d_head, features, tile, fragments, async_copy in SM80_SHIP_DROPOUT_TILES
    ]
    return aligned + paged + unaligned + converting + biased + general + unaligned_paged + dropping


def _with_bias_of_most_rows(plain: list[Config]) -> list[Config]:
    """Returns the rows of the largest B_r of each type and head dimension, with the bias."""
    most_rows = {(config.dtype, config.d_head): config.B_r for config in sorted(plain)}
    return [
        replace(config, features=config.features | Feature.BIAS)
        for config in plain
        if config.B_r == most_rows[config.dtype, config.d_head]
    ]


def ship_sm80_gradients() -> list[Config]:
    """Returns per type, operation and head dimension a row per class of features, and for blocks
    of little shared memory one more."""
    return [
        Config(
            arch=Arch.SM80,
            op=op,
            dtype=dtype,
            d_head=d_head,
            B_r=B_r,
            B_c=B_c,
            n_warps=n_warps,
            n_stages=n_stages,
            features=int(features),
        )
        for dtype in (Dtype.FP16, Dtype.BF16)
        for op, d_head, features, (B_r, B_c, n_warps, n_stages) in SM80_GRADIENT_SHIP_TILES
    ]


def ship_sm80_decode() -> list[Config]:
    """Returns the rows of each head dimension and B_r, contiguous and in pages; and those with
    ALiBi and masks, of the larger B_r."""
    shapes = {
        Dtype.FP16: SM80_DECODE_SHIP_SHAPES,
        Dtype.BF16: SM80_DECODE_SHIP_SHAPES,
        Dtype.E4M3: SM80_DECODE_SHIP_E4M3_SHAPES,
    }
    plain = [
        replace(parse_config(f"SM80_DECODE ({dtype.name}, {shape}): {stages}"), features=features)
        for dtype, of_dtype in shapes.items()
        for shape, stages in of_dtype
        for features in (BASIC_FEATURES, PAGED_FEATURES)
    ]
    return plain + _with_bias_of_most_rows(plain)


def ship_sm80_mla() -> list[Config]:
    """Returns the rows of each type and tile, contiguous and in pages, without and with ALiBi and
    masks."""
    with_and_without = [
        (*shape, bias) for shape in SM80_MLA_SHIP_SHAPES for bias in (0, Feature.BIAS)
    ]
    of_type = {
        **dict.fromkeys((Dtype.FP16, Dtype.BF16, Dtype.E4M3), with_and_without),
        Dtype.LATENT_E4M3: SM80_MLA_SHIP_LATENT_ROWS,
    }
    return [
        replace(
            parse_config(f"SM80_MLA ({dtype.name}, 576/512, {shape}): {stages}"),
            features=features | bias,
        )
        for dtype, rows in of_type.items()
        for shape, stages, bias in rows
        for features in (BASIC_FEATURES, PAGED_FEATURES)
    ]


def ship_sm80_wide() -> list[Config]:
    """Returns the rows of each type and tile, contiguous and in pages."""
    return [
        replace(
            parse_config(f"SM80_WIDE ({dtype.name}, 512, {shape}): {stages}"),
            features=features | bias,
        )
        for dtype, shape, stages, bias in SM80_WIDE_SHIP_ROWS
        for features in (BASIC_FEATURES, PAGED_FEATURES)
    ]


def sm90_warps(dtype: Dtype, B_r: int, operand_dtype: int = 0) -> int:
    return computed("sm90_warps", Config(dtype=dtype, operand_dtype=operand_dtype, B_r=B_r))


def _sm90(
    dtype: Dtype, d_head: int | str, features: int, tile: tuple[int, int], strategies: str
) -> Config:
    """d_head is as in the short form: a number, or two with d_head_v."""
    B_r, B_c = tile
    n_warps = sm90_warps(dtype, B_r)
    shape = f"SM90 ({dtype.name}, {d_head}, {B_r}, {B_c}, {n_warps})"
    return replace(parse_config(f"{shape}: {strategies}"), features=int(features))


def _fp8_strategies(d_head: int, features: int) -> str:
    strategies = "stages_3+overlap+persistent" if d_head <= 128 else "stages_2+persistent"
    return strategies + ("+longest_first" if features else "")


def _sm90_fp8(d_head: int, features: int, strategies: str) -> Config:
    shape = f"SM90 (E4M3/E4M3, {d_head}, 128, 128, 12)"
    return replace(parse_config(f"{shape}: {strategies}"), features=int(features))


def ship_sm90() -> list[Config]:
    """Returns per head dimension a row per class of features; for K and V of e4m3 one with pages,
    one without. Rows with ALiBi and masks are those with all other features, with a running
    maximum."""
    ragged = [
        (d_head, features, tile, strategies)
        for d_head, tile, strategies in SM90_SHIP_VARLEN_TILES
        for features in SM90_RAGGED_CLASSES
        if (d_head, features) not in SM90_NOT_WORTH_A_ROW
    ]
    rows = [
        _sm90(dtype, *row)
        for dtype in (Dtype.FP16, Dtype.BF16)
        for row in (*SM90_SHIP_TILES, *ragged)
    ]
    converting = [
        _sm90(Dtype.E4M3, d_head, features, tile, strategies)
        for d_head, tile, strategies in SM90_SHIP_E4M3_TILES
        for features in (BASIC_FEATURES, PAGED_FEATURES)
    ]
    biased = [
        replace(config, features=config.features | Feature.BIAS, fixed_reference=0)
        for config in rows + converting
        if config.d_head in SM90_SHIP_BIAS_D_HEADS
        and config.features in (BASIC_FEATURES, PAGED_FEATURES)
    ]
    counting = [
        replace(config, features=config.features | Feature.BIAS)
        for config in rows
        if config.dtype == Dtype.BF16
        and config.d_head == 128
        and config.features == Feature.VARLEN
    ]
    products = [_sm90_fp8(*row) for row in SM90_SHIP_FP8_ROWS]
    return rows + converting + biased + counting + products


def _sm90_decode(
    dtype: Dtype, shapes: Iterable[tuple[int, tuple[int, int], str]], operand_dtype: int = 0
) -> list[Config]:
    """Returns a row of each shape, contiguous and in pages."""
    return [
        replace(
            parse_config(
                f"SM90_DECODE ({dtype.name}, {d_head}, {B_r}, {B_c}, "
                f"{sm90_warps(dtype, B_r, operand_dtype)}): {strategies}"
            ),
            features=features,
            operand_dtype=operand_dtype,
        )
        for d_head, (B_r, B_c), strategies in shapes
        for features in (BASIC_FEATURES, PAGED_FEATURES)
    ]


def ship_sm90_decode() -> list[Config]:
    """Returns the rows of each type, head dimension and B_r; of 16 bits those with ALiBi and masks,
    of the larger B_r. Rows that multiply e4m3 as such have softcap at the larger B_r alone: cold,
    the others take a tenth of the time less without that code."""
    halves = [
        config
        for dtype in (Dtype.FP16, Dtype.BF16)
        for config in _sm90_decode(dtype, SM90_DECODE_SHIP_SHAPES)
    ]
    converting = _sm90_decode(Dtype.E4M3, SM90_DECODE_SHIP_E4M3_SHAPES)
    multiplying = _sm90_decode(Dtype.E4M3, SM90_DECODE_SHIP_FP8_SHAPES, Dtype.E4M3)
    without_softcap = [
        replace(config, features=config.features & ~Feature.SOFTCAP) for config in multiplying
    ]
    with_softcap = [config for config in multiplying if config.B_r == 128]
    products = without_softcap + with_softcap
    return halves + _with_bias_of_most_rows(halves) + converting + products


def tune_sm90_decode() -> list[Config]:
    """Returns what tuning compares with the rows of e4m3 that are installed."""
    return _sm90_decode(Dtype.E4M3, SM90_DECODE_TUNE_E4M3_SHAPES)


def ship_sm90_mla() -> list[Config]:
    """Returns the rows of each type, contiguous and in pages, whose blocks have one tile or walk a
    part of the batch, and for 16 bits those with ALiBi and masks."""
    types = ((Dtype.FP16, 12), (Dtype.BF16, 12), (Dtype.E4M3, 16), (Dtype.LATENT_E4M3, 16))
    return _with_bias_of_halves(
        [
            replace(
                parse_config(f"SM90_MLA ({dtype.name}, 576/512, 64, 64, {n_warps}): {words}"),
                features=features,
            )
            for dtype, n_warps in types
            for features in (BASIC_FEATURES, PAGED_FEATURES)
            for words in ("stages_2", "stages_2+persistent")
        ]
    )


def ship_sm90_wide() -> list[Config]:
    """Returns the rows of each type, contiguous and in pages, and for 16 bits those with ALiBi and
    masks."""
    return _with_bias_of_halves(
        [
            replace(
                parse_config(f"SM90_WIDE ({dtype.name}, 512, 64, 64, {n_warps}): stages_1"),
                features=features,
            )
            for dtype, n_warps in ((Dtype.FP16, 12), (Dtype.BF16, 12), (Dtype.E4M3, 16))
            for features in (BASIC_FEATURES, PAGED_FEATURES)
        ]
    )


def _with_bias_of_halves(plain: list[Config]) -> list[Config]:
    """Returns the rows, and for 16 bits those that also have ALiBi and masks."""
    return plain + [
        replace(config, features=config.features | Feature.BIAS)
        for config in plain
        if config.dtype in (Dtype.FP16, Dtype.BF16) and not config.persistent
    ]


def ship_mixed() -> list[Config]:
    """Returns per type and B_r, the rows of decoded sequences, a row for every head dimension,
    contiguous and in pages, and with ALiBi and masks. These rows have no kernels."""
    return cartesian(
        arch=[Arch.MIXED],
        dtype=[Dtype.FP16, Dtype.BF16, Dtype.E4M3],
        d_head=[256],
        B_r=[16, 32],
        features=[
            features | of_bias
            for features in (BASIC_FEATURES, PAGED_FEATURES)
            for of_bias in (0, int(Feature.BIAS))
        ],
    )


def ship() -> list[Config]:
    """Returns the kernels of an installed library, the default build."""
    return (
        ship_cpu()
        + ship_gradients()
        + ship_sm80()
        + ship_sm80_gradients()
        + ship_sm80_decode()
        + ship_sm80_mla()
        + ship_sm80_wide()
        + ship_sm90()
        + ship_sm90_gradients()
        + ship_sm90_decode()
        + ship_sm90_mla()
        + ship_sm90_wide()
        + ship_mixed()
    )


def pairs_of_values(config: Config) -> set[tuple]:
    """Returns each two values of two fields that a configuration has, with its family and
    operation."""
    values = [(field, getattr(config, field)) for field in FIELDS]
    return {(config.arch, config.op, *pair) for pair in combinations(values, 2)}


@cache
def pairs() -> tuple[Config, ...]:
    """Returns few of the shipped kernels, such that every two values of two fields that a family
    has in one kernel are in one of these too."""
    candidates = {config: pairs_of_values(config) for config in sorted(ship())}
    missing = set().union(*candidates.values())
    chosen = []
    while missing:
        best = max(candidates, key=lambda config: len(candidates[config] & missing))
        missing -= candidates.pop(best)
        chosen.append(best)
    return tuple(chosen)


@cache
def all_sets() -> tuple[Config, ...]:
    """Returns every legal configuration of the other sets."""
    named = {
        *progression(),
        *progression_all_block_sizes(),
        *progression_sm90(),
        *tune(),
        *tune_sm90(),
        *tune_sm80_mla(),
        *tune_sm90_fp8(),
        *tune_sm90_decode(),
        *tune_sm90_gradients(),
        *ship(),
    }
    return tuple(sorted(config for config in named if legal(config)))


SETS = {
    "progression": progression,
    "progression_all_block_sizes": progression_all_block_sizes,
    "progression_sm90": progression_sm90,
    "tune": tune,
    "tune_sm90": tune_sm90,
    "tune_sm80_mla": tune_sm80_mla,
    "tune_sm90_fp8": tune_sm90_fp8,
    "tune_sm90_decode": tune_sm90_decode,
    "tune_sm90_gradients": tune_sm90_gradients,
    "ship": ship,
    "pairs": pairs,
    "all": all_sets,
}
