"""The library's own order, rules and short form (src/config/) against the generator's: the same
configurations are legal, for the same reasons, and the same texts are read and written.
"""

import ctypes
from dataclasses import astuple

import pytest
from c_compiler import COMPILERS, compile_c
from config_strategies import (
    any_config,
    near_miss,
    plausible_sm80_config,
    plausible_sm90_config,
    writable_config,
)
from hypothesis import given
from hypothesis import strategies as st

from codegen.config import FIELDS, Config
from codegen.emit import config_facts
from codegen.legality import broken_rule
from codegen.sets import all_sets
from codegen.short_form import ShortFormError, format_config, parse_config

SOURCES = (
    "config/config.c",
    "config/format.c",
    "config/parse.c",
    "config/rules.c",
    "core/status.c",
    "core/struct_size.c",
    "core/text_reader.c",
    "core/text_writer.c",
)
TEXT_SIZE = 256
SUCCESS = 0

mixed_config = (
    any_config | near_miss | plausible_sm80_config | plausible_sm90_config | writable_config
)


class CConfig(ctypes.Structure):
    """flash_config_t."""

    _fields_ = [("struct_size", ctypes.c_uint32), *((field, ctypes.c_int32) for field in FIELDS)]


def to_c(config):
    return CConfig(ctypes.sizeof(CConfig), *astuple(config))


class CLibrary:
    """The functions of src/ under test."""

    def __init__(self, path):
        self.functions = ctypes.CDLL(str(path))
        self.functions.status_message.restype = ctypes.c_char_p

    def broken_rule(self, config):
        status = self.functions.config_check(ctypes.byref(to_c(config)))
        return None if status == SUCCESS else self.functions.status_message().decode()

    def compare(self, a, b):
        return self.functions.config_compare(ctypes.byref(to_c(a)), ctypes.byref(to_c(b)))

    def format(self, config):
        text = ctypes.create_string_buffer(TEXT_SIZE)
        size = ctypes.c_size_t(TEXT_SIZE)
        status = self.functions.flash_config_format(ctypes.byref(to_c(config)), text, size)
        return text.value.decode() if status == SUCCESS else None

    def parse(self, text):
        config = to_c(Config())
        status = self.functions.flash_config_parse(text.encode(), ctypes.byref(config))
        if status != SUCCESS:
            return None
        return Config(**{field: getattr(config, field) for field in FIELDS})


@pytest.fixture(scope="module", params=COMPILERS)
def library(request, root, tmp_path_factory):
    directory = tmp_path_factory.mktemp("library")
    (directory / "config_facts.h").write_text(config_facts())
    sources = [root / "src" / name for name in SOURCES]
    path = directory / "config.so"
    arguments = ("-shared", "-fPIC", "-o", path)
    compiled = compile_c(request.param, root, sources, *arguments, include=[directory])
    assert (compiled.returncode, compiled.stderr) == (0, "")
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


def test_the_sets_are_legal_for_the_library(library):
    assert [c for c in all_sets() if library.broken_rule(c) is not None] == []


@given(a=near_miss, b=near_miss)
def test_the_same_order(library, a, b):
    assert library.compare(a, b) == (a > b) - (a < b)
    assert library.compare(a, a) == 0


@given(config=mixed_config)
def test_the_same_text_is_written(library, config):
    assert library.format(config) == written(config)


@given(
    config=writable_config, position=st.integers(0, 100), change=st.text("(,:+)-_ 0a\t", max_size=2)
)
def test_the_same_text_is_read(library, config, position, change):
    """Texts of configurations, with something in place of one character."""
    text = format_config(config)
    changed = text[:position] + change + text[position + 1 :]
    assert library.parse(text) == config
    assert library.parse(changed) == read(changed)
