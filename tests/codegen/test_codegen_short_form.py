"""The short form is written as documented, read back exactly, and refused with the position."""

import random
from dataclasses import replace

import pytest
from config_strategies import SM80_FIELDS, SM90_FIELDS, near_miss, writable_config
from hypothesis import given
from hypothesis import strategies as st

from codegen.config import Config
from codegen.facts import FIELDS, Arch, Dtype
from codegen.sets import all_sets
from codegen.short_form import ShortFormError, format_config, parse_config

SM80 = Config(
    arch=Arch.SM80,
    dtype=Dtype.FP16,
    d_head=128,
    B_r=64,
    B_c=64,
    n_warps=4,
    async_copy=1,
    eager_load_blocks=1,
    swizzled=1,
    Q_mma_load_K_fragments=0,
    K_mma_load_K_fragments=2,
    V_mma_load_K_fragments=2,
    mma_double_buffer_loads=1,
    optimized_softmax=1,
)
SM80_TEXT = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax"
SM90 = Config(
    arch=Arch.SM90,
    dtype=Dtype.BF16,
    d_head=128,
    B_r=128,
    B_c=176,
    n_warps=12,
    n_stages=2,
    overlap=1,
    ping_pong=1,
    persistent=1,
    longest_first=1,
    fixed_reference=1,
)
SM90_TEXT = (
    "SM90 (BF16, 128, 128, 176, 12): stages_2+overlap+ping_pong+persistent+longest_first"
    "+fixed_reference"
)
SM90_NARROW_V = replace(SM90, d_head=192, d_head_v=128, B_c=112)
SM90_NARROW_V_TEXT = SM90_TEXT.replace("128, 128, 176", "192/128, 128, 112")
DECODE = Config(
    arch=Arch.SM80_DECODE, dtype=Dtype.FP16, d_head=128, B_r=16, B_c=16, n_warps=4, n_stages=3
)
DECODE_TEXT = "SM80_DECODE (FP16, 128, 16, 16, 4): stages_3"
MIXED = Config(arch=Arch.MIXED, dtype=Dtype.FP16, d_head=256, B_r=16, features=8)
MIXED_TEXT = "MIXED (FP16, 256, 16): varlen"
AVX512 = Config(arch=Arch.AVX512, dtype=Dtype.BF16, B_r=64, B_c=128, features=15)
AVX512_TEXT = "AVX512 (BF16, any, 64, 128): causal+window+softcap+varlen"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (SM80, SM80_TEXT),
        (replace(SM80, features=9), SM80_TEXT + "+causal+varlen"),
        (
            replace(SM80, async_copy=0, eager_load_blocks=0, swizzled=0, optimized_softmax=0),
            "(FP16, 128, 64, 64, 4): load_0_2_2_tiles+buffer",
        ),
        (
            replace(SM80, d_head=0, V_mma_load_K_fragments=-1),
            SM80_TEXT.replace("128", "0", 1).replace("load_0_2_2", "load_0_2_-1"),
        ),
        (SM90, SM90_TEXT),
        (replace(SM90, features=1), SM90_TEXT + "+causal"),
        (SM90_NARROW_V, SM90_NARROW_V_TEXT),
        (
            Config(arch=Arch.SM90, dtype=Dtype.FP16, d_head=64, B_r=1, B_c=2, n_warps=3),
            "SM90 (FP16, 64, 1, 2, 3): stages_0",
        ),
        (
            replace(SM90, dtype=Dtype.E4M3, operand_dtype=Dtype.E4M3),
            SM90_TEXT.replace("BF16", "E4M3/E4M3"),
        ),
        (MIXED, MIXED_TEXT),
        (DECODE, DECODE_TEXT),
        (replace(DECODE, features=24), DECODE_TEXT + "+varlen+paged"),
        (AVX512, AVX512_TEXT),
        (replace(AVX512, d_head=80, features=2), "AVX512 (BF16, 80, 64, 128): window"),
        (
            Config(arch=Arch.REFERENCE, dtype=Dtype.FP32, B_r=16, B_c=1),
            "REFERENCE (FP32, any, 16, 1)",
        ),
    ],
)
def test_text(config, text):
    assert format_config(config) == text
    assert parse_config(text) == config


@given(writable_config)
def test_every_writable_configuration_reads_back(config):
    assert parse_config(format_config(config)) == config


