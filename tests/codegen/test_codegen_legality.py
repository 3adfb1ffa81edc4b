"""Every rule of every family is tested by the reason that it gives, and so is the tuning filter."""

import re
from dataclasses import replace

import pytest
from config_strategies import SM80_FIELDS, SM90_FIELDS, any_config
from hypothesis import given

from codegen.config import Config
from codegen.facts import Arch, Dtype
from codegen.legality import broken_rule, legal, worth_building
from codegen.short_form import parse_config

CPU = parse_config("AVX2 (FP32, any, 64, 64): causal+window+softcap+varlen")
SM90 = parse_config(
    "SM90 (BF16, 128, 128, 128, 12): stages_2+overlap+ping_pong+persistent+longest_first"
    "+fixed_reference"
)
CHUNKS = parse_config("SM90_DECODE (BF16, 128, 128, 128, 12): stages_3+ping_pong+varlen+paged")
CONVERTING_CHUNKS = {"dtype": 4, "n_warps": 16, "n_stages": 2}
MULTIPLYING_CHUNKS = {"dtype": 4, "operand_dtype": 4, "n_stages": 4}
DECODE = parse_config("SM80_DECODE (FP16, 128, 16, 16, 4): stages_3+varlen+paged")
MIXED = parse_config("MIXED (FP16, 256, 16): varlen")
SM80 = parse_config("(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer")
Q, K, V = "Q_mma_load_K_fragments", "K_mma_load_K_fragments", "V_mma_load_K_fragments"


@pytest.mark.parametrize(
    "change",
    [
        *({"arch": arch} for arch in (Arch.REFERENCE, Arch.AVX2, Arch.AVX512, Arch.NEON)),
        *({"arch": a, "dtype": Dtype.BF16} for a in (Arch.AVX512_BF16, Arch.NEON_BF16)),
        *({"dtype": dtype} for dtype in (1, 2, 3, 4)),
        *({"d_head": d_head} for d_head in (0, 1, 80, 2**31 - 1)),
        *({"B_r": B_r} for B_r in (1, 1024)),
        *({"B_c": B_c} for B_c in (1, 4096)),
        *({"features": features} for features in range(64)),
    ],
)
def test_legal_for_a_cpu_family(change):
    assert broken_rule(replace(CPU, **change)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"arch": 0}, "arch is 0: no such kernel family"),
        ({"arch": 79}, "arch is 79: no such kernel family"),
        ({"dtype": 0}, "dtype is 0: the family has no such value"),
        ({"dtype": 8}, "dtype is 8: the family has no such value"),
        ({"arch": Arch.AVX512_BF16, "dtype": 1}, "dtype is 1: the family has no such value"),
        ({"arch": Arch.NEON_BF16, "dtype": 3}, "dtype is 3: the family has no such value"),
        ({"d_head": -1}, "d_head is -1: not within 0 ... 2147483647"),
        ({"B_r": 0}, "B_r is 0: not within 1 ... 1024"),
        ({"B_r": 1025}, "B_r is 1025: not within 1 ... 1024"),
        ({"B_c": 0}, "B_c is 0: not within 1 ... 4096"),
        ({"B_c": 4097}, "B_c is 4097: not within 1 ... 4096"),
        ({"features": 128}, "features is 0x80: the AVX2 family does not have 0x80"),
        (
            {"features": -1},
            "features is 0xffffffff: the AVX2 family does not have 0xffffff80",
        ),
        *(
            ({field: 1}, f"{field} is 1: it means nothing to the AVX2 family and must be 0")
            for field in ("n_warps", *SM80_FIELDS, *SM90_FIELDS)
        ),
    ],
)
def test_illegal_for_a_cpu_family(change, reason):
    assert broken_rule(replace(CPU, **change)) == reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"dtype": Dtype.BF16, "B_r": 1024, "B_c": 32}, None),
        ({"dtype": Dtype.FP32}, "dtype is 3: the family has no such value"),
        ({"B_r": 48}, "B_r is 48: not a multiple of 32"),
        ({"B_c": 1}, "B_c is 1: not a multiple of 32"),
    ],
)
def test_rules_of_amx(change, reason):
    amx = replace(CPU, arch=Arch.AMX, dtype=Dtype.FP16)
    assert broken_rule(replace(amx, **change)) == reason


