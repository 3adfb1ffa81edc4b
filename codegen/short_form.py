"""The short form of a configuration: format_config() writes it, parse_config() reads it.

    (FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax
    AVX512 (BF16, any, 64, 128): causal+window+softcap+varlen

parse_config(format_config(c)) == c for every configuration that has a short form, legal or not.
"""

from __future__ import annotations

import re
from typing import NoReturn

from .config import FIELDS, INT32_MAX, INT32_MIN, Config, features_of
from .facts import (
    ALL_FEATURES,
    FAMILIES,
    LOADS,
    STRATEGIES,
    STRATEGIES_AFTER_LOAD,
    Arch,
    Dtype,
    Family,
    Feature,
)

SWITCHES = (*STRATEGIES, *STRATEGIES_AFTER_LOAD)
# After dtype and d_head, in parentheses.
TUPLE_FIELDS = {"cpu": ("B_r", "B_c"), "sm80": ("B_r", "B_c", "n_warps")}
# The family whose short form may begin with the parenthesis, and is written so.
UNNAMED_ARCH = Arch.SM80
# The word for a d_head of 0, which only CPU families have a meaning for.
ANY_D_HEAD = "any"

BLANKS = re.compile(r"[ \t]*")
WORD = re.compile(r"[A-Za-z0-9_-]+")
INTEGER = re.compile(r"-?[0-9]+")
LOAD = re.compile(r"load_(-?[0-9]+)_(-?[0-9]+)_(-?[0-9]+)(_tiles)?")


class ShortFormError(ValueError):
    """A text that is no short form, or a configuration that has none."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ShortFormError(message)


def _check_formattable(config: Config) -> None:
    """Every field must be one that the text can carry back."""
    _require(config.arch in set(Arch), f"arch is {config.arch}: no such kernel family")
    _require(config.dtype in set(Dtype), f"dtype is {config.dtype}: no such type")
    _require(config.features & ~ALL_FEATURES == 0, f"features is {config.features}: unknown bits")
    if FAMILIES[Arch(config.arch)].layout == "cpu":
        for field in FIELDS:
            placed = field in ("arch", "dtype", "d_head", "features", *TUPLE_FIELDS["cpu"])
            value = getattr(config, field)
            _require(placed or value == 0, f"{field} is {value}: a CPU family has no place for it")
    else:
        for field, _ in SWITCHES:
            value = getattr(config, field)
            _require(value in (0, 1), f"{field} is {value}: neither 0 nor 1")


def format_config(config: Config) -> str:
    """The short form; ShortFormError where the configuration has none."""
    _check_formattable(config)
    layout = FAMILIES[Arch(config.arch)].layout
    family = "" if config.arch == UNNAMED_ARCH else f"{Arch(config.arch).name} "
    any_d_head = layout == "cpu" and config.d_head == 0
    d_head = ANY_D_HEAD if any_d_head else str(config.d_head)
    numbers = [str(getattr(config, field)) for field in TUPLE_FIELDS[layout]]
    shape = ", ".join([Dtype(config.dtype).name, d_head, *numbers])
    words = []
    if layout == "sm80":
        words += [word for field, word in STRATEGIES if getattr(config, field)]
        words.append("load_{}_{}_{}_tiles".format(*(getattr(config, field) for field in LOADS)))
        words += [word for field, word in STRATEGIES_AFTER_LOAD if getattr(config, field)]
    words += [feature.word for feature in features_of(config)]
    return f"{family}({shape})" + (f": {'+'.join(words)}" if words else "")


class _Scanner:
    """Takes one token after the other off the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self._skip_blanks()

    def _skip_blanks(self) -> None:
        blanks = BLANKS.match(self.text, self.position)
        if blanks:
            self.position = blanks.end()

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        column = (self.position if position is None else position) + 1
        raise ShortFormError(f"{message} at column {column} of {self.text!r}")

    def at_end(self) -> bool:
        return self.position == len(self.text)

    def accept(self, punctuation: str) -> bool:
        if not self.text.startswith(punctuation, self.position):
            return False
        self.position += len(punctuation)
        self._skip_blanks()
        return True

    def expect(self, punctuation: str) -> None:
        if not self.accept(punctuation):
            self.fail(f"'{punctuation}' expected")

    def take(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self.text, self.position)
        if not match:
            self.fail(f"{what} expected")
        self.position = match.end()
        self._skip_blanks()
        return match.group()

    def int32(self, what: str) -> int:
        position = self.position
        value = int(self.take(INTEGER, what))
        if not INT32_MIN <= value <= INT32_MAX:
            self.fail(f"{what} does not fit 32 bits", position)
        return value


def _parse_family(scanner: _Scanner) -> Family:
    if scanner.accept("("):
        return FAMILIES[UNNAMED_ARCH]
    position = scanner.position
    word = scanner.take(WORD, "a family or '('")
    if word not in Arch.__members__:
        scanner.fail(f"unknown family {word}", position)
    scanner.expect("(")
    return FAMILIES[Arch[word]]


def _parse_shape(scanner: _Scanner, layout: str) -> dict[str, int]:
    position = scanner.position
    dtype = scanner.take(WORD, "a dtype")
    if dtype not in Dtype.__members__:
        scanner.fail(f"unknown dtype {dtype}", position)
    scanner.expect(",")
    any_d_head = layout == "cpu" and scanner.accept(ANY_D_HEAD)
    d_head = 0 if any_d_head else scanner.int32("d_head")
    values = {"dtype": int(Dtype[dtype]), "d_head": d_head}
    for field in TUPLE_FIELDS[layout]:
        scanner.expect(",")
        values[field] = scanner.int32(field)
    scanner.expect(")")
    return values


def _parse_word(word: str, layout: str) -> dict[str, int]:
    """What one word after the colon sets; empty: unknown word."""
    features = {feature.word: int(feature) for feature in Feature}
    if word in features:
        return {"features": features[word]}
    if layout == "cpu":
        return {}
    load = LOAD.fullmatch(word)
    if load:
        return dict(zip(LOADS, map(int, load.groups()[:3])))
    return {field: 1 for field, strategy in SWITCHES if strategy == word}


def _parse_words(scanner: _Scanner, layout: str) -> dict[str, int]:
    """The words after the colon, in any order, each at most once."""
    values = {"features": 0}
    while True:
        position = scanner.position
        word = scanner.take(WORD, "a feature")
        setting = _parse_word(word, layout)
        if not setting:
            scanner.fail(f"unknown feature {word}", position)
        if any(not INT32_MIN <= value <= INT32_MAX for value in setting.values()):
            scanner.fail(f"{word} does not fit 32 bits", position)
        feature = setting.pop("features", 0)
        if values["features"] & feature or values.keys() & setting.keys():
            scanner.fail(f"{word} given twice", position)
        values["features"] |= feature
        values.update(setting)
        if not scanner.accept("+"):
            return values


def parse_config(text: str) -> Config:
    """Reads a short form; ShortFormError names the place where it stops being one."""
    scanner = _Scanner(text)
    family = _parse_family(scanner)
    values = _parse_shape(scanner, family.layout)
    if scanner.accept(":"):
        values.update(_parse_words(scanner, family.layout))
    if not scanner.at_end():
        scanner.fail("end of the short form expected")
    if family.layout == "sm80" and LOADS[0] not in values:
        scanner.fail("load_<Q>_<K>_<V> missing")
    return Config(arch=int(family.arch), **values)
