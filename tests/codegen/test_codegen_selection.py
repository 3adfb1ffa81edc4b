"""Selections as text: sets unite, filters intersect, and messages name mistakes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.config import FIELDS
from codegen.facts import Arch, Dtype
from codegen.selection import SelectionError, select
from codegen.sets import SETS, all_sets, progression, ship, tune


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_selected_whole_and_ascending(name):
    assert select(name) == sorted(SETS[name]())


@pytest.mark.parametrize("text", ["progression tune", " tune  progression ", "progression;tune"])
def test_sets_unite(text):
    selected = select(text)
    assert selected == sorted({*progression(), *tune()})
    assert len(selected) < len(progression()) + len(tune())  # they share rows


def test_filters_intersect():
    assert select("tune dtype=FP16 B_r=64 B_c=32") == sorted(
        c for c in tune() if c.dtype == Dtype.FP16 and c.B_r == 64 and c.B_c == 32
    )


def test_the_same_field_twice_intersects():
    assert select("tune B_r=64,128 B_r=128") == select("tune B_r=128")


def test_values_of_one_filter_unite():
    assert select("B_c=32,128") == sorted({*select("B_c=32"), *select("B_c=128")})


def test_filters_alone_take_from_all():
    assert select("dtype=FP16 d_head=128 B_r=64") == [
        c for c in all_sets() if c.dtype == Dtype.FP16 and c.d_head == 128 and c.B_r == 64
    ]


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("dtype=BF16", "dtype=2"),
        ("dtype=bf16,FP16", "dtype=2,1"),
        ("arch=AVX512", "arch=3"),
        ("arch=sm80", "arch=80"),
        ("d_head=any", "d_head=0"),
        ("features=causal+window+softcap+varlen", "features=15"),
        ("features=varlen+softcap+window+causal,0", "features=0,15"),
    ],
)
def test_values_as_words_or_numbers(words, numbers):
    assert select(words) == select(numbers)


def test_the_families_of_a_filter():
    assert {c.arch for c in select("ship arch=AVX2,AVX512")} == {Arch.AVX2, Arch.AVX512}
    assert select("arch=AVX512 dtype=BF16") == [
        c for c in ship() if c.arch == Arch.AVX512 and c.dtype == Dtype.BF16
    ]


@given(st.sampled_from(all_sets()), st.sets(st.sampled_from(FIELDS), min_size=1))
def test_a_configuration_passes_the_filters_made_of_it(config, fields):
    filters = [f"{field}={int(getattr(config, field))}" for field in fields]
    selected = select(" ".join(filters))
    assert config in selected
    assert selected == [
        c for c in all_sets() if all(getattr(c, f) == getattr(config, f) for f in fields)
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing selected; sets: progression,"),
        ("  ", "nothing selected"),
        ("shop", "unknown set 'shop'; known: progression, "),
        ("ship shop", "unknown set 'shop'"),
        ("head=128", "unknown field 'head' in 'head=128'; known: arch, op, dtype, "),
        ("=128", "unknown field '' in '=128'"),
        ("struct_size=64", "unknown field 'struct_size'"),
        ("dtype=FP8", "unknown value 'FP8' in 'dtype=FP8'; known: FP16, BF16, FP32"),
        ("dtype=9", "unknown value '9' in 'dtype=9'; known: FP16, BF16, FP32"),
        ("dtype=", "unknown value '' in 'dtype='"),
        ("dtype=FP16,", "unknown value '' in 'dtype=FP16,'"),
        ("arch=AVX", "unknown value 'AVX' in 'arch=AVX'; known: REFERENCE, AVX2, AVX512, "),
        ("B_r=any", "unknown value 'any' in 'B_r=any'; known: a number"),
        ("B_r=64=64", "unknown value '64=64' in 'B_r=64=64'"),
        ("d_head=some", "known: a number or any"),
        ("features=128", "unknown value '128' in 'features=128'; known: causal+window"),
        ("features=causal+alibi", "unknown value 'causal+alibi'"),
        ("B_r=77", "no configuration passes 'B_r=77'"),
        ("ship B_c=33", "no configuration passes 'ship B_c=33'"),
        ("dtype=FP16 dtype=BF16", "no configuration passes"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(SelectionError) as mistake:
        select(text)
    assert message in str(mistake.value)
    assert "\n" not in str(mistake.value)
