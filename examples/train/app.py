"""The demo's main job: train a model by two attentions, draw both losses, and let it write."""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from demo_support import cpu_text, print_progress, print_wrapped, show_lines_at_once

from . import curve, training
from .gpt import GPT, Sizes, flash_attention, torchs_attention
from .text import VOCABULARY, library_source, text_of
from .training import Run

ATTENTIONS = {"libflashattn": flash_attention, "torch": torchs_attention}
# Rounding grows from step to step, so that runs which differ in nothing else drift apart a little.
# FIRST_STEP is of float32 on the CPU, and of bfloat16 on a GPU.
TOLERANCE, FIRST_STEP = 0.05, {"cpu": 1e-4, "cuda": 1e-2}


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="train",
        description="Trains a small GPT on the source of Python's own library, by libflashattn's "
        "attention and beside it by torch's, and compares the losses.",
    )
    parser.add_argument("--steps", type=int, default=1200, help="steps of training (%(default)s)")
    parser.add_argument("--batch", type=int, default=12, help="texts of a step (%(default)s)")
    parser.add_argument(
        "--context", type=int, default=64, help="characters of a text (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and texts (%(default)s)")
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="cuda: a GPU, in bfloat16"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the losses into FILE by matplotlib"
    )
    parsed = parser.parse_args(arguments)
    for option, smallest in (("steps", 1), ("batch", 1), ("context", 2)):
        if getattr(parsed, option) < smallest:
            parser.error(f"--{option} is {getattr(parsed, option)}; at least {smallest} is needed")
    if parsed.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda, and torch finds no GPU")
    if parsed.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 when the losses deviate too far."""
    options = parse_arguments(arguments)
    show_lines_at_once()
    print_progress("reading the source of Python's library")
    text = library_source()
    sizes = Sizes(VOCABULARY, options.context)
    runs = training.make_runs(sizes, ATTENTIONS, options.seed, options.device)
    n_weights = sum(x.numel() for x in runs[0].model.parameters())
    where = cpu_text() if options.device == "cpu" else torch.cuda.get_device_name()
    print_wrapped(
        f"A GPT of {n_weights:,} weights learns {len(text):,} characters of Python, "
        f"{options.batch} x {options.context} a step, on {where}."
    )
    _train(runs, text, options)
    _print_curves(runs, options.plot)
    _print_sample(runs[0].model.cpu(), options.seed)
    return 0 if _agree(runs, FIRST_STEP[options.device]) else 1


def _train(runs: list[Run], text: torch.Tensor, options: argparse.Namespace) -> None:
    print(f"{'step':>6}" + "".join(f"{run.name + ', loss':>20}{'ms':>6}" for run in runs))
    begin, shown = time.perf_counter(), max(options.steps // 10, 1)
    for n_done in training.train(runs, text, options.steps, options.batch, options.seed):
        if n_done % shown == 0 or n_done == 1:
            columns = (
                f"{_mean(run.losses[-shown:]):20.4f}{1e3 * _mean(run.seconds[-shown:]):6.0f}"
                for run in runs
            )
            print(f"{n_done:6}" + "".join(columns))
    print(f"{time.perf_counter() - begin:.0f} seconds for both\n")


def _print_curves(runs: list[Run], file: Path | None) -> None:
    curves = {run.name: run.losses for run in runs}
    if file is None:
        print(curve.drawn(curves) + "\n")
    else:
        curve.plot(curves, file)
        print(f"the losses are drawn in {file}\n")


def _print_sample(model: GPT, seed: int) -> None:
    """Prints what the model writes, by attention under torch.inference_mode()."""
    prompt = torch.tensor(list(b"\n    def __init__(self, "))
    ids = model.eval().continued(prompt, 300, torch.Generator().manual_seed(seed))
    print("What the model writes:")
    print("\n".join(f"  | {line}" for line in text_of(ids).strip("\n").splitlines()) + "\n")


def _agree(runs: list[Run], of_first_step: float = FIRST_STEP["cpu"]) -> bool:
    """Prints how far the losses are apart, at first and in the end, and returns whether that can be
    rounding."""
    ours, theirs = (run.losses for run in runs)
    last = max(len(ours) // 10, 1)
    first_step = abs(ours[0] - theirs[0])
    in_the_end = abs(_mean(ours[-last:]) - _mean(theirs[-last:]))
    agrees = first_step < of_first_step and in_the_end < TOLERANCE
    print_wrapped(
        f"{'OK' if agrees else 'FAILED'}: the losses differ by {first_step:.1e} in the first step, "
        f"and by {in_the_end:.1e} over the last {last} ({TOLERANCE} would still be rounding)"
    )
    return agrees


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