@pytest.mark.parametrize(
    "change",
    [
        *({"dtype": dtype} for dtype in (1, 2)),
        *({"d_head": d_head} for d_head in (32, 64, 96, 128, 192, 256)),
        *({"B_r": B_r} for B_r in (64, 128)),
        *({"B_c": B_c} for B_c in (32, 64, 128)),
        {"B_r": 128, "n_warps": 8},
        {"eager_load_blocks": 0, "async_copy": 0},
        {"swizzled": 0},
        {"optimized_softmax": 1},
        {Q: 0},
        {Q: 0, K: 0, V: 0},
        # d_head 128 has 16 fragments, B_c 64 has 8; half of them with double buffering.
        {Q: 8, K: 8, V: 4},
        {Q: 16, K: 16, V: 8, "mma_double_buffer_loads": 0},
        *({"features": features} for features in range(16)),
    ],
)
def test_legal_for_sm80(change):
    assert broken_rule(replace(SM80, **change)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": 3}, "dtype is 3: the family has no such value"),
        ({"d_head": 0}, "d_head is 0: the family has no such value"),
        ({"d_head": 48}, "d_head is 48: the family has no such value"),
        ({"B_r": 32}, "B_r is 32: the family has no such value"),
        ({"B_c": 96}, "B_c is 96: the family has no such value"),
        ({"n_warps": 2}, "n_warps is 2: the family has no such value"),
        ({"n_warps": 8}, "n_warps is 8: B_r 64 does not divide into rows of 16 for each"),
        ({"async_copy": 2}, "async_copy is 2: not within 0 ... 1"),
        ({"eager_load_blocks": -1}, "eager_load_blocks is -1: not within 0 ... 1"),
        ({"swizzled": 2}, "swizzled is 2: not within 0 ... 1"),
        ({"mma_double_buffer_loads": 2}, "mma_double_buffer_loads is 2: not within 0 ... 1"),
        ({"optimized_softmax": 2}, "optimized_softmax is 2: not within 0 ... 1"),
        ({"async_copy": 0}, "eager_load_blocks is 1: it needs async_copy, which is 0"),
        ({Q: 1, K: 1}, f"{Q} is 1: not 0 or a power of two from 2 on"),
        ({Q: 3, K: 3}, f"{Q} is 3: not 0 or a power of two from 2 on"),
        ({K: -2}, f"{K} is -2: not 0 or a power of two from 2 on"),
        ({V: 6}, f"{V} is 6: not 0 or a power of two from 2 on"),
        ({Q: 16, K: 16}, f"{Q} is 16: at most 8 with d_head 128 and double buffering"),
        ({Q: 0, K: 16}, f"{K} is 16: at most 8 with d_head 128 and double buffering"),
        ({V: 8}, f"{V} is 8: at most 4 with B_c 64 and double buffering"),
        ({V: 4, "B_c": 32}, f"{V} is 4: at most 2 with B_c 32 and double buffering"),
        (
            {Q: 32, K: 32, "mma_double_buffer_loads": 0},
            f"{Q} is 32: at most 16 with d_head 128",
        ),
        ({V: 16, "mma_double_buffer_loads": 0}, f"{V} is 16: at most 8 with B_c 64"),
        ({Q: 2, K: 4}, f"{Q} is 2: neither 0 nor {K}, 4"),
        ({Q: 2, K: 0}, f"{Q} is 2: neither 0 nor {K}, 0"),
        ({"features": 255}, "features is 0xff: the SM80 family does not have 0x80"),
        ({"features": 64 + 24}, "features has dropout and paged: K and V in pages have no dropout"),
        ({"features": 17}, "features has paged: it needs varlen, which is not there"),
        ({"dtype": 4}, "async_copy is 1: with this dtype it is 0"),
        *(
            ({field: 1}, f"{field} is 1: it means nothing to the SM80 family and must be 0")
            for field in SM90_FIELDS
        ),
    ],
)
def test_illegal_for_sm80(change, reason):
    assert broken_rule(replace(SM80, **change)) == reason


