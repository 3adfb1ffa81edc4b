"""The pictures: of `bench` the rates over the keys, a line for each contender, and panels of lines.
Legends stand beside the lines, never on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from . import extras
from .problem import BadInput
from .timing import Timing

ENDINGS = (".png", ".svg", ".pdf")


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


def draw(path: str, timings: Sequence[Timing], title: str, unit: str) -> None:
    """Writes a picture of the kind that the ending of `path` names, without a display: lines over
    the lengths or, of a single length, bars."""
    figure, axes = _pyplot().subplots(figsize=(11, 5), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    if len({t.seqlen for t in timings}) == 1:
        _draw_bars(axes, timings, unit)
    else:
        _draw_lines(axes, timings, unit)
    _save(figure, path)


def _draw_bars(axes: Any, timings: Sequence[Timing], unit: str) -> None:
    colours = ["C7" if t.is_peer else "C0" for t in timings]
    bars = axes.barh([t.label for t in timings], [t.rate for t in timings], color=colours)
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.invert_yaxis()  # as in the table: the first on top
    axes.margins(x=0.1)
    axes.set(xlabel=f"{unit} at {timings[0].seqlen} keys")


def _draw_lines(axes: Any, timings: Sequence[Timing], unit: str) -> None:
    for label in dict.fromkeys(t.label for t in timings):
        own = sorted((t for t in timings if t.label == label), key=lambda t: t.seqlen)
        style = "--" if own[0].is_peer else "-"
        axes.plot([t.seqlen for t in own], [t.rate for t in own], style, marker="o", label=label)
    axes.set(xlabel="keys", ylabel=unit, ylim=(0, None))
    _finish(axes, [t.seqlen for t in timings])
    _add_legend(axes.figure)


def draw_panels(path: str, panels: list[Panel], title: str, xlabel: str, ylabel: str) -> None:
    """Lines of the same label have one colour in every panel."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    size = (max(9, 5 * columns), 4.5 * rows)
    figure, grid = _pyplot().subplots(
        rows, columns, figsize=size, layout="constrained", squeeze=False
    )
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
    _add_legend(figure)
    _save(figure, path)


def _finish(axes: Any, lengths: list[int]) -> None:
    ticks = sorted(set(lengths))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, labels=[str(n) for n in ticks])
    axes.grid(alpha=0.3)


def _add_legend(figure: Any) -> None:
    """Adds a legend beside all axes, with every label once."""
    found = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles = {label: handle for own in found for handle, label in zip(*own)}
    figure.legend(handles.values(), handles, loc="outside right upper", fontsize="small")


def _pyplot() -> ModuleType:
    extras.load("matplotlib").use("Agg")
    return extras.load("matplotlib.pyplot")


def _save(figure: Any, path: str) -> None:
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be written: {error}") from None
    finally:
        _pyplot().close(figure)
