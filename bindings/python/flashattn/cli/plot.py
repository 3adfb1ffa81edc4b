"""The pictures: of `bench` the rates over the keys, a line for each contender, and panels of lines.
A colour is a type of elements or a kind of cache, a dash is whose kernel it is. Names stand beside
the lines, each with its last number; legends stand beside panels, never on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .. import device
from . import extras
from .problem import BadInput
from .timing import OWN, Timing

ENDINGS = (".png", ".svg", ".pdf")

TEXT = "#5f6368"
COLOURS = ("#d9541e", "#3b82d6", "#2f9150", "#8a6fd1", "#b7791f", "#0f8b8d")
DASHES = ("--", ":", "-.", (0, (6, 2)), (0, (1, 2)), (0, (8, 2, 1, 2)))  # of all but the library's
OWN_WIDTH, WIDTH = 2.8, 1.8
FONT_SIZE = 9
LINE_HEIGHT = 0.045  # of a name beside a line, as a part of the axes


@dataclass(frozen=True)
class Line:
    """Lines of one kind have one colour. The library's own are drawn through."""

    label: str
    kind: str
    is_own: bool
    x: Sequence[int]
    y: Sequence[float]


@dataclass(frozen=True)
class Panel:
    title: str
    lines: list[Line]


def heading(machine: str, problem: str) -> str:
    """The library with its version, the machine, and below them what was computed."""
    return f"{OWN} {device.version()} on {machine}\n{problem}"


def draw(path: str, timings: Sequence[Timing], title: str, unit: str) -> None:
    """Writes a picture of the kind that the ending of `path` names, without a display: lines over
    the lengths or, of a single length, bars."""
    longest = max(len(t.name) for t in timings)
    size = (9 + 0.07 * longest, 5)
    figure, axes = _pyplot().subplots(figsize=size, layout="constrained")
    if len({t.seqlen for t in timings}) == 1:
        _draw_bars(axes, timings, unit)
    else:
        _draw_lines(axes, timings, unit)
    _add_title(figure, title)
    _save(figure, path)


def _colours(kinds: Sequence[str]) -> dict[str, str]:
    different = list(dict.fromkeys(kinds))
    return {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(different)}


def _dashes(names: Sequence[str], own: Sequence[str]) -> dict[str, Any]:
    """The library's own are drawn through, but where it has several lines of a colour."""
    solid = own[:1]
    others = [name for name in dict.fromkeys(names) if name not in solid]
    dashes = {name: DASHES[i % len(DASHES)] for i, name in enumerate(others)}
    return {**dashes, **dict.fromkeys(solid, "-")}


def _draw_bars(axes: Any, timings: Sequence[Timing], unit: str) -> None:
    colours = _colours([t.dtype for t in timings])
    names = [_name_and_type(t) for t in timings]
    bars = axes.barh(names, [t.rate for t in timings], color=[colours[t.dtype] for t in timings])
    for bar, timing in zip(bars, timings):
        bar.set_alpha(0.45 if timing.is_peer else 1)
    axes.bar_label(bars, fmt="%.1f", padding=3, color=TEXT)
    axes.invert_yaxis()  # as in the table: the first on top
    axes.margins(x=0.1)
    axes.set_xlabel(f"{unit} at {timings[0].seqlen} keys", color=TEXT)
    _lighten(axes, "x")


def _name_and_type(timing: Timing) -> str:
    return timing.name if timing.dtype in timing.name else f"{timing.name}, {timing.dtype}"


def _draw_lines(axes: Any, timings: Sequence[Timing], unit: str) -> None:
    colours = _colours([t.dtype for t in timings])
    dashes = _dashes([t.name for t in timings], [t.name for t in timings if not t.is_peer])
    for label in dict.fromkeys(t.label for t in timings):
        own = sorted((t for t in timings if t.label == label), key=lambda t: t.seqlen)
        first = own[0]
        axes.plot(
            [t.seqlen for t in own],
            [t.rate for t in own],
            linestyle=dashes[first.name],
            linewidth=WIDTH if first.is_peer else OWN_WIDTH,
            color=colours[first.dtype],
            marker="o",
            markersize=5,
            label=_name_and_type(first),
        )
    axes.set(ylim=(0, None))
    axes.set_xlabel("keys", color=TEXT)
    axes.set_ylabel(unit, color=TEXT)
    _finish(axes, [t.seqlen for t in timings])
    _name_lines(axes)


def _name_lines(axes: Any) -> None:
    """Writes each line's name and last number beside its end, moved down where two would touch."""
    top = axes.get_ylim()[1]
    free = float("inf")
    for line in sorted(axes.lines, key=lambda line: -line.get_ydata()[-1]):
        end = line.get_ydata()[-1]
        y = min(end / top, free)
        free = y - LINE_HEIGHT
        axes.text(
            1.02,
            y,
            f"{line.get_label()}  {end:.0f}",
            transform=axes.transAxes,
            color=line.get_color(),
            fontsize=FONT_SIZE,
            fontweight="bold" if line.get_linewidth() == OWN_WIDTH else "normal",
            verticalalignment="center",
        )


def draw_panels(path: str, panels: list[Panel], title: str, xlabel: str, ylabel: str) -> None:
    """Lines of the same kind have one colour in every panel."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    size = (max(9, 5 * columns), 4.5 * rows)
    figure, grid = _pyplot().subplots(
        rows, columns, figsize=size, layout="constrained", squeeze=False
    )
    lines = [line for panel in panels for line in panel.lines]
    colours = _colours([line.kind for line in lines])
    dashes = _dashes([_whose(line) for line in lines], [""])
    for axes, panel in zip(grid.flat, panels):
        for line in panel.lines:
            axes.plot(
                line.x,
                line.y,
                linestyle=dashes[_whose(line)],
                linewidth=OWN_WIDTH if line.is_own else WIDTH,
                marker="o",
                markersize=5,
                color=colours[line.kind],
                label=line.label,
            )
        axes.set(ylim=(0, None))
        axes.set_title(panel.title, loc="left", fontsize="medium", color=TEXT)
        axes.set_xlabel(xlabel, color=TEXT)
        axes.set_ylabel(ylabel, color=TEXT)
        _finish(axes, [x for line in panel.lines for x in line.x])
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    _add_title(figure, title)
    _add_legend(figure)
    _save(figure, path)


def _whose(line: Line) -> str:
    """Tells the lines of one colour apart: "" for the library's own."""
    return "" if line.is_own else line.label.removesuffix(f", {line.kind}")


def _finish(axes: Any, lengths: list[int]) -> None:
    ticks = sorted(set(lengths))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, labels=[str(n) for n in ticks])
    axes.minorticks_off()
    _lighten(axes, "y")


def _lighten(axes: Any, grid: str) -> None:
    """Leaves no box around the lines, but a grid of the values behind them."""
    axes.grid(axis=grid, color=TEXT, alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=TEXT)


def _add_title(figure: Any, title: str) -> None:
    figure.suptitle(title, fontsize="medium", x=0.01, horizontalalignment="left", color=TEXT)


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
