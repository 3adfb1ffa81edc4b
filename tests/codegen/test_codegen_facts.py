"""The one list against the public header, which it repeats."""

import re

import pytest

from codegen.config import FIELDS
from codegen.facts import (
    ALL_FEATURES,
    FAMILIES,
    LOADS,
    SM80_FIELDS,
    SM90_FIELDS,
    SM90_STRATEGIES,
    STAGES,
    STRATEGIES,
    STRATEGIES_AFTER_LOAD,
    Arch,
    Dtype,
    Feature,
)


@pytest.fixture(scope="module")
def header(root):
    return (root / "include/flashattn.h").read_text()


@pytest.mark.parametrize(
    ("prefix", "enumeration"), [("ARCH", Arch), ("DTYPE", Dtype), ("FEATURE", Feature)]
)
def test_enumerators_are_those_of_the_header(header, prefix, enumeration):
    declared = re.findall(rf"^ +FLASH_{prefix}_(\w+) = (\d+)", header, re.MULTILINE)
    assert {name: int(value) for name, value in declared} == {
        member.name: int(member) for member in enumeration
    }


def test_fields_are_those_of_the_header_in_order(header):
    body = re.search(r"typedef struct flash_config \{(.*?)\} flash_config_t;", header, re.DOTALL)
    assert tuple(re.findall(r"^ +int32_t (\w+);", body.group(1), re.MULTILINE)) == FIELDS


def test_fields_are_those_of_every_family_then_of_sm80_then_features_then_of_sm90():
    common = ("arch", "dtype", "d_head", "B_r", "B_c", "n_warps")
    assert FIELDS == (*common, *SM80_FIELDS, "features", *SM90_FIELDS)


def test_fields_of_a_family_are_its_counts_and_its_switches():
    sm80_switches = [field for field, _ in (*STRATEGIES, *STRATEGIES_AFTER_LOAD)]
    assert sorted(SM80_FIELDS) == sorted([*sm80_switches, *LOADS])
    assert SM90_FIELDS == (STAGES, *(field for field, _ in SM90_STRATEGIES))


def test_words_of_a_family_differ():
    features = [feature.word for feature in Feature]
    for strategies in ((*STRATEGIES, *STRATEGIES_AFTER_LOAD), SM90_STRATEGIES):
        words = [*(word for _, word in strategies), *features]
        assert len(set(words)) == len(words)


def test_enumerators_are_not_zero():
    assert 0 not in {*map(int, Arch), *map(int, Dtype), *map(int, Feature)}


def test_features_are_single_bits():
    assert all(feature & (feature - 1) == 0 for feature in map(int, Feature))
    assert sum(map(int, Feature)) == ALL_FEATURES


def test_every_arch_has_a_family():
    assert set(FAMILIES) == set(Arch)
