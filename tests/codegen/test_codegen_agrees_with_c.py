"""The library's order, rules and short form (src/config/) agree with the generator's: the same
configurations are legal, for the same reasons, and the same texts are read and written.
"""

import ctypes
import os
from dataclasses import astuple, replace

import pytest
from config_strategies import (
    any_config,
    near_miss,
    plausible_cuda_config,
    writable_config,
)
from hypothesis import given
from hypothesis import strategies as st

from codegen.config import Config
from codegen.facts import FIELDS
from codegen.legality import broken_rule
from codegen.sets import all_sets
from codegen.short_form import ShortFormError, format_config, parse_config

TEXT_SIZE = 256
SUCCESS = 0
# What look-up says of a legal configuration whose kernel is not in the library, or does not run on
# this processor, or needs a device.
OF_LEGAL = ("is a legal configuration without a kernel", " here: ", "has no usable CUDA device")

mixed_config = any_config | near_miss | plausible_cuda_config | writable_config


class CConfig(ctypes.Structure):
    """Mirrors flash_config_t."""

    _fields_ = [("struct_size", ctypes.c_uint32), *((field, ctypes.c_int32) for field in FIELDS)]


def to_c(config):
    return CConfig(ctypes.sizeof(CConfig), *astuple(config))


def from_c(config):
    return Config(**{field: getattr(config, field) for field in FIELDS})


class CLibrary:
    """The library's functions on configurations."""

    def __init__(self, path):
        self.functions = ctypes.CDLL(path)
        self.functions.flash_last_error.restype = ctypes.c_char_p
        self.functions.flash_lookup_kernel.restype = ctypes.c_void_p
        self.functions.flash_kernel_at.restype = ctypes.c_void_p

    def broken_rule(self, config):
        """Returns what look-up says of a configuration that it refuses; None if it is legal."""
        if self.functions.flash_lookup_kernel(ctypes.byref(to_c(config))):
            return None
        message = self.functions.flash_last_error().decode()
        return None if any(words in message for words in OF_LEGAL) else message

    def format(self, config):
        text = ctypes.create_string_buffer(TEXT_SIZE)
        size = ctypes.c_size_t(TEXT_SIZE)
        status = self.functions.flash_config_format(ctypes.byref(to_c(config)), text, size)
        return text.value.decode() if status == SUCCESS else None

    def parse(self, text):
        config = to_c(Config())
        status = self.functions.flash_config_parse(text.encode(), ctypes.byref(config))
        return from_c(config) if status == SUCCESS else None

    def table(self):
        for i in range(self.functions.flash_kernel_count()):
            config = to_c(Config())
            kernel = ctypes.c_void_p(self.functions.flash_kernel_at(i))
            assert self.functions.flash_kernel_config(kernel, ctypes.byref(config)) == SUCCESS
            yield from_c(config)


@pytest.fixture(scope="module")
def library():
    path = os.environ.get("FLASHATTN_LIBRARY")
    if path is None:
        pytest.skip("FLASHATTN_LIBRARY does not name a built library")
    return CLibrary(path)


def written(config):
    try:
        return format_config(config)
    except ShortFormError:
        return None


def read(text):
    try:
        return parse_config(text)
    except ShortFormError:
        return None


@given(config=mixed_config)
def test_the_same_rules(library, config):
    assert library.broken_rule(config) == broken_rule(config)


def test_the_same_rules_one_field_away_from_a_row(library):
    """Of each family, operation and type, a row with each field changed a little and a lot: that
    reaches rules among fields, which few random configurations do."""
    rows = {(row.arch, row.op, row.dtype): row for row in all_sets()}
    for row in rows.values():
        for field in FIELDS:
            value = getattr(row, field)
            for other in (0, 1, 2, value - 1, value + 1, 2 * value, value // 2, 3 * value):
                changed = replace(row, **{field: other})
                assert library.broken_rule(changed) == broken_rule(changed)


def test_the_sets_are_legal_for_the_library(library):
    assert [c for c in all_sets() if library.broken_rule(c) is not None] == []


def test_the_same_order(library):
    table = list(library.table())
    assert table == sorted(table)


@given(config=mixed_config)
def test_the_same_text_is_written(library, config):
    assert library.format(config) == written(config)


@given(
    config=writable_config, position=st.integers(0, 100), change=st.text("(,:+)-_ 0a\t", max_size=2)
)
def test_the_same_text_is_read(library, config, position, change):
    """A character of the text of a configuration is replaced."""
    text = format_config(config)
    changed = text[:position] + change + text[position + 1 :]
    assert library.parse(text) == config
    assert library.parse(changed) == read(changed)