@pytest.mark.parametrize("config", all_sets(), ids=format_config)
def test_every_configuration_of_the_sets_reads_back(config):
    assert parse_config(format_config(config)) == config


@given(near_miss)
def test_a_configuration_reads_back_or_has_no_text(config):
    try:
        text = format_config(config)
    except ShortFormError:
        return
    assert parse_config(text) == config


@given(writable_config, st.randoms(use_true_random=False), st.sampled_from(["", " ", "\t  "]))
def test_blanks_and_the_order_of_words_are_free(config, rng: random.Random, blanks):
    shape, _, words = format_config(config).partition(": ")
    for punctuation in "(,/)":
        shape = shape.replace(punctuation, f"{blanks}{punctuation}{blanks}")
    shuffled = words.split("+")
    rng.shuffle(shuffled)
    text = shape + (f"{blanks}:{blanks}" + f"{blanks}+{blanks}".join(shuffled) if words else "")
    assert parse_config(f"{blanks}{text}{blanks}") == config


@pytest.mark.parametrize(
    "text",
    [
        SM80_TEXT.replace("_tiles", ""),
        f"SM80 {SM80_TEXT}",
    ],
)
def test_other_ways_to_write_the_same(text):
    assert parse_config(text) == SM80


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a family or '(' expected at column 1 of ''"),
        ("AVX9 (FP16, any, 64, 64)", "unknown family AVX9 at column 1"),
        ("avx2 (FP16, any, 64, 64)", "unknown family avx2 at column 1"),
        ("AVX2 FP16", "AVX2 has no operation FP16 at column 6"),
        ("AVX2 (FP8, any, 64, 64)", "unknown dtype FP8 at column 7"),
        ("AVX2 (, any, 64, 64)", "a dtype expected at column 7"),
        ("AVX2 (FP16 any, 64, 64)", "',' expected at column 12"),
        ("AVX2 (FP16, all, 64, 64)", "d_head expected at column 13"),
        ("AVX2 (FP16, any, 64)", "',' expected at column 20"),
        ("AVX2 (FP16, any, 64, 64, 4)", "')' expected at column 24"),
        ("AVX2 (FP16, any, 6 4, 64)", "',' expected at column 20"),
        ("AVX2 (FP16, any, 2147483648, 64)", "B_r does not fit 32 bits at column 18"),
        ("AVX2 (FP16, any, 1_0, 64)", "',' expected at column 19"),
        ("AVX2 (FP16, any, \u0661, 64)", "B_r expected at column 18"),
        ("AVX2 (FP16, any, 64, 64", "')' expected at column 24"),
        ("AVX2 (FP16, any, 64, 64):", "a feature expected at column 26"),
        ("AVX2 (FP16, any, 64, 64) causal", "end of the short form expected at column 26"),
        ("AVX2 (FP16, any, 64, 64): causal+", "a feature expected at column 34"),
        ("AVX2 (FP16, any, 64, 64): causal+causal", "causal given twice at column 34"),
        ("AVX2 (FP16, any, 64, 64): async", "unknown feature async at column 27"),
        ("AVX2 (FP16, any, 64, 64): load_0_0_0", "unknown feature load_0_0_0 at column 27"),
        ("(FP16, any, 64, 64, 4): load_0_0_0", "d_head expected at column 8"),
        ("(FP16, 128, 64, 64): load_0_0_0", "',' expected at column 19"),
        ("(FP16, 128, 64, 64, 4)", "load_<Q>_<K>_<V>_tiles missing at column 23"),
        ("(FP16, 128, 64, 64, 4): async", "load_<Q>_<K>_<V>_tiles missing at column 30"),
        ("(FP16, 128, 64, 64, 4): async+async+load_0_0_0", "async given twice at column 31"),
        ("(FP16, 128, 64, 64, 4): load_0_0_0+load_0_0_0", "load_0_0_0 given twice at column 36"),
        ("(FP16, 128, 64, 64, 4): load_0_0", "unknown feature load_0_0 at column 25"),
        ("(FP16, 128, 64, 64, 4): load_0_0_0_tile", "unknown feature load_0_0_0_tile at column"),
        ("SM90 (FP16, any, 64, 64, 8): stages_2", "d_head expected at column 13"),
        ("SM90 (FP16, 192/, 64, 64, 8): stages_2", "d_head_v expected at column 17"),
        ("SM90 (FP16, 192/128/64, 64, 64, 8): stages_2", "',' expected at column 20"),
        ("(FP16, 192/128, 64, 64, 4): load_0_0_0", "',' expected at column 11"),
        ("SM90 (E4M3/, 64, 64, 64, 8): stages_2", "a dtype expected at column 12"),
        ("SM90 (E4M3/FP8, 64, 64, 64, 8): stages_2", "unknown dtype FP8 at column 12"),
        ("SM90 (E4M3/E4M3/E4M3, 64, 64, 64, 8): stages_2", "',' expected at column 16"),
        ("(E4M3/E4M3, 64, 64, 64, 4): load_0_0_0", "',' expected at column 6"),
        ("AVX2 (FP16, any/128, 64, 64)", "',' expected at column 16"),
        ("SM90 (FP16, 64, 64, 64, 8)", "stages_<N> missing at column 27"),
        ("SM90 (FP16, 64, 64, 64, 8): overlap", "stages_<N> missing at column 36"),
        ("SM90 (FP16, 64, 64, 64, 8): stages_", "unknown feature stages_ at column 29"),
        ("SM90 (FP16, 64, 64, 64, 8): stages_2_3", "unknown feature stages_2_3 at column 29"),
        ("SM90 (FP16, 64, 64, 64, 8): stages_2+stages_2", "stages_2 given twice at column 38"),
        ("SM90 (FP16, 64, 64, 64, 8): stages_2+async", "unknown feature async at column 38"),
        ("SM80_DECODE (FP16, 64, 8, 32)", "',' expected at column 29"),
        ("SM80_DECODE (FP16, 64, 8, 32, 4)", "stages_<N> missing at column 33"),
        ("SM80_DECODE (FP16, 64, 8, 32, 4): stages_2+overlap", "unknown feature overlap at column"),
        ("MIXED (FP16, 256, 16, 16): varlen", "')' expected at column 21"),
        ("SM80_DECODE(FP16, any, 8, 32, 4): stages_2", "d_head expected at column 19"),
        ("(FP16, 64, 64, 64, 8): load_0_0_0+overlap", "unknown feature overlap at column 35"),
        (
            "SM90 (FP16, 64, 64, 64, 8): stages_2147483648",
            "stages_2147483648 does not fit 32 bits at column 29",
        ),
        (
            "(FP16, 128, 64, 64, 4): load_0_0_2147483648",
            "load_0_0_2147483648 does not fit 32 bits at column 25",
        ),
    ],
)
def test_refusals_name_the_place(text, message):
    with pytest.raises(ShortFormError) as refusal:
        parse_config(text)
    assert message in str(refusal.value)


