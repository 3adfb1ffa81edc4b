"""The set that stands for all kernels where they are compiled and not run."""

from codegen.covers import values, values_of
from codegen.selection import SETS, select
from codegen.sets import SETS as NAMED
from codegen.sets import ship


def test_values_has_few_kernels_with_every_value_of_ship():
    assert set(values()) <= set(ship())
    assert len(values()) < len(ship()) / 4
    missing = {value for config in ship() for value in values_of(config)}
    assert not missing.difference(*map(values_of, values()))


def test_none_of_values_can_be_left_out():
    for config in values():
        others = set().union(*(values_of(other) for other in values() if other != config))
        assert not values_of(config) <= others


def test_it_can_be_selected_by_its_name():
    assert set(SETS) == {*NAMED, "values"}
    assert select("values") == sorted(values())
