"""The pictures: of `bench` GFLOP/s over the sequence length, one line a contender, and panels of
lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .problem import BadInput, extra


@dataclass(frozen=True)
class Line:
    label: str
    style: str
    x: Sequence[int]
    y: Sequence[float]


@dataclass(frozen=True)
class Panel:
    title: str
    lines: list[Line]


def draw(path: str, timings: Sequence, title: str) -> None:
    """Writes a PNG (or what the ending of `path` says) without needing a display."""
    extra("matplotlib").use("Agg")
    pyplot = extra("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for label in dict.fromkeys(t.label for t in timings):
        own = [t for t in timings if t.label == label]
        style = "--" if own[0].is_peer else "-"
        axes.plot([t.seqlen for t in own], [t.gflops for t in own], style, marker="o", label=label)
    axes.set(title=title, xlabel="seqlen_k", ylabel="GFLOP/s", ylim=(0, None))
    _finish(axes, [t.seqlen for t in timings])
    _save(figure, path)


def draw_panels(path: str, panels: list[Panel], title: str, xlabel: str, ylabel: str) -> None:
    """Lines of the same label have one colour in every panel."""
    extra("matplotlib").use("Agg")
    pyplot = extra("matplotlib.pyplot")
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    size = (max(9, 5 * columns), 4.5 * rows)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    for axes, panel in zip(grid.flat, panels):
        for line in panel.lines:
            colour = f"C{labels.index(line.label) % 10}"
            axes.plot(line.x, line.y, line.style, marker="o", color=colour, label=line.label)
        axes.set(title=panel.title, xlabel=xlabel, ylabel=ylabel, ylim=(0, None))
        _finish(axes, [x for line in panel.lines for x in line.x])
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    figure.suptitle(title)
    _save(figure, path)


def _finish(axes: Any, lengths: list[int]) -> None:
    ticks = sorted(set(lengths))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, labels=[str(n) for n in ticks])
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _save(figure: Any, path: str) -> None:
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be written: {error}") from None
    finally:
        extra("matplotlib.pyplot").close(figure)