@given(st.text(alphabet="(FP16,128 4):asynceagrlod_0+-AVX5any", max_size=60) | st.text())
def test_any_text_is_read_or_refused(text):
    try:
        config = parse_config(text)
    except ShortFormError:
        return
    assert parse_config(format_config(config)) == config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(AVX512, arch=0), "arch is 0"),
        (replace(AVX512, op=1000), "op is 1000"),
        (replace(AVX512, dtype=8), "dtype is 8"),
        (replace(AVX512, features=128), "features is 128"),
        (replace(AVX512, features=-1), "features is -1"),
        (replace(SM80, async_copy=2), "async_copy is 2"),
        (replace(SM80, optimized_softmax=-1), "optimized_softmax is -1"),
        (replace(SM90, fixed_reference=2), "fixed_reference is 2"),
        *((replace(SM80, **{field: 1}), f"{field} is 1") for field in SM90_FIELDS),
        *((replace(SM90, **{field: 1}), f"{field} is 1") for field in SM80_FIELDS),
        *(
            (replace(DECODE, **{field: 1}), f"{field} is 1")
            for field in (*SM80_FIELDS, *SM90_FIELDS)
            if field != "n_stages"
        ),
        *(
            (replace(AVX512, **{field: 1}), f"{field} is 1")
            for field in FIELDS
            if field not in ("arch", "op", "dtype", "d_head", "B_r", "B_c", "features")
        ),
    ],
)
def test_what_the_text_cannot_carry_is_refused(config, message):
    with pytest.raises(ShortFormError, match=message):
        format_config(config)
