"""This module refuses what is given in the place of a tensor, and tensors that no call can read."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .._tensor import check_form


def refuse(**tensors: Any) -> None:
    """Raises TypeError for an argument that is given (not None) and no tensor of torch, and
    ValueError for a tensor that is sparse or nested."""
    for name, x in tensors.items():
        if x is None:
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}: not a torch tensor")
        check_form(x, name)
