"""The named sets are counted and spelt out."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from codegen.facts import (
    BASIC_FEATURES,
    CPU_FEATURES,
    DROPOUT_FEATURES,
    PAGED_FEATURES,
    SM80,
    Arch,
    Dtype,
    Feature,
    Op,
)
from codegen.kernel_rules import computed
from codegen.legality import legal
from codegen.sets import (
    SETS,
    all_sets,
    pairs,
    pairs_of_values,
    progression,
    progression_all_block_sizes,
    progression_sm90,
    ship,
    ship_mixed,
    ship_sm80,
    ship_sm80_decode,
    ship_sm80_mla,
    ship_sm80_wide,
    ship_sm90,
    ship_sm90_decode,
    ship_sm90_gradients,
    ship_sm90_mla,
    ship_sm90_wide,
    tune,
    tune_sm80_mla,
    tune_sm90,
    tune_sm90_fp8,
    tune_sm90_gradients,
)
from codegen.short_form import format_config, parse_config

COUNTING = Feature.VARLEN | Feature.BIAS  # the blocks of a mask
BIASED = (BASIC_FEATURES | Feature.BIAS, PAGED_FEATURES | Feature.BIAS)


@pytest.mark.parametrize("name", SETS)
def test_every_set_is_legal_and_without_duplicates(name):
    configs = SETS[name]()
    assert configs
    assert all(legal(config) for config in configs)
    assert len(set(configs)) == len(configs)


def test_progression_adds_one_optimisation_at_a_time():
    steps = [
        "async+load_0_0_0_tiles",
        "async+swizzled+load_0_0_0_tiles",
        "async+eager+swizzled+load_0_0_0_tiles",
        "async+eager+swizzled+load_2_2_2_tiles",
        "async+eager+swizzled+load_2_2_2_tiles+buffer",
        "async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
        "async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    ]
    assert [format_config(config) for config in progression()] == [
        f"(FP16, 128, 64, 64, 4): {step}" for step in steps
    ]


def test_progression_at_all_block_sizes():
    configs = progression_all_block_sizes()
    shapes = Counter((c.B_r, c.B_c, c.n_warps) for c in configs)
    assert shapes == {
        (128, 128, 4): 7,
        (128, 128, 8): 7,
        (128, 64, 4): 7,
        (128, 64, 8): 7,
        (128, 32, 4): 7,
        (128, 32, 8): 7,
        (64, 64, 4): 7,
        (64, 32, 4): 7,
    }
    assert {replace(c, B_r=64, B_c=64, n_warps=4) for c in configs} == set(progression())
    assert set(progression()) <= set(configs)


def test_progression_of_sm90_adds_one_strategy_at_a_time_for_full_and_causal_attention():
    steps = [
        "stages_2",
        "stages_2+overlap",
        "stages_2+overlap+ping_pong",
        "stages_2+overlap+ping_pong+persistent",
        "stages_2+overlap+ping_pong+persistent+longest_first",
        "stages_2+overlap+ping_pong+persistent+longest_first+fixed_reference",
    ]
    full = [
        *steps[:4],
        "stages_2+overlap+ping_pong+persistent+fixed_reference",
    ]
    words = [*full, *(f"{step}+causal" for step in steps)]
    assert [format_config(config) for config in progression_sm90()] == [
        f"SM90 (BF16, 128, 128, 128, 12): {text}" for text in words
    ]


def test_tune_has_forty_rows_of_each_type():
    assert len(tune()) == 80
    assert Counter(config.dtype for config in tune()) == {Dtype.FP16: 40, Dtype.BF16: 40}


def test_tune_varies_what_is_open_and_nothing_else():
    def values(field):
        return {getattr(config, field) for config in tune()}

    fixed = {"arch": 80, "d_head": 128, "n_warps": 4, "features": 0}
    fixed.update(async_copy=1, eager_load_blocks=1, swizzled=1)
    assert {field: values(field) for field in fixed} == {f: {v} for f, v in fixed.items()}
    assert values("B_r") == {64, 128}
    assert values("B_c") == {32, 64}
    assert all(values(field) == {0, 2} for field in SM80.counts.fields)
    assert values("mma_double_buffer_loads") == values("optimized_softmax") == {0, 1}


def test_tune_by_block_shape():
    """With Q by fragments K is too; with all of Q, K varies. V varies. Times 4 switches, 2
    types."""
    assert Counter((c.B_r, c.B_c, c.Q_mma_load_K_fragments) for c in tune()) == {
        (64, 32, 2): 2 * 4 * 2,
        (64, 64, 0): 4 * 4 * 2,
        (128, 32, 2): 2 * 4 * 2,
        (128, 64, 2): 2 * 4 * 2,
    }


def test_the_known_best_configuration_is_tuned():
    best = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_0_tiles+buffer+opt_softmax"
    assert parse_config(best) in tune()


def test_ship_has_each_cpu_family_in_each_type_for_every_problem():
    cpu = [c for c in ship() if c.arch < Arch.SM80 and c.op == Op.FORWARD]
    dropping = [c for c in cpu if c.features & Feature.DROPOUT]
    cpu = [c for c in cpu if c not in dropping]
    rows = Counter((c.arch, c.dtype) for c in cpu)
    families = (Arch.REFERENCE, Arch.AVX2, Arch.AVX512)
    assert set(rows) >= {(arch, dtype) for arch in families for dtype in Dtype}
    assert set(rows.values()) == {1}
    assert all(c.d_head == 0 and c.features == CPU_FEATURES for c in cpu)
    trained = Counter((c.arch, c.dtype) for c in dropping)
    assert set(trained) >= {(a, t) for a in families for t in (Dtype.FP16, Dtype.BF16, Dtype.FP32)}
    assert all(c.d_head == 0 and c.features == DROPOUT_FEATURES for c in dropping)


def test_ship_serves_every_sm80_problem_at_every_alignment():
    for dtype in (Dtype.FP16, Dtype.BF16):
        for d_head in (32, 64, 96, 128, 192, 256):
            rows = [c for c in ship_sm80() if (c.dtype, c.d_head) == (dtype, d_head)]
            assert all(legal(c) for c in rows)
            assert {c.features for c in rows} >= {0, BASIC_FEATURES, PAGED_FEATURES}
            assert {c.async_copy for c in rows if c.features == BASIC_FEATURES} == {0, 1}
            assert any(c.features in (1, 1 | 8) for c in rows), "a row for causal masks"


@pytest.mark.parametrize("dtype", [Dtype.FP16, Dtype.BF16])
@pytest.mark.parametrize("features", [BASIC_FEATURES, PAGED_FEATURES])
def test_ship_decodes_every_head_dimension_with_and_without_pages(dtype, features):
    """Rows have every feature; those with pages, and with a bias, are apart. B_r 8 is everywhere,
    for single rows."""
    rows = [c for c in ship_sm80_decode() if (c.dtype, c.features) == (dtype, features)]
    assert {c.d_head for c in rows} == {64, 128, 256}
    assert {c.d_head for c in rows if c.B_r == 8} == {64, 128, 256}
    assert {c.d_head for c in rows if c.B_r == 16} >= {64, 128}
    assert {c.features for c in ship_sm80_decode()} == {BASIC_FEATURES, PAGED_FEATURES, *BIASED}
    assert set(ship_sm80_decode()) <= set(ship())


def test_shipped_decode_kernels_fit_the_smallest_device():
    """A block has 99 KB on compute capability 8.6, less what is static. d_head 256 takes more."""
    rows = [c for c in ship_sm80_decode() if c.d_head <= 128]
    assert all(computed("decode_shared_bytes", c) <= 98 * 1024 for c in rows)


@pytest.mark.parametrize("dtype", [Dtype.FP16, Dtype.BF16])
@pytest.mark.parametrize("features", [BASIC_FEATURES, PAGED_FEATURES])
def test_ship_takes_chunks_of_every_head_dimension_with_and_without_pages(dtype, features):
    rows = [c for c in ship_sm90_decode() if (c.dtype, c.features) == (dtype, features)]
    assert {c.d_head for c in rows if c.B_r == 64} == {64, 128, 256}
    assert {c.d_head for c in rows if c.B_r == 128} >= {64, 128}
    assert set(rows) <= set(ship())
    biased = [c for c in ship_sm90_decode() if c.features == features | Feature.BIAS]
    assert {(c.d_head, c.B_r) for c in biased} == {(64, 128), (128, 128), (256, 64)}


def test_ship_decodes_latent_attention_with_and_without_pages():
    rows = ship_sm90_mla()
    converted = (Dtype.E4M3, Dtype.LATENT_E4M3)
    biased = (BASIC_FEATURES | Feature.BIAS, PAGED_FEATURES | Feature.BIAS)
    assert {(c.dtype, c.features) for c in rows} == {
        *product((Dtype.FP16, Dtype.BF16, *converted), (BASIC_FEATURES, PAGED_FEATURES)),
        *product((Dtype.FP16, Dtype.BF16), biased),
    }
    assert set(rows) <= set(ship())


def test_ship_has_wide_heads_with_and_without_pages():
    rows = ship_sm90_wide()
    biased = (BASIC_FEATURES | Feature.BIAS, PAGED_FEATURES | Feature.BIAS)
    assert {(c.dtype, c.features) for c in rows} == {
        *product((Dtype.FP16, Dtype.BF16, Dtype.E4M3), (BASIC_FEATURES, PAGED_FEATURES)),
        *product((Dtype.FP16, Dtype.BF16), biased),
    }
    assert set(rows) <= set(ship())


def test_ship_has_wide_heads_with_every_feature_for_every_device():
    """A block has 99 KB on compute capability 8.6, and 163 KB on 8.0, less what is static."""
    rows = ship_sm80_wide()
    assert set(rows) <= set(ship())
    n_bytes = {c: computed("sm80_mla_shared_bytes", c) for c in rows}
    for dtype in (Dtype.FP16, Dtype.BF16, Dtype.E4M3):
        small = {c.features for c in rows if c.dtype == dtype and n_bytes[c] <= 98 * 1024}
        assert small == set(BIASED)
    assert max(n_bytes.values()) <= 162 * 1024


def test_ship_has_latent_attention_of_few_and_many_heads_for_every_device():
    """A block has 99 KB on compute capability 8.6, and 163 KB on 8.0, less what is static."""
    rows = ship_sm80_mla()
    assert set(rows) <= set(ship())
    dtypes = (Dtype.FP16, Dtype.BF16, Dtype.E4M3, Dtype.LATENT_E4M3)
    n_bytes = {c: computed("sm80_mla_shared_bytes", c) for c in rows}
    for dtype, features in product(dtypes, (BASIC_FEATURES, PAGED_FEATURES, *BIASED)):
        fits = [c for c in rows if (c.dtype, c.features) == (dtype, features)]
        has_one_tile = dtype == Dtype.LATENT_E4M3 and features in BIASED
        expected = {64} if has_one_tile else {32, 64}
        assert {c.B_r for c in fits if n_bytes[c] <= 98 * 1024} == expected
    assert max(n_bytes.values()) <= 162 * 1024


def test_tuning_of_latent_attention_has_the_tiles_of_ship():
    def tiles(rows):
        return {(c.dtype, c.B_r, c.B_c, c.n_warps, c.n_stages) for c in rows}

    rows = tune_sm80_mla()
    shipped = [c for c in ship_sm80_mla() if c.dtype != Dtype.LATENT_E4M3]
    assert len(rows) == 3 * 4 * 2 * 2
    assert {(c.B_r, c.n_warps) for c in rows} == {(16, 4), (32, 4), (32, 8), (64, 8)}
    assert tiles(rows) >= tiles(shipped)


def test_rows_that_multiply_e4m3_are_legal_rows():
    rows = tune_sm90_fp8()
    assert {c.operand_dtype for c in rows} == {Dtype.E4M3}
    assert {c.d_head for c in rows} == {64, 128, 192, 256}
    assert all(legal(config) for config in rows)
    shipped = {c for c in ship() if c.arch == Arch.SM90 and c.operand_dtype}
    assert shipped and shipped <= set(rows)


def test_gradients_of_sm90_have_rows_of_each_class_of_features_with_one_tile():
    """So a sequence has the same bits alone, in a ragged batch, and in a window beyond it."""
    rows = ship_sm90_gradients()
    assert set(rows) <= set(ship())
    causal = Feature.CAUSAL
    heads = ((64, 0), (128, 0), (192, 128), (256, 0))
    for dtype, op, of_heads in product(
        (Dtype.FP16, Dtype.BF16), (Op.BACKWARD_DQ, Op.BACKWARD_DKV), heads
    ):
        fits = [
            c
            for c in rows
            if (c.dtype, c.op, (c.d_head, c.d_head_v)) == (dtype, op, of_heads)
            and not c.features & Feature.SOFTCAP
        ]
        assert {c.features for c in fits} == {
            causal, causal | Feature.VARLEN, causal | Feature.WINDOW | Feature.VARLEN
        }  # fmt: skip
        assert len({(c.B_r, c.B_c, c.n_stages, c.overlap) for c in fits}) == 1


def test_gradients_of_sm90_have_a_row_with_softcap():
    capped = [c for c in ship_sm90_gradients() if c.features & Feature.SOFTCAP]
    assert {(c.dtype, c.op, c.d_head) for c in capped} == set(
        product((Dtype.FP16, Dtype.BF16), (Op.BACKWARD_DQ, Op.BACKWARD_DKV), (64, 128, 256))
    )
    assert {c.features for c in capped} == {BASIC_FEATURES}


def test_tuning_of_gradients_of_sm90_has_other_tiles_too():
    others = set(tune_sm90_gradients()) - set(ship_sm90_gradients())
    assert others and all(legal(config) for config in others)
    assert not others & set(ship())


def test_ship_mixes_what_it_decodes_with_and_without_pages():
    rows = ship_mixed()
    decoded = {c.dtype for c in ship_sm80_decode()}
    assert {(c.dtype, c.features, c.B_r) for c in rows} == set(
        product(decoded, (BASIC_FEATURES, PAGED_FEATURES, *BIASED), (16, 32))
    )
    assert {c.d_head for c in rows} == {max(c.d_head for c in ship_sm80_decode())}
    assert set(rows) <= set(ship())


def test_ship_serves_full_masked_and_ragged_problems_of_sm90():
    not_worth = {(64, 0): {8}, (192, 128): {8, 8 | 4 | 2 | 1}, (256, 0): {8 | 1 | 16}}
    for dtype in (Dtype.FP16, Dtype.BF16):
        for heads in ((64, 0), (96, 0), (128, 0), (192, 0), (192, 128), (256, 0)):
            rows = [c for c in ship_sm90() if (c.dtype, c.d_head, c.d_head_v) == (dtype, *heads)]
            classes = {0, 1, 1 | 2 | 4, 8, 8 | 1, 8 | 4 | 2 | 1, 8 | 1 | 16, PAGED_FEATURES}
            classes |= set(BIASED) if heads[0] in (64, 128, 256) else set()
            classes |= {COUNTING} if (dtype, heads[0]) == (Dtype.BF16, 128) else set()
            assert {c.features for c in rows} == classes - not_worth.get(heads, set())
            assert all(c.longest_first == (c.features != 0) for c in rows)
            assert all(c.fixed_reference == (c.features not in BIASED) for c in rows)


def test_pairs_has_few_kernels_with_every_pair_of_values_of_ship():
    assert set(pairs()) <= set(ship())
    assert len(pairs()) < 0.55 * len(ship())
    missing = {pair for config in ship() for pair in pairs_of_values(config)}
    assert not missing.difference(*map(pairs_of_values, pairs()))


def test_tune_of_sm90_varies_the_blocks_of_keys_alone():
    for masked in (0, 1):
        rows = [c for c in tune_sm90() if c.features == masked and not c.d_head_v]
        blocks = {(c.B_c, c.n_stages) for c in rows}
        assert len(blocks) > 10 and len(rows) == 2 * len(blocks)
        assert len({replace(c, dtype=1, B_c=0, n_stages=0) for c in rows}) == 1


def test_tune_of_sm90_has_the_tiles_of_192_128_that_are_installed():
    rows = [c for c in tune_sm90() if c.d_head_v]
    assert {(c.d_head, c.d_head_v) for c in rows} == {(192, 128)}
    assert len({(c.B_r, c.B_c) for c in rows}) * 4 == len(rows)
    plain = [c for c in ship_sm90() if c.d_head_v and c.features in (0, 1)]
    assert len(plain) == 4 and set(plain) <= set(rows)


def test_all_is_the_ascending_union():
    everything = {config for name in SETS if name != "all" for config in SETS[name]()}
    assert list(all_sets()) == sorted(everything)
