"""The ranges on top of docs/performance.md are those of the tables below them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs/performance.md").read_text()
SUMMARY = PAGE.split("\n## ")[0]
OWN_AND_OTHERS = r"([\d.]+) \(([\d.]+)\)"  # microseconds, TFLOP/s


def rows(section: str) -> list[list[str]]:
    """Returns the cells of all tables of a section."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in text.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def ratios_of_prefill(place: int) -> list[float]:
    cells = [cell for row in rows("SM90 family on an H200") for cell in row]
    found = [re.search(r"\((\d\.\d+), (\d\.\d+)\)", cell) for cell in cells]
    return [float(match[place]) for match in found if match]


def ratios_of_sm80() -> list[float]:
    measured = [row for row in rows("SM80 family on an H200") if row[0] in ("BF16", "FP16")]
    return [
        float(r) for row in measured for cell in row for r in re.findall(r"\((\d\.\d+)\)", cell)
    ]


def of_times(cells: list[str]) -> list[float]:
    found = [pair for cell in cells for pair in re.findall(OWN_AND_OTHERS, cell)]
    return [float(others) / float(own) for own, others in found]


def ratios_of_short_batches() -> list[float]:
    wide = [row for row in rows("Ragged batches") if len(row) == 5]
    return of_times([cell for row in wide for cell in row])


def ratios_of_decode() -> list[float]:
    columns = {7: 4, 5: 3}  # of pages of 64, in the two tables that have them
    table = [row for row in rows("Decoding on an H200") if len(row) in columns]
    return of_times([row[columns[len(row)]] for row in table])


def ratios_of_e4m3() -> list[float]:
    return of_times([row[4] for row in rows("Decoding with caches in e4m3")])


def ratios_of_chunks(few: bool) -> list[float]:
    """Of pages of 16. These are rates, not times. Few are up to 128 queries."""
    table = [row for row in rows("Chunks of prompts, and pages") if "(" in row[-1]]
    chosen = [row for row in table if bool(re.match(r"\d+ x (16|128) ", row[0])) == few]
    return [1 / ratio for ratio in of_times([row[3] for row in chosen])]


def ratios_of_gradients() -> list[float]:
    table = [row for row in rows("Gradients on a CPU") if row[0] in ("FP32", "BF16")]
    return [float(r) for row in table for cell in row for r in re.findall(r"\((.*)\)", cell)]


@pytest.mark.parametrize(
    "name, ratios",
    [
        ("FlashAttention-3", ratios_of_prefill(1)),
        ("cuDNN", ratios_of_prefill(2)),
        ("FlashAttention-2", ratios_of_sm80()),
        ("short ones in graphs FlashAttention-3", ratios_of_short_batches()),
        ("FlashAttention-3", ratios_of_decode()),
        ("FlashAttention-3", ratios_of_e4m3()),
        ("FlashAttention-3", ratios_of_chunks(few=False)),
        ("up to 128 queries", ratios_of_chunks(few=True)),
        ("torch's gradients", ratios_of_gradients()),
    ],
)
def test_a_range_is_that_of_its_table(name: str, ratios: list[float]) -> None:
    digits = 1 if name.startswith("short") else 2
    low, high = (f"{ratio:.{digits}f}" for ratio in (min(ratios), max(ratios)))
    assert re.search(rf"{name}:? {low} to {high}\b", SUMMARY), f"{name}: {low} to {high}"
