"""What the demos have in common: how they report, what they say when a package is missing, and
whether they can use a GPU. Importing this needs no package.
"""

from __future__ import annotations

import importlib.util
import io
import shutil
import sys
import textwrap
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1]
WIDEST = 100  # columns of what is printed


def cure(error: ImportError, demo: str) -> str:
    """The command that installs what the demo in the folder `demo` misses."""
    if error.name in (None, "flashattn"):  # None: the package is there, its library is not
        return f"pip install {EXAMPLES.parent}"
    return f"pip install --no-deps -r {EXAMPLES / demo / 'requirements.txt'}"


def show_lines_at_once() -> None:
    """Also where the output is a pipe or a file, beside the progress on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def terminal_columns() -> int | None:
    """How many the demos use of the terminal's columns; None: the output is none."""
    if not sys.stdout.isatty():
        return None
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def columns() -> int:
    return terminal_columns() or WIDEST


def print_wrapped(text: str) -> None:
    print(textwrap.fill(text, columns(), break_long_words=False, break_on_hyphens=False))


def print_labelled(label: str, text: str) -> None:
    """Prints lines of a table whose first column has names of up to six letters."""
    indent = f"{'':8}"
    print(
        textwrap.fill(
            text,
            columns(),
            initial_indent=f"{label:8}",
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


class Words:
    """Prints a text that comes in pieces. On a terminal a word that does not fit begins a line."""

    def __init__(self) -> None:
        self._width = terminal_columns()
        self._column = 0
        self._word = ""

    def add(self, piece: str) -> None:
        for letter in piece:
            if letter.isspace():
                self._print_word()
                self._print(letter)
            else:
                self._word += letter
        if self._width is None:
            self._print_word()

    def end(self) -> None:
        self._print_word()

    def _print_word(self) -> None:
        if self._width and 0 < self._column and self._column + len(self._word) > self._width:
            self._print("\n")
        self._print(self._word)
        self._word = ""

    def _print(self, text: str) -> None:
        at_edge = text == " " and self._column == self._width
        print("\n" if at_edge else text, end="", flush=True)
        self._column = 0 if at_edge or text == "\n" else self._column + len(text)


def print_progress(step: str) -> None:
    print(f"... {step}", file=sys.stderr, flush=True)


def cpu_text() -> str:
    """The processor, and the threads that the library uses of it."""
    import flashattn

    cpu = flashattn.device_info()
    return f"{cpu.name}, {cpu.n_threads} {'thread' if cpu.n_threads == 1 else 'threads'}"


def why_no_gpu() -> str | None:
    """Why attention cannot run on a GPU here; None: it can."""
    import flashattn

    devices = flashattn.cuda_devices()
    if not devices:
        return "none that libflashattn can use"
    if not importlib.util.find_spec("torch"):
        return f"{devices[0].name} is not used: it needs torch, whose tensors hold its memory"
    import torch

    if not torch.cuda.is_available():
        return f"{devices[0].name} is not used: this torch is without CUDA"
    return None
