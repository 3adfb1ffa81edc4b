"""The facts of the generator agree with the public header, which they repeat."""

import re
from itertools import product

import pytest

from codegen.facts import (
    BASIC_FEATURES,
    FAMILIES,
    FIELDS,
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
    Feature,
    Op,
    Types,
    Zero,
    rows_name,
    rows_of,
)
from codegen.kernel_rules import rules_of
from codegen.sets import all_sets
from codegen.wrappers import WRAPPERS

ROWS = [rows for family in FAMILIES.values() for rows in family.operations.values()]


@pytest.fixture(scope="module")
def header(root):
    return (root / "include/flashattn.h").read_text()


@pytest.mark.parametrize(
    ("prefix", "enumeration"), [("ARCH", Arch), ("OP", Op), ("DTYPE", Dtype), ("FEATURE", Feature)]
)
def test_enumerators_are_those_of_the_header(header, prefix, enumeration):
    declared = re.findall(rf"^ +FLASH_{prefix}_(\w+) = (\d+)", header, re.MULTILINE)
    assert {name: int(value) for name, value in declared} == {
        member.name: int(member) for member in enumeration
    }


def test_fields_are_those_of_the_header_in_order(header):
    body = re.search(r"typedef struct flash_config \{(.*?)\} flash_config_t;", header, re.DOTALL)
    assert tuple(re.findall(r"^ +int32_t (\w+);", body.group(1), re.MULTILINE)) == FIELDS


def test_fields_are_those_of_the_python_binding(root):
    text = (root / "bindings/python/flashattn/_abi.py").read_text()
    body = re.search(r"^CONFIG_FIELDS = \((.*?)^\)", text, re.DOTALL | re.MULTILINE)
    assert tuple(re.findall(r'"(\w+)"', body.group(1))) == FIELDS


def test_every_field_means_something_to_a_family():
    assert {name for rows in ROWS for name in rows.layout.fields} == set(FIELDS)


def test_every_field_of_a_row_has_a_rule_and_no_other_field_has():
    for rows in ROWS:
        for name in FIELDS[2:]:
            means_nothing = isinstance(rows.rule(name), Zero)
            assert means_nothing == (name not in rows.layout.fields)


@pytest.mark.parametrize(
    "layout",
    [SM80, SM80_DECODE, SM80_MLA, SM80_WIDE, SM90, SM90_DECODE, SM90_MLA, SM90_WIDE, MIXED],
)
def test_words_of_a_family_differ(layout):
    words = [*(word.word for word in layout.words), *(feature.word for feature in Feature)]
    assert len(set(words)) == len(words)


def test_enumerators_that_a_forgotten_field_would_have_are_free():
    assert 0 not in {*map(int, Arch), *map(int, Dtype), *map(int, Feature)}


def test_features_are_single_bits():
    assert all(feature & (feature - 1) == 0 for feature in map(int, Feature))
    assert sum(map(int, Feature)) == KNOWN_FEATURES


def test_every_row_serves_q_and_o_of_one_type_and_no_combination_is_listed_twice():
    """The type is that of K and V, but for those of 8 bits and less, which only they may have; Q
    may be of E4M3 beside them."""
    of_keys = {Dtype.E4M3, Dtype.LATENT_E4M3, Dtype.Q8_0, Dtype.Q4_0}
    for rows in ROWS:
        assert len(set(rows.types)) == len(rows.types)
        assert not any(types.o in of_keys for types in rows.types)
        assert all(types.q not in of_keys or _is_narrow(types) for types in rows.types)
        for dtype in rows.rule("dtype").values:
            own = [types for types in rows.types if types.kv == dtype and types.q == types.o]
            assert dtype in [types.q for types in own] or (dtype in of_keys and own)


def _is_narrow(types):
    return types.q == types.kv == Dtype.E4M3


def test_documented_types_are_those_of_the_families(root):
    """The table of docs/configurations.md has the types of the forward pass, a row for each family
    with words of its own."""
    text = (root / "docs/configurations.md").read_text()
    section = text.partition("## Element types")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]*)\| ([^|]*)\| ([^|]*)\| ([^|]*)\|$", section, re.MULTILINE)[1:]
    documented: dict[str, set[Types]] = {}
    names: list[str] = []
    for families, kv, q, o in rows:
        names = families.replace(" ", "").split(",") if families.strip() else names
        for name in names:
            documented.setdefault(name, set()).update(_combinations(kv, q, o))
    assert documented == {
        family.arch.name: set(family.operations[Op.FORWARD].types)
        for family in FAMILIES.values()
        if Op.FORWARD in family.operations
    }


def _combinations(kv, q, o):
    kv, _, operand = kv.partition("/")
    product_of = Dtype[operand.strip()] if operand else 0
    for own in _types(kv, None):
        pairs = product(_types(q, own), _types(o, own))
        yield from (Types(own, *pair, product_of) for pair in pairs)


def _types(text, own):
    words = [word.strip() for word in re.split(",| or ", text) if word.strip()]
    return [own if word == "as K and V" else Dtype[word] for word in words]


def test_no_family_has_a_feature_that_is_unknown():
    assert all(rows.features & ~KNOWN_FEATURES == 0 for rows in ROWS)
    assert BASIC_FEATURES & ~KNOWN_FEATURES == 0


def test_no_row_has_a_feature_that_its_family_does_not_claim():
    for config in all_sets():
        assert config.features & ~rows_of(config.arch, config.op).features == 0


def test_the_build_has_every_family(root):
    """cmake/families.cmake names the families that some machine compiles, and no others."""
    text = re.sub("#.*", "", (root / "cmake/families.cmake").read_text())
    lists = re.findall(r"set\(FLASH_FAMILIES_(\w+) ([^)]*)\)", text)
    on_cpu = {name for key, names in lists if key != "CUDA" for name in names.split()}
    on_cuda = {name for key, names in lists if key == "CUDA" for name in names.split()}
    expected = FAMILIES.values()
    assert on_cpu == {f.name for f in expected if f.on_cpu} - {"reference"}
    assert on_cuda == {f.name for f in expected if not f.on_cpu}


def test_rows_with_kernels_and_no_others_have_a_wrapper():
    kinds = {(rows.layout, op) for f in FAMILIES.values() for op, rows in f.operations.items()}
    assert {(layout.name, op) for layout, op in kinds if layout.has_kernels} == set(WRAPPERS)


def test_every_arch_has_a_family():
    assert set(FAMILIES) == set(Arch)


def test_the_kernels_of_every_cuda_family_have_a_list_of_rules():
    for family in FAMILIES.values():
        for op, rows in family.operations.items():
            if not family.on_cpu and rows.layout.has_kernels:
                assert all(map(callable, rules_of(rows_name(family, op))))
