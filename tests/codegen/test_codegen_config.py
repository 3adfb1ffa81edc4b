"""Order, kernel name and C initialiser of a configuration."""

import re
from dataclasses import FrozenInstanceError, astuple, replace

import pytest
from config_strategies import (
    LOADS,
    any_config,
    near_miss,
    plausible_cuda_config,
)
from hypothesis import assume, given
from hypothesis import strategies as st

from codegen.config import Config, c_initialiser, kernel_name
from codegen.facts import FIELDS, SM80, SM90, Arch, Dtype, Feature, Op
from codegen.legality import legal
from codegen.sets import all_sets
from codegen.short_form import parse_config

NAME = re.compile(
    rf"flash_(?P<op>{'|'.join(op.symbol for op in Op)})_"
    r"(?P<arch>[a-z0-9]+)_(?P<dtype>[a-z0-9]+?)(x(?P<operand_dtype>[a-z0-9]+))?"
    r"_d(?P<d_head>any|\d+)(v(?P<d_head_v>\d+))?_"
    r"(?P<B_r>\d+)(x(?P<B_c>\d+))?(_w(?P<n_warps>\d+))?"
    r"((?P<async_copy>_async)?(?P<eager_load_blocks>_eager)?(?P<swizzled>_swizzled)?"
    r"_load_(?P<Q_mma_load_K_fragments>\d+)_(?P<K_mma_load_K_fragments>\d+)"
    r"_(?P<V_mma_load_K_fragments>\d+)"
    r"(?P<mma_double_buffer_loads>_buffer)?(?P<optimized_softmax>_optsoftmax)?)?"
    r"(_stages_(?P<n_stages>\d+)(?P<overlap>_overlap)?(?P<ping_pong>_pingpong)?"
    r"(?P<persistent>_persistent)?(?P<longest_first>_longestfirst)?"
    r"(?P<fixed_reference>_fixedreference)?)?"
    r"(?P<features>(_[a-z]+)*)"
)


OPS = {op.symbol: op for op in Op}
ARCH_WORDS = {arch.name.lower().replace("_", ""): arch for arch in Arch}
DTYPE_WORDS = {dtype.name.lower().replace("_", ""): dtype for dtype in Dtype}


def read_name(name):
    """Reads the configuration back from a kernel's name."""
    words = NAME.fullmatch(name).groupdict()
    number = {"any": 0, None: 0}
    values = {
        field: number[words[field]] if words[field] in number else int(words[field])
        for field in ("d_head", "d_head_v", "B_r", "B_c", "n_warps", *LOADS, "n_stages")
    }
    for field in (*SM80.switches, *SM90.switches):
        values[field] = int(words[field] is not None)
    return Config(
        arch=int(ARCH_WORDS[words["arch"]]),
        op=int(OPS[words["op"]]),
        dtype=int(DTYPE_WORDS[words["dtype"]]),
        operand_dtype=int(DTYPE_WORDS.get(words["operand_dtype"], 0)),
        features=sum(int(Feature[word.upper()]) for word in words["features"].split("_")[1:]),
        **values,
    )


@given(any_config, any_config)
def test_order_is_that_of_the_fields(a, b):
    assert (a < b) == (astuple(a) < astuple(b))


@given(near_miss, st.integers(0, len(FIELDS) - 1))
def test_an_earlier_field_outweighs_all_later_ones(config, position):
    larger = replace(config, **{FIELDS[position]: getattr(config, FIELDS[position]) + 1})
    for field in FIELDS[position + 1 :]:
        larger = replace(larger, **{field: -(2**31)})
    assert config < larger


def test_a_configuration_is_frozen():
    with pytest.raises(FrozenInstanceError):
        Config().B_r = 1


@given(near_miss | plausible_cuda_config)
def test_the_name_of_a_legal_configuration_tells_it_whole(config):
    assume(legal(config))
    assert read_name(kernel_name(config)) == config


def test_the_name_of_every_configuration_of_the_sets_tells_it_whole():
    for config in all_sets():
        assert read_name(kernel_name(config)) == config


def test_names_within_the_sets_differ():
    assert len({kernel_name(config) for config in all_sets()}) == len(all_sets())