@pytest.mark.parametrize(
    "change",
    [
        *({"dtype": dtype} for dtype in (1, 2)),
        *({"d_head": d_head} for d_head in (64, 128, 256)),
        *({"B_r": B_r} for B_r in (8, 16)),
        *({"B_c": B_c} for B_c in (16, 32)),
        *({"n_stages": n_stages} for n_stages in range(2, 8)),
        # A slot has 4096 bytes, and each warp and stage two slots: 226 KB have room for 56.
        {"n_warps": 4, "n_stages": 7},
        {"n_warps": 8, "n_stages": 3},
        {"d_head": 64, "n_warps": 8, "n_stages": 7},
        *({"features": features} for features in range(32)),
    ],
)
def test_legal_for_sm80_decode(change):
    assert broken_rule(replace(DECODE, **change)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"op": 1000}, "op is 1000: the family has no such value"),
        ({"dtype": 3}, "dtype is 3: the family has no such value"),
        ({"d_head": 0}, "d_head is 0: the family has no such value"),
        ({"d_head": 96}, "d_head is 96: the family has no such value"),
        ({"B_r": 32}, "B_r is 32: the family has no such value"),
        ({"B_c": 64}, "B_c is 64: the family has no such value"),
        ({"n_warps": 2}, "n_warps is 2: the family has no such value"),
        ({"n_stages": 1}, "n_stages is 1: not within 2 ... 8"),
        ({"n_stages": 9}, "n_stages is 9: not within 2 ... 8"),
        ({"features": 64}, "features is 0x40: the SM80_DECODE family does not have 0x40"),
        *(
            ({field: 1}, f"{field} is 1: it means nothing to the SM80_DECODE family and must be 0")
            for field in (*SM80_FIELDS, *SM90_FIELDS)
            if field != "n_stages"
        ),
        (
            {"n_stages": 8},
            "d_head 128, B_c 16, n_warps 4 and n_stages 8 take 262144 bytes of shared memory: at "
            "most 231424",
        ),
        (
            {"d_head": 256, "B_c": 32, "n_warps": 8, "n_stages": 2},
            "d_head 256, B_c 32, n_warps 8 and n_stages 2 take 524288 bytes of shared memory: at "
            "most 231424",
        ),
    ],
)
def test_illegal_for_sm80_decode(change, reason):
    assert broken_rule(replace(DECODE, **change)) == reason


@pytest.mark.parametrize(
    "change",
    [
        *({"dtype": dtype} for dtype in (1, 2, 4)),
        *({"B_r": B_r} for B_r in (8, 16, 32)),
        *({"features": features} for features in range(64) if features & 8),
    ],
)
def test_legal_for_mixed(change):
    assert broken_rule(replace(MIXED, **change)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": 3}, "dtype is 3: the family has no such value"),
        ({"d_head": 128}, "d_head is 128: the family has no such value"),
        ({"B_r": 64}, "B_r is 64: the family has no such value"),
        ({"B_c": 16}, "B_c is 16: it means nothing to the MIXED family and must be 0"),
        ({"features": 64}, "features is 0x40: the MIXED family does not have 0x40"),
        ({"features": 16}, "features has no varlen: MIXED rows need it"),
        *(
            ({field: 1}, f"{field} is 1: it means nothing to the MIXED family and must be 0")
            for field in ("n_warps", *SM80_FIELDS, *SM90_FIELDS)
        ),
    ],
)
def test_illegal_for_mixed(change, reason):
    assert broken_rule(replace(MIXED, **change)) == reason


PRODUCTS_OF_E4M3 = {"dtype": 4, "operand_dtype": 4, "fixed_reference": 0, "B_c": 128}


