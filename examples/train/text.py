"""The text that the model learns, which every Python has: the source of its library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

VOCABULARY = 128  # of ASCII


def library_source(n_most: int = 2_000_000) -> Tensor:
    """Returns the first n_most characters of the modules of the standard library, as ids."""
    text = bytearray()
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += file.read_bytes()
        if len(text) >= n_most:
            break
    characters = bytes(x if x < VOCABULARY else ord("?") for x in text[:n_most])
    return torch.frombuffer(bytearray(characters), dtype=torch.uint8)


def batch_of(text: Tensor, size: int, context: int, generator: torch.Generator) -> Tensor:
    """Returns characters from random places, [size, context + 1]."""
    starts = torch.randint(len(text) - context, (size, 1), generator=generator)
    return text[starts + torch.arange(context + 1)].long()


def text_of(ids: Tensor) -> str:
    return bytes(ids.tolist()).decode("ascii")
