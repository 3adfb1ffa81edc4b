"""Hypothesis strategies for configurations: legal ones, illegal ones, and near misses."""

from dataclasses import replace

from hypothesis import strategies as st

from codegen.config import Config
from codegen.facts import (
    FAMILIES,
    FIELDS,
    INT32_MAX,
    INT32_MIN,
    KNOWN_FEATURES,
    MIXED,
    SM80,
    SM80_DECODE,
    SM80_MLA,
    SM80_WIDE,
    SM90,
    SM90_DECODE,
    SM90_MLA,
    SM90_WIDE,
    Arch,
    Dtype,
)
from codegen.kernel_rules import computed
from codegen.sets import all_sets

INTERESTING = [-1, 0, 1, 2, 3, 4, 5, 8, 12, 16, 32, 48, 64, 80, 96, 128, 192, 256, 1024, 4096]
int32 = st.sampled_from([*INTERESTING, INT32_MIN, INT32_MAX]) | st.integers(INT32_MIN, INT32_MAX)

dtypes = st.sampled_from([int(dtype) for dtype in Dtype])
features = st.integers(0, KNOWN_FEATURES)
LOADS = SM80.counts.fields
# Fields that mean something to one of the CUDA families alone.
SM80_FIELDS = tuple(field for field in SM80.fields if field not in SM90.fields)
SM90_FIELDS = tuple(field for field in SM90.fields if field not in SM80.fields)
switches = dict.fromkeys(SM80.switches, st.integers(0, 1))
sm90_switches = dict.fromkeys(SM90.switches, st.integers(0, 1))

# Any field may hold anything.
any_config = st.builds(Config, **dict.fromkeys(FIELDS, int32))

# Configurations with a short form: any numbers, but known enumerators and words.
cpu_config = st.builds(
    Config,
    arch=st.sampled_from([int(f.arch) for f in FAMILIES.values() if f.on_cpu]),
    dtype=dtypes,
    d_head=int32,
    B_r=int32,
    B_c=int32,
    features=features,
)
sm80_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM80)),
    dtype=dtypes,
    features=features,
    **dict.fromkeys(("d_head", "B_r", "B_c", "n_warps", *LOADS), int32),
    **switches,
)
sm90_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM90)),
    dtype=dtypes,
    operand_dtype=st.just(0) | dtypes,
    features=features,
    **dict.fromkeys(("d_head", "B_r", "B_c", "n_warps", "n_stages", "d_head_v"), int32),
    **sm90_switches,
)
sm80_decode_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM80_DECODE)),
    dtype=dtypes,
    features=features,
    **dict.fromkeys(("d_head", *SM80_DECODE.shape, *SM80_DECODE.counts.fields), int32),
)
sm80_mla_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM80_MLA)),
    dtype=dtypes,
    features=features,
    **dict.fromkeys(("d_head", "d_head_v", *SM80_MLA.shape, *SM80_MLA.counts.fields), int32),
)
sm80_wide_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM80_WIDE)),
    dtype=dtypes,
    features=features,
    **dict.fromkeys(("d_head", *SM80_WIDE.shape, *SM80_WIDE.counts.fields), int32),
)
sm90_decode_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM90_DECODE)),
    dtype=dtypes,
    features=features,
    ping_pong=st.sampled_from([0, 1]),
    **dict.fromkeys(("d_head", *SM90_DECODE.shape, *SM90_DECODE.counts.fields), int32),
)
sm90_mla_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM90_MLA)),
    dtype=dtypes,
    features=features,
    persistent=st.sampled_from([0, 1]),
    **dict.fromkeys(("d_head", "d_head_v", *SM90_MLA.shape, *SM90_MLA.counts.fields), int32),
)
sm90_wide_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM90_WIDE)),
    dtype=dtypes,
    features=features,
    **dict.fromkeys(("d_head", *SM90_WIDE.shape, *SM90_WIDE.counts.fields), int32),
)
mixed_family_config = st.builds(
    Config,
    arch=st.just(int(Arch.MIXED)),
    dtype=dtypes,
    features=features,
    **dict.fromkeys(("d_head", *MIXED.shape), int32),
)
writable_config = (
    cpu_config
    | sm80_config
    | sm80_decode_config
    | sm80_mla_config
    | sm80_wide_config
    | sm90_config
    | sm90_decode_config
    | sm90_mla_config
    | sm90_wide_config
    | mixed_family_config
)

# Configurations of the SM80 family that are mostly legal.
plausible_sm80_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM80)),
    dtype=st.sampled_from([1, 2, 4]),
    d_head=st.sampled_from([32, 64, 96, 128, 192, 256]),
    B_r=st.sampled_from([64, 128]),
    B_c=st.sampled_from([32, 64, 128]),
    n_warps=st.sampled_from([4, 8]),
    features=features,
    **{field: st.sampled_from([0, 2, 4, 8, 16, 32]) for field in LOADS},
    **switches,
)

