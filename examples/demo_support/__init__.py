"""What the demos have in common: how they report, what they say when a package is missing, and
whether they can use a GPU. Importing this needs no package.
"""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1]


def cure(error: ImportError, demo: str) -> str:
    """The command that installs what the demo in the folder `demo` misses."""
    if error.name in (None, "flashattn"):  # None: the package is there, its library is not
        return f"pip install {EXAMPLES.parent}"
    return f"pip install --no-deps -r {EXAMPLES / demo / 'requirements.txt'}"


def show_lines_at_once() -> None:
    """Also where the output is a pipe or a file, beside the progress on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


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