@pytest.mark.parametrize(
    "change",
    [
        *({"dtype": dtype} for dtype in (1, 2)),
        *({"d_head": d_head} for d_head in (64, 96)),
        *({"d_head": d_head, "B_c": 64} for d_head in (192, 256)),
        *({"B_c": B_c} for B_c in (16, 48, 176)),
        {"B_c": 256, "d_head": 64},
        {"B_r": 64, "n_warps": 8, "ping_pong": 0},
        {"B_r": 192, "n_warps": 16},
        {"n_stages": 3},
        {"n_stages": 4, "B_c": 64},
        {"overlap": 0, "ping_pong": 0},
        {"persistent": 0, "longest_first": 0},
        {"fixed_reference": 0},
        {"features": 4},
        *({"features": features} for features in range(8)),
        {"features": 8 | 16},
        *({"features": features, "fixed_reference": 0} for features in (32, 32 | 31)),
        {"features": 32 | 8},
        # 232448 bytes without Q and the state have room for 388 rows of K and V: 2 * 2 * 96.
        {"d_head": 256, "B_r": 64, "n_warps": 8, "B_c": 96, "ping_pong": 0},
        *({"d_head": 192, "d_head_v": 128, "B_c": B_c} for B_c in (96, 112, 128)),
        {"d_head": 192, "d_head_v": 128, "B_c": 80, "n_stages": 3},
        {**PRODUCTS_OF_E4M3, "n_stages": 3},
        *(
            {**PRODUCTS_OF_E4M3, "d_head": d_head, "overlap": 0, "ping_pong": ping_pong}
            for d_head in (192, 256)
            for ping_pong in (0, 1)
        ),
    ],
)
def test_legal_for_sm90(change):
    assert broken_rule(replace(SM90, **change)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": 3}, "dtype is 3: the family has no such value"),
        ({"d_head": 32}, "d_head is 32: the family has no such value"),
        ({"B_r": 256}, "B_r is 256: the family has no such value"),
        ({"B_c": 0}, "B_c is 0: not within 16 ... 256"),
        ({"B_c": 272}, "B_c is 272: not within 16 ... 256"),
        ({"B_c": 120}, "B_c is 120: not a multiple of 16"),
        ({"op": 1000}, "op is 1000: the family has no such value"),
        (
            {"n_warps": 8},
            "n_warps is 8: 12 with B_r 128 and this dtype, of which 8 multiply",
        ),
        (
            {"B_r": 192},
            "n_warps is 12: 16 with B_r 192 and this dtype, of which 12 multiply",
        ),
        ({"dtype": 4}, "n_warps is 12: 16 with B_r 128 and this dtype, of which 8 multiply"),
        (
            {"dtype": 4, "n_warps": 16, "d_head": 96},
            "d_head is 96: with this dtype it is 64, 128 or 256",
        ),
        (
            {"dtype": 4, "n_warps": 16, "B_c": 80},
            "B_c is 80: with this dtype it is a multiple of 32",
        ),
        *(
            ({field: 2}, f"{field} is 2: it means nothing to the SM90 family and must be 0")
            for field in SM80_FIELDS
        ),
        ({"n_stages": 1}, "n_stages is 1: not within 2 ... 4"),
        ({"n_stages": 5}, "n_stages is 5: not within 2 ... 4"),
        *(
            ({field: 2}, f"{field} is 2: not within 0 ... 1")
            for field in SM90_FIELDS[1:]
            if field not in ("d_head_v", "operand_dtype")
        ),
        (
            {"operand_dtype": 2},
            "operand_dtype is 2: the family has no such value with dtype 2",
        ),
        (
            {**PRODUCTS_OF_E4M3, "B_c": 96},
            "B_c is 96: where products are of e4m3, it is 128",
        ),
        (
            {**PRODUCTS_OF_E4M3, "d_head": 256},
            "overlap is 1 and d_head_v 256: where products are of e4m3, it is 1 up to 128, and 0 "
            "above",
        ),
        ({"d_head_v": 64}, "d_head_v is 64: the family has no such value"),
        ({"d_head_v": 128}, "d_head_v is 128: 0 where it is that of d_head"),
        *(
            (
                {"d_head": d_head, "d_head_v": 128},
                f"d_head_v is 128: it needs a d_head of 192, which is {d_head}",
            )
            for d_head in (64, 96, 256)
        ),
        (
            {"dtype": 4, "n_warps": 16, "d_head": 192, "d_head_v": 128},
            "d_head is 192: with this dtype it is 64, 128 or 256",
        ),
        ({"overlap": 0}, "ping_pong is 1: it needs overlap, which is 0"),
        ({"persistent": 0}, "longest_first is 1: it needs persistent, which is 0"),
        (
            {"B_r": 64, "n_warps": 8},
            "ping_pong is 1: it needs a B_r of 128 or more, which is 64",
        ),
        ({"features": 64}, "features is 0x40: the SM90 family does not have 0x40"),
        (
            {"features": 32},
            "features has bias, and fixed_reference is 1: it can be varlen+bias alone",
        ),
        ({"features": 17}, "features has paged: it needs varlen, which is not there"),
        (
            {"features": 12, "longest_first": 0},
            "features has varlen: it needs longest_first, which is 0",
        ),
        *(
            (
                {"d_head": d_head, "n_stages": 4},
                f"d_head {d_head}, d_head_v {d_head}, B_r 128, B_c 128 and n_stages 4 take "
                f"{294912 + 2944} bytes of shared memory: at most 232448",
            )
            for d_head in (96, 128)  # the room is that of whole panels of 64 columns
        ),
        (
            {"dtype": 4, "n_warps": 16, "n_stages": 4},
            "d_head 128, d_head_v 128, B_r 128, B_c 128 and n_stages 4 take "
            f"{294912 + 2944 + 320} bytes of shared memory: at most "
            "232448",
        ),
        (
            {"d_head": 192, "d_head_v": 128, "n_stages": 3},
            "d_head 192, d_head_v 128, B_r 128, B_c 128 and n_stages 3 take "
            f"{294912 + 2944} bytes of shared memory: at most 232448",
        ),
    ],
)
def test_illegal_for_sm90(change, reason):
    assert broken_rule(replace(SM90, **change)) == reason


