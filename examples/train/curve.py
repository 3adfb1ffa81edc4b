"""Curves of losses, in letters or by matplotlib."""

from __future__ import annotations

from pathlib import Path

MARKS, BOTH = "o.", "*"


def smoothed(losses: list[float], n: int) -> list[float]:
    """Returns n means over equal parts of the steps, or all losses where they are fewer."""
    n = min(n, len(losses))
    ends = [i * len(losses) // n for i in range(n + 1)]
    return [sum(losses[a:b]) / (b - a) for a, b in zip(ends, ends[1:])]


def drawn(curves: dict[str, list[float]], columns: int = 60, rows: int = 12) -> str:
    """Returns two curves of the same length as lines of text."""
    points = [smoothed(curve, columns) for curve in curves.values()]
    low, high = min(map(min, points)), max(map(max, points))
    height = (high - low) or 1.0
    grid = [[" "] * len(points[0]) for _ in range(rows)]
    for mark, curve in zip(MARKS, points):
        for x, loss in enumerate(curve):
            y = round((high - loss) / height * (rows - 1))
            grid[y][x] = BOTH if grid[y][x] not in (" ", mark) else mark
    labels = [f"{high - height * y / (rows - 1):5.2f} |" for y in range(rows)]
    legend = ", ".join(f"{mark} {name}" for mark, name in zip(MARKS, curves))
    n_steps = len(next(iter(curves.values())))
    return "\n".join(
        [label + "".join(row).rstrip() for label, row in zip(labels, grid)]
        + [f"      +{'-' * len(points[0])} step {n_steps}", f"      {legend}, {BOTH} both"]
    )


def plot(curves: dict[str, list[float]], file: Path) -> None:
    """Draws all losses into a file by matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for style, (name, losses) in zip(("-", "--"), curves.items()):
        pyplot.plot(losses, style, label=name, linewidth=1)
    pyplot.xlabel("step")
    pyplot.ylabel("loss, nats a character")
    pyplot.legend()
    pyplot.savefig(file, dpi=150, bbox_inches="tight")
