"""The short form of a configuration: printable, and parse_config(format_config(c)) == c.

    (FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax+causal
    SM90 (BF16, 128, 128, 176, 12): stages_2+overlap+ping_pong+persistent+fixed_reference
    SM90 (BF16, 192/128, 128, 112, 12): stages_2+overlap+ping_pong
    AVX512 (BF16, any, 64, 128): causal+window+softcap+varlen+paged+bias

192/128 is a d_head of 192 with a d_head_v of 128. So E4M3/E4M3 is a dtype with an operand_dtype.

src/config/format.c and parse.c have the same text from the same facts; a test compares the two.
"""

from __future__ import annotations

import re
from typing import NoReturn

from .config import Config, features_of
from .facts import (
    FAMILIES,
    FIELDS,
    INT32_MAX,
    INT32_MIN,
    KNOWN_FEATURES,
    UNNAMED_ARCH,
    Arch,
    Dtype,
    Family,
    Feature,
    Layout,
    Op,
    Word,
    rows_of,
)

INTEGER = re.compile(r"-?[0-9]+")
# The word for a d_head of 0, in families that have it.
ANY_D_HEAD = "any"

BLANKS = re.compile(r"[ \t]*")
WORD = re.compile(r"[A-Za-z0-9_-]+")


class ShortFormError(ValueError):
    """The text is no short form, or the configuration has none."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ShortFormError(message)


def _check_formattable(config: Config) -> None:
    """Requires that the text can express every field."""
    _require(config.arch in set(Arch), f"arch is {config.arch}: no such kernel family")
    _require(config.op in set(Op), f"op is {config.op}: no such operation")
    _require(config.dtype in set(Dtype), f"dtype is {config.dtype}: no such type")
    operand = config.operand_dtype
    _require(operand in {0, *Dtype}, f"operand_dtype is {operand}: no such type")
    _require(config.features & ~KNOWN_FEATURES == 0, f"features is {config.features}: unknown bits")
    family = FAMILIES[Arch(config.arch)]
    _require(config.op in family.operations, f"op is {config.op}: the family does not have it")
    layout = family.operations[Op(config.op)].layout
    for field in FIELDS:
        value = getattr(config, field)
        if field not in layout.fields:
            _require(value == 0, f"{field} is {value}: the family has no place for it")
        if field in layout.switches:
            _require(value in (0, 1), f"{field} is {value}: neither 0 nor 1")


def _format_word(config: Config, word: Word) -> str:
    """Returns the word's text; "" for a switch that is off."""
    values = [getattr(config, field) for field in word.fields]
    if word.is_counts:
        return "_".join([word.word, *map(str, values)]) + word.suffix
    return word.word if values[0] else ""


def _format_name(config: Config) -> str:
    if config.op == Op.FORWARD:
        return "" if config.arch == UNNAMED_ARCH else f"{Arch(config.arch).name} "
    return f"{Arch(config.arch).name} {Op(config.op).word} "


def format_config(config: Config) -> str:
    """Returns the short form; raises ShortFormError if the configuration has none."""
    _check_formattable(config)
    layout = rows_of(config.arch, config.op).layout
    any_d_head = layout.any_d_head and config.d_head == 0
    d_head = ANY_D_HEAD if any_d_head else str(config.d_head)
    if config.d_head_v:
        d_head += f"/{config.d_head_v}"
    numbers = [str(getattr(config, field)) for field in layout.shape]
    types = Dtype(config.dtype).name
    if config.operand_dtype:
        types += f"/{Dtype(config.operand_dtype).name}"
    shape = ", ".join([types, d_head, *numbers])
    words = [text for word in layout.words if (text := _format_word(config, word))]
    words += [feature.word for feature in features_of(config)]
    return f"{_format_name(config)}({shape})" + (f": {'+'.join(words)}" if words else "")


class _Scanner:
    """Reads a text token by token."""

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
    if scanner.text.startswith("(", scanner.position):
        return FAMILIES[UNNAMED_ARCH]
    position = scanner.position
    word = scanner.take(WORD, "a family or '('")
    if word not in Arch.__members__:
        scanner.fail(f"unknown family {word}", position)
    return FAMILIES[Arch[word]]


def _parse_op(scanner: _Scanner, family: Family) -> Op:
    """Reads the operation's word, if there is one, and the parenthesis after it."""
    position = scanner.position
    has_word = not scanner.accept("(")
    word = scanner.take(WORD, "'('") if has_word else Op.FORWARD.word
    ops = {op.word: op for op in family.operations}
    if word not in ops:
        scanner.fail(f"{family.arch.name} has no operation {word}", position)
    if has_word:
        scanner.expect("(")
    return ops[word]


def _parse_dtype(scanner: _Scanner) -> int:
    position = scanner.position
    dtype = scanner.take(WORD, "a dtype")
    if dtype not in Dtype.__members__:
        scanner.fail(f"unknown dtype {dtype}", position)
    return int(Dtype[dtype])


def _parse_shape(scanner: _Scanner, layout: Layout) -> dict[str, int]:
    values = {"dtype": _parse_dtype(scanner)}
    if layout.has_operand_dtype and scanner.accept("/"):
        values["operand_dtype"] = _parse_dtype(scanner)
    scanner.expect(",")
    any_d_head = layout.any_d_head and scanner.accept(ANY_D_HEAD)
    values["d_head"] = 0 if any_d_head else scanner.int32("d_head")
    if layout.has_d_head_v and scanner.accept("/"):
        values["d_head_v"] = scanner.int32("d_head_v")
    for field in layout.shape:
        scanner.expect(",")
        values[field] = scanner.int32(field)
    scanner.expect(")")
    return values


def _parse_counts(text: str, word: Word) -> dict[str, int]:
    """Returns the counts; {} if the text is not this word with its numbers."""
    numbers = r"_(-?[0-9]+)" * len(word.fields)
    counts = re.fullmatch(rf"{word.word}{numbers}(?:{word.suffix})?", text)
    return dict(zip(word.fields, map(int, counts.groups()))) if counts else {}


def _parse_word(text: str, layout: Layout) -> dict[str, int]:
    """Returns what one word after the colon sets; {} for an unknown word."""
    features = {feature.word: int(feature) for feature in Feature}
    if text in features:
        return {"features": features[text]}
    for word in layout.words:
        if word.is_counts:
            setting = _parse_counts(text, word)
        else:
            setting = {word.fields[0]: 1} if word.word == text else {}
        if setting:
            return setting
    return {}


def _parse_words(scanner: _Scanner, layout: Layout) -> dict[str, int]:
    """Reads the words after the colon, in any order, each at most once."""
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
    """Reads a short form. A ShortFormError names the column where the text is not one."""
    scanner = _Scanner(text)
    family = _parse_family(scanner)
    op = _parse_op(scanner, family)
    layout = family.operations[op].layout
    values = {"op": int(op), **_parse_shape(scanner, layout)}
    if scanner.accept(":"):
        values.update(_parse_words(scanner, layout))
    if not scanner.at_end():
        scanner.fail("end of the short form expected")
    if layout.counts and layout.counts.fields[0] not in values:
        scanner.fail(f"{layout.counts.form} missing")
    return Config(arch=int(family.arch), **values)