def test_element_sizes_are_those_of_the_kernels(root):
    """facts.py repeats these sizes from the kernels' list of types."""
    header = (root / "kernels/common/dtype.h").read_text()
    listed = re.findall(r"^    X\((\w+), (\d+), ", header, re.MULTILINE)
    assert {name: int(size) for name, size in listed} == {t.name: t.size for t in Dtype}


@given(any_config)
def test_legal_means_no_broken_rule(config: Config):
    assert legal(config) == (broken_rule(config) is None)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"B_r": 64, "B_c": 32, Q: 2}, True),
        ({"B_r": 64, "B_c": 32, Q: 0}, False),
        ({"B_r": 64, "B_c": 64, Q: 0}, True),
        ({"B_r": 64, "B_c": 64, Q: 2}, False),
        ({"B_r": 64, "B_c": 64, Q: 0, "n_warps": 8}, False),
        ({"B_r": 128, "B_c": 32, Q: 2}, True),
        ({"B_r": 128, "B_c": 64, Q: 2}, True),
        ({"B_r": 128, "B_c": 64, Q: 2, "n_warps": 8}, True),
        ({"B_r": 128, "B_c": 64, Q: 0}, False),
        ({"B_r": 128, "B_c": 64, Q: 2, K: 4}, False),
        ({"B_r": 64, "B_c": 64, Q: 0, K: 4}, True),
    ],
)
def test_worth_building(change, expected):
    assert worth_building(replace(SM80, **change)) is expected


@pytest.mark.parametrize(
    "change",
    [
        *({"dtype": dtype} for dtype in (1, 2)),
        {"d_head": 64, "n_stages": 4},
        {"d_head": 256, "B_c": 64, "n_stages": 2},
        {"B_r": 64, "n_warps": 8, "ping_pong": 0},
        {"B_c": 64, "n_stages": 4},
        {"ping_pong": 0},
        *({"features": features} for features in (8, 15, 24, 31, 63)),
        CONVERTING_CHUNKS,
        MULTIPLYING_CHUNKS,
    ],
)
def test_legal_for_sm90_decode(change):
    assert broken_rule(replace(CHUNKS, **change)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": 5}, "dtype is 5: the family has no such value"),
        ({"d_head": 192}, "d_head is 192: the family has no such value"),
        ({"B_r": 192}, "B_r is 192: the family has no such value"),
        ({"B_c": 96}, "B_c is 96: the family has no such value"),
        ({"n_warps": 4}, "n_warps is 4: the family has no such value"),
        (
            {"dtype": 4},
            "n_warps is 12: 16 with B_r 128 and this dtype, of which 8 multiply",
        ),
        (
            {**CONVERTING_CHUNKS, "features": 63},
            "features has bias, which SM90_DECODE kernels that convert K and V do not add",
        ),
        (
            {**MULTIPLYING_CHUNKS, "B_c": 64},
            "B_c is 64 and d_head 128: where products are of e4m3, B_c is 128, and d_head 64 or "
            "128",
        ),
        (
            {**MULTIPLYING_CHUNKS, "features": 63},
            "operand_dtype is e4m3: no row with bias has it",
        ),
        (
            {"n_warps": 8},
            "n_warps is 8: 12 with B_r 128 and this dtype, of which 8 multiply",
        ),
        ({"n_stages": 5}, "n_stages is 5: not within 2 ... 4"),
        ({"overlap": 1}, "overlap is 1: it means nothing to the SM90_DECODE family and must be 0"),
        (
            {"B_r": 64, "n_warps": 8},
            "ping_pong is 1: it needs a B_r of 128 or more, which is 64",
        ),
        ({"features": 7}, "features has no varlen: SM90_DECODE rows need it"),
        (
            {"n_stages": 4},
            "d_head 128, d_head_v 128, B_r 128, B_c 128 and n_stages 4 take 297856 bytes of shared "
            "memory: at most 232448",
        ),
    ],
)
def test_illegal_for_sm90_decode(change, reason):
    assert broken_rule(replace(CHUNKS, **change)) == reason