# The same of the SM80_DECODE family. Some take more shared memory than there is.
plausible_sm80_decode_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM80_DECODE)),
    dtype=st.sampled_from([1, 2, 4]),
    d_head=st.sampled_from([64, 128, 256]),
    B_r=st.sampled_from([8, 16]),
    B_c=st.sampled_from([16, 32]),
    n_warps=st.sampled_from([4, 8]),
    n_stages=st.integers(2, 8),
    features=features,
)

# These are the same of the SM80_MLA family. Some take more shared memory than there is.
plausible_sm80_mla_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM80_MLA)),
    dtype=st.sampled_from([1, 2, 4]),
    d_head=st.sampled_from([576, 576, 576, 512]),
    d_head_v=st.just(512),
    B_r=st.sampled_from([16, 32, 64]),
    B_c=st.sampled_from([16, 32]),
    n_warps=st.sampled_from([4, 8]),
    n_stages=st.integers(3, 6),
    features=features,
)

# These are the same of the SM80_WIDE family.
plausible_sm80_wide_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM80_WIDE)),
    dtype=st.sampled_from([1, 2, 4]),
    d_head=st.sampled_from([512, 512, 512, 256]),
    B_r=st.sampled_from([32, 64]),
    B_c=st.sampled_from([16, 32]),
    n_warps=st.sampled_from([4, 8]),
    n_stages=st.integers(2, 4),
    features=features,
)

# The same of the SM90 family, warps included.
plausible_sm90_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM90)),
    dtype=st.sampled_from([1, 2, 4]),
    d_head=st.sampled_from([64, 96, 128, 192, 256]),
    B_r=st.sampled_from([64, 128, 192]),
    B_c=st.sampled_from([16, 64, 80, 96, 128, 176, 256]),
    d_head_v=st.sampled_from([0, 0, 0, 128]),
    n_stages=st.sampled_from([2, 2, 3, 4]),
    features=st.sampled_from([0, 0, 1, 2, 3, 4, 7, 8, 32]),
    **sm90_switches,
).map(lambda config: replace(config, n_warps=computed("sm90_warps", config)))


# The same of the SM90_DECODE family, warps included.
plausible_sm90_decode_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM90_DECODE)),
    dtype=st.sampled_from([1, 2]),
    d_head=st.sampled_from([64, 128, 256]),
    B_r=st.sampled_from([64, 128]),
    B_c=st.sampled_from([64, 128]),
    n_stages=st.sampled_from([2, 2, 3, 4]),
    features=st.sampled_from([8, 8, 15, 31, 7]),
    ping_pong=st.sampled_from([0, 1]),
).map(lambda config: replace(config, n_warps=computed("sm90_warps", config)))

# These are the same of the SM90_MLA family.
plausible_sm90_mla_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM90_MLA)),
    dtype=st.sampled_from([1, 2]),
    d_head=st.sampled_from([576, 576, 512]),
    d_head_v=st.just(512),
    B_r=st.just(64),
    B_c=st.just(64),
    n_warps=st.just(12),
    n_stages=st.just(2),
    features=st.sampled_from([8, 8, 15, 31, 7, 47]),
    persistent=st.sampled_from([0, 1]),
)

# These are the same of the SM90_WIDE family.
plausible_sm90_wide_config = st.builds(
    Config,
    arch=st.just(int(Arch.SM90_WIDE)),
    dtype=st.sampled_from([1, 2, 4]),
    d_head=st.sampled_from([512, 512, 256]),
    B_r=st.just(64),
    B_c=st.just(64),
    n_stages=st.just(1),
    features=st.sampled_from([8, 8, 15, 31, 7, 47]),
).map(lambda config: replace(config, n_warps=computed("sm90_warps", config)))

# The same of the MIXED family.
plausible_mixed_config = st.builds(
    Config,
    arch=st.just(int(Arch.MIXED)),
    dtype=st.sampled_from([1, 2, 4]),
    d_head=st.sampled_from([128, 256]),
    B_r=st.sampled_from([8, 16, 32]),
    features=features,
)


def _change(config: Config, changes: dict) -> Config:
    return replace(config, **changes)


plausible_cuda_config = (
    plausible_sm80_config
    | plausible_sm80_decode_config
    | plausible_sm80_mla_config
    | plausible_sm80_wide_config
    | plausible_sm90_config
    | plausible_sm90_decode_config
    | plausible_sm90_mla_config
    | plausible_sm90_wide_config
    | plausible_mixed_config
)

# A configuration of the sets with at most three fields changed.
near_miss = st.builds(
    _change,
    st.sampled_from(all_sets()),
    st.dictionaries(st.sampled_from(FIELDS), int32, max_size=3),
)
