"""The one list against the public header, which it repeats."""

import re

import pytest

from codegen.config import FIELDS
from codegen.facts import (
    ALL_FEATURES,
    FAMILIES,
    LOADS,
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


def test_fields_after_the_family_are_the_thirteen_of_the_base_then_features():
    assert FIELDS[0] == "arch"
    assert FIELDS[1:14] == (
        "dtype",
        "d_head",
        "B_r",
        "B_c",
        "n_warps",
        *(field for field, _ in STRATEGIES),
        *LOADS,
        *(field for field, _ in STRATEGIES_AFTER_LOAD),
    )
    assert FIELDS[14:] == ("features",)


def test_enumerators_are_not_zero():
    assert 0 not in {*map(int, Arch), *map(int, Dtype), *map(int, Feature)}


def test_features_are_single_bits():
    assert all(feature & (feature - 1) == 0 for feature in map(int, Feature))
    assert sum(map(int, Feature)) == ALL_FEATURES


def test_every_arch_has_a_family():
    assert set(FAMILIES) == set(Arch)
