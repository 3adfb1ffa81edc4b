"""The short form of a configuration: format_config() writes it, parse_config() reads it.

    (FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax
    SM90 (BF16, 128, 128, 176, 12): stages_2+overlap+ping_pong+persistent+fixed_reference
    AVX512 (BF16, any, 64, 128): causal+window+softcap+varlen

parse_config(format_config(c)) == c for every configuration that has a short form, legal or not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from .config import INT32_MAX, INT32_MIN, Config, features_of
from .facts import (
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
    Family,
    Feature,
)


@dataclass(frozen=True)
class Counts:
    """The word that carries numbers, which is always there."""

    word: str  # how it is written, a {} for each field
    pattern: re.Pattern[str]  # what is read, a group for each field
    fields: tuple[str, ...]
    name: str  # for messages


@dataclass(frozen=True)
class Layout:
    """What the short form of a family's kind holds besides dtype, d_head and features."""

    tuple_fields: tuple[str, ...]  # after dtype and d_head, in parentheses
    absent: tuple[str, ...]  # fields of other families, which must be 0
    switches: tuple[tuple[str, str], ...] = ()  # before the counts
    counts: Counts | None = None
    switches_after: tuple[tuple[str, str], ...] = ()
    any_d_head: bool = False  # 0 is written as a word

    @property
    def all_switches(self) -> tuple[tuple[str, str], ...]:
        return (*self.switches, *self.switches_after)


INTEGER = re.compile(r"-?[0-9]+")
LAYOUTS = {
    "cpu": Layout(
        tuple_fields=("B_r", "B_c"),
        absent=("n_warps", *SM80_FIELDS, *SM90_FIELDS),
        any_d_head=True,
    ),
    "sm80": Layout(
        tuple_fields=("B_r", "B_c", "n_warps"),
        absent=SM90_FIELDS,
        switches=STRATEGIES,
        counts=Counts(
            "load_{}_{}_{}_tiles",
            re.compile(r"load_(-?[0-9]+)_(-?[0-9]+)_(-?[0-9]+)(?:_tiles)?"),
            LOADS,
            "load_<Q>_<K>_<V>",
        ),
        switches_after=STRATEGIES_AFTER_LOAD,
    ),
    "sm90": Layout(
        tuple_fields=("B_r", "B_c", "n_warps"),
        absent=SM80_FIELDS,
        counts=Counts("stages_{}", re.compile(r"stages_(-?[0-9]+)"), (STAGES,), "stages_<N>"),
        switches_after=SM90_STRATEGIES,
    ),
}
# The family whose short form may begin with the parenthesis, and is written so.
UNNAMED_ARCH = Arch.SM80
# The word for a d_head of 0, where it has a meaning.
ANY_D_HEAD = "any"

BLANKS = re.compile(r"[ \t]*")
WORD = re.compile(r"[A-Za-z0-9_-]+")


class ShortFormError(ValueError):
    """A text that is no short form, or a configuration that has none."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ShortFormError(message)


def layout_of(config: Config) -> Layout:
    return LAYOUTS[FAMILIES[Arch(config.arch)].layout]


def _check_formattable(config: Config) -> None:
    """Every field must be one that the text can carry back."""
    _require(config.arch in set(Arch), f"arch is {config.arch}: no such kernel family")
    _require(config.dtype in set(Dtype), f"dtype is {config.dtype}: no such type")
    _require(config.features & ~ALL_FEATURES == 0, f"features is {config.features}: unknown bits")
    layout = layout_of(config)
    for field in layout.absent:
        value = getattr(config, field)
        _require(value == 0, f"{field} is {value}: the family has no place for it")
    for field, _ in layout.all_switches:
        value = getattr(config, field)
        _require(value in (0, 1), f"{field} is {value}: neither 0 nor 1")


def _words(config: Config) -> list[str]:
    layout = layout_of(config)
    words = [word for field, word in layout.switches if getattr(config, field)]
    if layout.counts:
        counts = (getattr(config, field) for field in layout.counts.fields)
        words.append(layout.counts.word.format(*counts))
    words += [word for field, word in layout.switches_after if getattr(config, field)]
    return words + [feature.word for feature in features_of(config)]


def format_config(config: Config) -> str:
    """The short form; ShortFormError where the configuration has none."""
    _check_formattable(config)
    family = "" if config.arch == UNNAMED_ARCH else f"{Arch(config.arch).name} "
    layout = layout_of(config)
    any_d_head = layout.any_d_head and config.d_head == 0
    d_head = ANY_D_HEAD if any_d_head else str(config.d_head)
    numbers = [str(getattr(config, field)) for field in layout.tuple_fields]
    shape = ", ".join([Dtype(config.dtype).name, d_head, *numbers])
    words = _words(config)
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


def _parse_shape(scanner: _Scanner, layout: Layout) -> dict[str, int]:
    position = scanner.position
    dtype = scanner.take(WORD, "a dtype")
    if dtype not in Dtype.__members__:
        scanner.fail(f"unknown dtype {dtype}", position)
    scanner.expect(",")
    any_d_head = layout.any_d_head and scanner.accept(ANY_D_HEAD)
    d_head = 0 if any_d_head else scanner.int32("d_head")
    values = {"dtype": int(Dtype[dtype]), "d_head": d_head}
    for field in layout.tuple_fields:
        scanner.expect(",")
        values[field] = scanner.int32(field)
    scanner.expect(")")
    return values


def _parse_word(word: str, layout: Layout) -> dict[str, int]:
    """What one word after the colon sets; empty: unknown word."""
    features = {feature.word: int(feature) for feature in Feature}
    if word in features:
        return {"features": features[word]}
    counts = layout.counts and layout.counts.pattern.fullmatch(word)
    if counts:
        return dict(zip(layout.counts.fields, map(int, counts.groups())))
    return {field: 1 for field, strategy in layout.all_switches if strategy == word}


def _parse_words(scanner: _Scanner, layout: Layout) -> dict[str, int]:
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
    layout = LAYOUTS[family.layout]
    values = _parse_shape(scanner, layout)
    if scanner.accept(":"):
        values.update(_parse_words(scanner, layout))
    if not scanner.at_end():
        scanner.fail("end of the short form expected")
    if layout.counts and layout.counts.fields[0] not in values:
        scanner.fail(f"{layout.counts.name} missing")
    return Config(arch=int(family.arch), **values)
