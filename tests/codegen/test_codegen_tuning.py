"""Measured results that are built into the library, and the steps that `bench` knows."""

from __future__ import annotations

import re

import flashattn
import pytest
from flashattn.cli import progression

from codegen.config import Config
from codegen.emit import tuning_table
from codegen.facts import Arch, Dtype
from codegen.sets import SETS, ship
from codegen.short_form import format_config
from codegen.tuning import (
    HEADER,
    Key,
    TuningError,
    committed_files,
    committed_results,
    parse_result,
    parse_results,
    size_class,
)

CONFIGS = sorted(c for c in ship() if c.arch == Arch.SM80)[:3]
LINE = "cc=90 sms=132 dtype=BF16 d_head=128 features=causal+varlen q=2000 k=512 heads=1 ns=155020: "


def _line(config: Config, ns: int = 155020) -> str:
    return LINE.replace("155020", str(ns)) + format_config(config)


# ---- What is committed ----


def test_there_are_committed_results() -> None:
    assert committed_files()


@pytest.mark.parametrize("path", committed_files(), ids=lambda path: path.name)
def test_the_library_reads_a_committed_file(path) -> None:
    text = path.read_text(encoding="utf-8")
    flashattn.set_tuning(text)
    flashattn.set_tuning(None)
    parse_results(text)


def test_committed_results_are_of_ship_rows_that_fit() -> None:
    shipped = set(ship())
    for key, nanoseconds, config in committed_results():
        assert config in shipped, f"{format_config(config)} is not in the ship set"
        assert nanoseconds > 0 and config.dtype == key.dtype and config.d_head >= key.d_head
        assert not key.features & ~config.features


def test_a_problem_has_one_result_a_family() -> None:
    found = [(result.key, result.config.arch) for result in committed_results()]
    assert len(found) == len(set(found))


# ---- Reading ----


def test_a_line() -> None:
    key = Key(90, 132, 0, int(Dtype.BF16), 128, 9, 11, 9, 0)
    assert parse_result(_line(CONFIGS[0])) == (key, 155020, CONFIGS[0])


def test_a_line_may_name_its_operation() -> None:
    line = _line(CONFIGS[0])
    named = line.replace(" dtype=", " op=forward dtype=")
    assert named != line
    assert parse_result(named) == parse_result(line)
    with pytest.raises(TuningError, match="unknown word 'backward'"):
        parse_result(named.replace("forward", "backward"))


def test_sizes_round_to_the_nearest_power_of_two() -> None:
    cases = {0: 0, 1: 0, 2: 1, 3: 2, 5: 2, 6: 3, 724: 9, 725: 10, 1448: 10, 1449: 11, 2**61: 61}
    assert {size: size_class(size) for size in cases} == cases


def test_results_come_in_ascending_order() -> None:
    lines = [_line(CONFIGS[0], 9), _line(CONFIGS[1], 3), "# comment", "", _line(CONFIGS[2], 5)]
    results = parse_results("\n".join(["# first", HEADER, *lines]))
    assert [result.nanoseconds for result in results] == [3, 5, 9]


@pytest.mark.parametrize(
    "line",
    ["fast", LINE, LINE + "fast", _line(CONFIGS[0]).replace("BF16 d", "BF17 d"),
     _line(CONFIGS[0]).replace("varlen q", "fast q"), _line(CONFIGS[0]) + " x"],
)  # fmt: skip
def test_a_malformed_line_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(TuningError, match="line 3: "):
        parse_results(f"{HEADER}\n\n{line}\n")


def test_results_begin_with_the_header() -> None:
    for text in ("", "# nothing", f"flashattn tuning 2\n{_line(CONFIGS[0])}"):
        with pytest.raises(TuningError, match=HEADER):
            parse_results(text)


# ---- The table ----


def test_the_table_points_at_rows_of_the_kernel_table() -> None:
    results = parse_results("\n".join([HEADER, *(_line(c, 7 - i) for i, c in enumerate(CONFIGS))]))
    text = tuning_table(CONFIGS[:2], results)
    rows = re.findall(r"\{\{\{(.*)\}\}, (\d+), &kernel_table\[(\d+)\]\}", text)
    key = "90, 132, 0, 2, 128, 9, 11, 9, 0"
    assert rows == [(key, "6", "1"), (key, "7", "0")]  # the third is not in that library
    assert "tuning_table_count = 2;" in text
    assert "tuning_table_count = 0;" in tuning_table(CONFIGS[2:], results[1:])


# ---- bench --set progression... ----


@pytest.mark.parametrize("name", progression.SETS)
def test_bench_has_the_steps_of_the_set(name: str) -> None:
    chosen = progression.SETS[name]
    assert [*chosen.full, *chosen.causal] == [format_config(config) for config in SETS[name]()]
