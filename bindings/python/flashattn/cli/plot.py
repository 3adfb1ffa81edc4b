"""The picture of `bench`: GFLOP/s over the sequence length, one line a contender."""

from __future__ import annotations

from collections.abc import Sequence

from .problem import BadInput, extra


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
    axes.set_xscale("log", base=2)
    lengths = sorted({t.seqlen for t in timings})
    axes.set_xticks(lengths, labels=[str(n) for n in lengths])
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be written: {error}") from None
    finally:
        pyplot.close(figure)