@pytest.mark.parametrize(
    ("short_form", "name"),
    [
        (
            "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax",
            "flash_fwd_sm80_fp16_d128_64x64_w4_async_eager_swizzled_load_0_2_2_buffer_optsoftmax",
        ),
        (
            "(BF16, 64, 128, 32, 8): load_0_0_0_tiles+causal+varlen",
            "flash_fwd_sm80_bf16_d64_128x32_w8_load_0_0_0_causal_varlen",
        ),
        (
            "SM90 (BF16, 128, 128, 176, 12): stages_2+overlap+ping_pong+persistent+longest_first"
            "+fixed_reference+causal",
            "flash_fwd_sm90_bf16_d128_128x176_w12_stages_2_overlap_pingpong_persistent_longestfirst"
            "_fixedreference_causal",
        ),
        ("SM90 (FP16, 64, 64, 32, 8): stages_4", "flash_fwd_sm90_fp16_d64_64x32_w8_stages_4"),
        (
            "SM90 (E4M3/E4M3, 64, 64, 32, 8): stages_4",
            "flash_fwd_sm90_e4m3xe4m3_d64_64x32_w8_stages_4",
        ),
        (
            "SM90 (BF16, 192/128, 128, 112, 12): stages_2+overlap",
            "flash_fwd_sm90_bf16_d192v128_128x112_w12_stages_2_overlap",
        ),
        (
            "SM80_DECODE (FP16, 128, 16, 16, 4): stages_3+causal+window+softcap+varlen+paged",
            "flash_fwd_sm80decode_fp16_d128_16x16_w4_stages_3_causal_window_softcap_varlen_paged",
        ),
        ("MIXED (E4M3, 256, 16): varlen", "flash_fwd_mixed_e4m3_d256_16_varlen"),
        (
            "SM90_DECODE (BF16, 128, 128, 128, 12): stages_3+ping_pong+varlen+paged",
            "flash_fwd_sm90decode_bf16_d128_128x128_w12_stages_3_pingpong_varlen_paged",
        ),
        (
            "AVX512 (BF16, any, 64, 128): causal+window+softcap+varlen",
            "flash_fwd_avx512_bf16_dany_64x128_causal_window_softcap_varlen",
        ),
        ("REFERENCE (FP32, 80, 16, 1)", "flash_fwd_reference_fp32_d80_16x1"),
    ],
)
def test_names(short_form, name):
    assert kernel_name(parse_config(short_form)) == name


def test_initialiser():
    config = parse_config("(FP16, 128, 64, 32, 4): async+load_0_2_4_tiles+buffer+causal+softcap")
    assert c_initialiser(config) == (
        "{(uint32_t)sizeof(flash_config_t), FLASH_ARCH_SM80, FLASH_OP_FORWARD, FLASH_DTYPE_FP16, "
        "128, 64, 32, 4, 1, 0, 0, 0, 2, 4, 1, 0, FLASH_FEATURE_CAUSAL | FLASH_FEATURE_SOFTCAP, "
        "0, 0, 0, 0, 0, 0, 0, 0}"
    )


def test_initialiser_of_sm90():
    config = parse_config("SM90 (BF16, 64, 192, 128, 16): stages_3+overlap+fixed_reference+window")
    assert c_initialiser(config) == (
        "{(uint32_t)sizeof(flash_config_t), FLASH_ARCH_SM90, FLASH_OP_FORWARD, FLASH_DTYPE_BF16, "
        "64, 192, 128, 16, 0, 0, 0, 0, 0, 0, 0, 0, FLASH_FEATURE_WINDOW, 3, 1, 0, 0, 0, 1, 0, 0}"
    )


def test_initialiser_with_d_head_v():
    config = parse_config("SM90 (BF16, 192/128, 128, 112, 12): stages_2+overlap")
    assert c_initialiser(config) == (
        "{(uint32_t)sizeof(flash_config_t), FLASH_ARCH_SM90, FLASH_OP_FORWARD, FLASH_DTYPE_BF16, "
        "192, 128, 112, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 128, 0}"
    )


def test_initialiser_of_sm80_decode():
    config = parse_config("SM80_DECODE (FP16, 64, 8, 32, 4): stages_3+varlen+paged")
    assert c_initialiser(config) == (
        "{(uint32_t)sizeof(flash_config_t), FLASH_ARCH_SM80_DECODE, FLASH_OP_FORWARD, "
        "FLASH_DTYPE_FP16, 64, 8, 32, 4, 0, 0, 0, 0, 0, 0, 0, 0, "
        "FLASH_FEATURE_VARLEN | FLASH_FEATURE_PAGED, 3, 0, 0, 0, 0, 0, 0, 0}"
    )


def test_initialiser_of_sm90_decode():
    config = parse_config("SM90_DECODE (BF16, 128, 128, 128, 12): stages_3+ping_pong+varlen")
    assert c_initialiser(config) == (
        "{(uint32_t)sizeof(flash_config_t), FLASH_ARCH_SM90_DECODE, FLASH_OP_FORWARD, "
        "FLASH_DTYPE_BF16, 128, 128, 128, 12, 0, 0, 0, 0, 0, 0, 0, 0, "
        "FLASH_FEATURE_VARLEN, 3, 0, 1, 0, 0, 0, 0, 0}"
    )


def test_initialiser_without_features():
    initialiser = c_initialiser(parse_config("AVX2 (FP32, any, 64, 64)"))
    assert initialiser.endswith(" 64, 64" + ", 0" * len(FIELDS[FIELDS.index("n_warps") :]) + "}")
