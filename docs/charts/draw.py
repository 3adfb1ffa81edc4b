"""Draws the charts of the README and of docs/performance.md from the measured numbers beside them:
prefill_h200.svg from prefill_h200.csv, and so on.

usage: python docs/charts/draw.py

The background is transparent, and every colour can be read on white and on black. A point that is
not in the table is not drawn. It needs Python alone.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

TEXT = "#777b80"
OWN = "libflashattn"
COLORS = {
    OWN: "#d9541e", "FA3": "#3b82d6", "cuDNN": "#2f9150", "FA2": "#8a6fd1", "reading alone": TEXT,
}  # fmt: skip

HEIGHT = 350
PANEL_HEIGHT = 230
LEFT, TOP, RIGHT = 56, 56, -16
LABEL_HEIGHT = 15

Points = dict[int, float]  # heights by what the horizontal axis counts


@dataclass(frozen=True)
class Chart:
    """A table has the columns library, panel, x and y, in this order."""

    name: str
    title: str
    description: str  # for those who do not see the chart
    panels: dict[str, str]  # titles by the values in the table
    below: str  # what the horizontal axis counts
    highest: int  # of the vertical axis
    tick: int
    panel_width: int
    gap: int  # behind a panel: it holds the names of the lines

    @property
    def width(self) -> int:
        return LEFT + len(self.panels) * (self.panel_width + self.gap) + RIGHT

    @property
    def table(self) -> Path:
        return FOLDER / f"{self.name}.csv"

    @property
    def picture(self) -> Path:
        return FOLDER / f"{self.name}.svg"


CHARTS = (
    Chart(
        name="prefill_h200",
        title="TFLOP/s on an H200: forward, bf16, d_head 128, 16,384 tokens",
        description="TFLOP/s of libflashattn, FlashAttention-3, cuDNN and FlashAttention-2",
        panels={"full": "full attention", "causal": "causal mask"},
        below="tokens per sequence",
        highest=900,
        tick=150,
        panel_width=270,
        gap=170,
    ),
    Chart(
        name="decode_h200",
        title="GB/s of reading K and V on an H200: one query, bf16, 32/8 heads, d_head 128, pages "
        "of 64",
        description="GB/s of libflashattn, FlashAttention-3, and of only reading as many bytes",
        panels={"1": "1 sequence", "16": "16 sequences", "64": "64 sequences"},
        below="keys per sequence",
        highest=5000,
        tick=1000,
        panel_width=165,
        gap=165,
    ),
)


def read_table(chart: Chart) -> dict[str, dict[str, Points]]:
    """The points of each panel and library."""
    table: dict[str, dict[str, Points]] = defaultdict(lambda: defaultdict(dict))
    with chart.table.open() as file:
        rows = csv.reader(line for line in file if not line.startswith("#"))
        next(rows)  # the names of the columns
        for library, panel, x, y in rows:
            table[panel][library][int(x)] = float(y)
    return table


def text(x: float, y: float, words: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{words}</text>'


@dataclass(frozen=True)
class Panel:
    chart: Chart
    left: float
    lines: dict[str, Points]

    @property
    def places(self) -> list[int]:
        return sorted({x for points in self.lines.values() for x in points})

    def height_of(self, y: float) -> float:
        return TOP + PANEL_HEIGHT * (1 - y / self.chart.highest)

    def position_of(self, x: int) -> float:
        """Places double from one to the next: the axis is logarithmic."""
        first, last = math.log2(self.places[0]), math.log2(self.places[-1])
        return (
            self.left + 12 + (self.chart.panel_width - 24) * (math.log2(x) - first) / (last - first)
        )

    def axes(self, title: str) -> list[str]:
        width = self.chart.panel_width
        parts = [text(self.left, TOP - 16, title, 'font-weight="bold"')]
        for value in range(0, self.chart.highest + 1, self.chart.tick):
            y = self.height_of(value)
            parts.append(
                f'<line x1="{self.left}" x2="{self.left + width}" y1="{y:.1f}" y2="{y:.1f}" '
                f'stroke="{TEXT}" stroke-opacity="0.3"/>'
            )
            parts.append(text(self.left - 8, y + 4, str(value), 'text-anchor="end"'))
        for x in self.places:
            words, below = f"{x // 1024}k", TOP + PANEL_HEIGHT + 18
            parts.append(text(self.position_of(x), below, words, 'text-anchor="middle"'))
        middle, below = self.left + width / 2, TOP + PANEL_HEIGHT + 42
        parts.append(text(middle, below, self.chart.below, 'text-anchor="middle"'))
        return parts

    def line(self, library: str) -> list[str]:
        color, points = COLORS[library], self.lines[library]
        places = [(self.position_of(x), self.height_of(points[x])) for x in sorted(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        stroke = 3 if library == OWN else 2
        line = f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{stroke}"/>'
        dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in places]
        return [line, *dots]

    def labels(self) -> list[str]:
        """Each library's name and last number beside its line, moved down where two would touch."""
        last, x = self.places[-1], self.left + self.chart.panel_width - 2
        ends = {library: points[last] for library, points in self.lines.items()}
        parts, free = [], 0.0
        for library, end in sorted(ends.items(), key=lambda item: -item[1]):
            y = max(self.height_of(end) + 4, free)
            free = y + LABEL_HEIGHT
            attributes = f'style="fill:{COLORS[library]}" font-weight="bold"'
            parts.append(text(x, y, f"{library} {end:.0f}", attributes))
        return parts


def draw(chart: Chart) -> str:
    table = read_table(chart)
    parts = [text(LEFT - 40, 18, chart.title)]
    for i, (name, title) in enumerate(chart.panels.items()):
        panel = Panel(chart, LEFT + i * (chart.panel_width + chart.gap), table[name])
        parts += panel.axes(title)
        for library in reversed(COLORS):
            if library in panel.lines:
                parts += panel.line(library)
        parts += panel.labels()
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {chart.width} {HEIGHT}" '
        'role="img" font-family="sans-serif" font-size="13">\n'
        f"<title>{chart.description}</title>\n"
        f"<style>text {{ fill: {TEXT} }}</style>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    for each in CHARTS:
        each.picture.write_text(draw(each))
