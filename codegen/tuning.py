"""Measured results that are built into the library: codegen/results/*.txt, a file per device.

The form of a line is that of flash_tuning_format() in include/flashattn.h, as `python -m flashattn
tune` writes it; src/select/tuning/parse.c reads the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from .config import Config
from .facts import Dtype, Feature, Op
from .short_form import ShortFormError, parse_config

FOLDER = Path(__file__).resolve().parent / "results"
HEADER = "flashattn tuning 1"

_LINE = re.compile(
    r"cc=(?P<compute_capability>\d+) +sms=(?P<multiprocessors>\d+) +(?:op=(?P<op>\w+) +)?"
    r"dtype=(?P<dtype>\w+) +"
    r"d_head=(?P<d_head>\d+) +features=(?P<features>[\w+]+) +"
    r"q=(?P<q>\d+) +k=(?P<k>\d+) +heads=(?P<heads>\d+) +ns=(?P<nanoseconds>\d+) *:(?P<config>.*)"
)


class TuningError(ValueError):
    """The measured results cannot be understood."""


class Key(NamedTuple):
    """The fields by which problems share results, in sort order: C's tuning_key_t."""

    compute_capability: int
    multiprocessors: int
    op: int
    dtype: int
    d_head: int
    features: int
    log2_q: int
    log2_k: int
    log2_heads: int


class Result(NamedTuple):
    """A measured result. By the order of its fields, the fastest of a key comes first."""

    key: Key
    nanoseconds: int
    config: Config


def size_class(size: int) -> int:
    """Returns the base-2 logarithm, rounded to the nearest integer; 0 for sizes below 2."""
    if size < 2:
        return 0
    bits = size.bit_length()
    return bits if size * size > 1 << (2 * bits - 1) else bits - 1


def _features(text: str) -> int:
    words = {feature.word: int(feature) for feature in Feature}
    return 0 if text == "none" else sum(words[word] for word in set(text.split("+")))


def _op(word: str | None) -> int:
    """Returns the operation of a word; the forward pass for results that name none."""
    return int(Op.FORWARD if word is None else {op.word: op for op in Op}[word])


def parse_result(line: str) -> Result:
    """Reads a result; raises TuningError if the line is not one."""
    fields = _LINE.fullmatch(line)
    if fields is None:
        raise TuningError(f"not a result: {line!r}")
    try:
        key = Key(
            int(fields["compute_capability"]),
            int(fields["multiprocessors"]),
            _op(fields["op"]),
            int(Dtype[fields["dtype"]]),
            int(fields["d_head"]),
            _features(fields["features"]),
            *(size_class(int(fields[size])) for size in ("q", "k", "heads")),
        )
        config = parse_config(fields["config"].strip())
    except KeyError as error:
        raise TuningError(f"unknown word {error} in {line!r}") from None
    except ShortFormError as error:
        raise TuningError(f"{error} in {line!r}") from None
    if config.op != key.op:
        raise TuningError(f"the kernel computes another operation than op= says in {line!r}")
    return Result(key, int(fields["nanoseconds"]), config)


def parse_results(text: str) -> list[Result]:
    """Returns the results in a text, ascending. A TuningError has the number of the line."""
    lines = [(n, line.partition("#")[0].strip()) for n, line in enumerate(text.splitlines(), 1)]
    lines = [(n, line) for n, line in lines if line]
    if not lines or lines[0][1] != HEADER:
        raise TuningError(f"measured results begin with {HEADER!r}")
    results = []
    for number, line in lines[1:]:
        try:
            results.append(parse_result(line))
        except TuningError as error:
            raise TuningError(f"line {number}: {error}") from None
    return sorted(results)


def committed_files() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))


def committed_results() -> list[Result]:
    """Returns the results of every file, ascending. A TuningError has the file's name."""
    results: list[Result] = []
    for path in committed_files():
        try:
            results += parse_results(path.read_text(encoding="utf-8"))
        except TuningError as error:
            raise TuningError(f"{path}: {error}") from None
    return sorted(results)


def results_of(configs: Iterable[Config], results: Iterable[Result]) -> list[Result]:
    """Returns the results of configurations that a library has."""
    held = set(configs)
    return [result for result in results if result.config in held]
