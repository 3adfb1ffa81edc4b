"""Draws prefill_h200.svg, the chart of the README, from the measured numbers in prefill_h200.csv.

usage: python docs/charts/prefill.py

The background is transparent, and every colour can be read on white and on black. A point that is
not in the table is not drawn. It needs Python alone.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TABLE = FOLDER / "prefill_h200.csv"
CHART = FOLDER / "prefill_h200.svg"

TEXT = "#777b80"
LINES = {"libflashattn": "#d9541e", "FA3": "#3b82d6", "cuDNN": "#2f9150", "FA2": "#8a6fd1"}
PANELS = {"full": "full attention", "causal": "causal mask"}

WIDTH, HEIGHT = 900, 350
PANEL_WIDTH, PANEL_HEIGHT = 270, 230
LEFT, TOP, GAP = 56, 56, 170  # the gap holds the names of the lines
TOP_TFLOPS, TICK = 900, 150
LABEL_HEIGHT = 15

Points = dict[int, float]  # TFLOP/s by the length of a sequence


def read_table() -> dict[str, dict[str, Points]]:
    """The points of each mask and library."""
    table: dict[str, dict[str, Points]] = defaultdict(lambda: defaultdict(dict))
    with TABLE.open() as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            table[row["mask"]][row["library"]][int(row["seqlen"])] = float(row["tflops"])
    return table


def text(x: float, y: float, words: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{words}</text>'


def height_of(tflops: float) -> float:
    return TOP + PANEL_HEIGHT * (1 - tflops / TOP_TFLOPS)


def position_of(seqlen: int, lengths: list[int], left: float) -> float:
    """Lengths double from one to the next: the axis is logarithmic."""
    first, last = math.log2(lengths[0]), math.log2(lengths[-1])
    return left + 12 + (PANEL_WIDTH - 24) * (math.log2(seqlen) - first) / (last - first)


def draw_axes(left: float, lengths: list[int], title: str) -> list[str]:
    parts = [text(left, TOP - 16, title, 'font-weight="bold"')]
    for tflops in range(0, TOP_TFLOPS + 1, TICK):
        y = height_of(tflops)
        parts.append(
            f'<line x1="{left}" x2="{left + PANEL_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="{TEXT}" stroke-opacity="0.3"/>'
        )
        parts.append(text(left - 8, y + 4, str(tflops), 'text-anchor="end"'))
    for seqlen in lengths:
        x = position_of(seqlen, lengths, left)
        parts.append(
            text(x, TOP + PANEL_HEIGHT + 18, f"{seqlen // 1024}k", 'text-anchor="middle"')
        )
    middle, below = left + PANEL_WIDTH / 2, TOP + PANEL_HEIGHT + 42
    parts.append(text(middle, below, "tokens per sequence", 'text-anchor="middle"'))
    return parts


def draw_line(points: Points, lengths: list[int], left: float, library: str) -> list[str]:
    color = LINES[library]
    places = [
        (position_of(n, lengths, left), height_of(points[n])) for n in lengths if n in points
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    stroke = 3 if library == "libflashattn" else 2
    line = f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{stroke}"/>'
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in places]
    return [line, *dots]


def draw_labels(lines: dict[str, Points], last: int, x: float) -> list[str]:
    """Each library's name and last number beside its line, moved down where two would touch."""
    parts, free = [], 0.0
    for library in sorted(lines, key=lambda name: -lines[name][last]):
        y = max(height_of(lines[library][last]) + 4, free)
        free = y + LABEL_HEIGHT
        attributes = f'style="fill:{LINES[library]}" font-weight="bold"'
        parts.append(text(x, y, f"{library} {lines[library][last]:.0f}", attributes))
    return parts


def draw() -> str:
    table = read_table()
    parts = [text(LEFT - 40, 18, "TFLOP/s on an H200: forward, bf16, d_head 128, 16,384 tokens")]
    for i, (mask, title) in enumerate(PANELS.items()):
        left = LEFT + i * (PANEL_WIDTH + GAP)
        lengths = sorted({n for points in table[mask].values() for n in points})
        parts += draw_axes(left, lengths, title)
        for library in reversed(LINES):
            parts += draw_line(table[mask][library], lengths, left, library)
        parts += draw_labels(table[mask], lengths[-1], left + PANEL_WIDTH - 2)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'role="img" font-family="sans-serif" font-size="13">\n'
        "<title>TFLOP/s of libflashattn, FlashAttention-3, cuDNN and FlashAttention-2</title>\n"
        f"<style>text {{ fill: {TEXT} }}</style>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    CHART.write_text(draw())
