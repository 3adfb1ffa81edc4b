"""A selection of kernels is a text, in FLASH_KERNELS or on the command line.

    ship
    progression tune            sets unite
    ship dtype=BF16             filters intersect
    arch=AVX512 B_r=64,128      the values of one filter unite

Filters without a set select from the set "all".
"""

from __future__ import annotations

import re

from . import sets
from .config import Config
from .covers import values
from .facts import FIELDS, KNOWN_FEATURES, Arch, Dtype, Feature, Op

SETS = {**sets.SETS, "values": values}
ENUMERATIONS = {"arch": Arch, "op": Op, "dtype": Dtype, "operand_dtype": Dtype}
MAY_BE_ZERO = {"operand_dtype"}  # of those


class SelectionError(ValueError):
    """A selection that cannot be understood or selects nothing."""


def split_words(text: str) -> list[str]:
    """Splits at blanks (a command line) and semicolons (a CMake list)."""
    return [word for word in re.split(r"[\s;]+", text) if word]


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else None


def _parse_features(text: str) -> int | None:
    """Reads the exact set of features: a number, or words joined by '+'."""
    words = {feature.word: int(feature) for feature in Feature}
    names = text.lower().split("+")
    if all(name in words for name in names):
        return sum(words[name] for name in set(names))
    number = _integer(text)
    return number if number is not None and 0 <= number <= KNOWN_FEATURES else None


def _parse_value(field: str, text: str) -> int | None:
    """Reads a value, a word or a number; None if it is neither."""
    if field in ENUMERATIONS:
        enumeration = ENUMERATIONS[field]
        if text.upper() in enumeration.__members__:
            return int(enumeration[text.upper()])
        number = _integer(text)
        known = set(enumeration) | ({0} if field in MAY_BE_ZERO else set())
        return number if number in known else None
    if field == "features":
        return _parse_features(text)
    if field == "d_head" and text == "any":
        return 0
    return _integer(text)


def _known_values(field: str) -> str:
    known = {
        **{name: ", ".join(members.__members__) for name, members in ENUMERATIONS.items()},
        "d_head": "a number or any",
        "features": f"{'+'.join(feature.word for feature in Feature)} or 0 ... {KNOWN_FEATURES}",
    }
    return known.get(field, "a number")


def _parse_filter(word: str) -> tuple[str, set[int]]:
    field, _, texts = word.partition("=")
    if field not in FIELDS:
        raise SelectionError(f"unknown field {field!r} in {word!r}; known: {', '.join(FIELDS)}")
    values = set()
    for text in texts.split(","):
        value = _parse_value(field, text)
        if value is None:
            raise SelectionError(
                f"unknown value {text!r} in {word!r}; known: {_known_values(field)}"
            )
        values.add(value)
    return field, values


def select(text: str) -> list[Config]:
    """Returns the selected configurations, ascending; raises SelectionError if there are none."""
    words = split_words(text)
    filters = [_parse_filter(word) for word in words if "=" in word]
    names = [word for word in words if "=" not in word]
    if not words:
        raise SelectionError(f"nothing selected; sets: {', '.join(SETS)}")
    for name in names:
        if name not in SETS:
            raise SelectionError(f"unknown set {name!r}; known: {', '.join(SETS)}")
    candidates = {config for name in names or ["all"] for config in SETS[name]()}
    selected = sorted(
        config
        for config in candidates
        if all(getattr(config, field) in values for field, values in filters)
    )
    if not selected:
        raise SelectionError(f"no configuration passes {' '.join(words)!r}")
    return selected
