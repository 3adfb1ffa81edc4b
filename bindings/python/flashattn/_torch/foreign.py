"""This module refuses what is given in the place of a tensor, and tensors that no call can read."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .._tensor import check_form


def refuse(**tensors: Any) -> None:
    """Raises as require() does for an argument that is given (not None)."""
    require(**{name: x for name, x in tensors.items() if x is not None})


def require(**tensors: Any) -> None:
    """Raises TypeError for an argument that is no tensor of torch, and ValueError for a tensor that
    is sparse or nested, or has no data while others have."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}: not a torch tensor")
        check_form(x, name)
    check_data(tensors)


def refuse_in(
    arguments: tuple, tensors: list[tuple[int, str]], needed: tuple[str, ...], **others: Any
) -> None:
    """Raises as require() does for arguments of an operator and others, of which all but the needed
    ones may be None. `tensors` has the place and the name of each tensor."""
    found = {**{name: arguments[i] for i, name in tensors}, **others}
    require(**{name: x for name, x in found.items() if x is not None or name in needed})


def check_data(tensors: dict[str, Tensor]) -> None:
    """Raises ValueError for a tensor without data where others have data: torch would compute
    nothing then, and say so to nobody."""
    without = [name for name, x in tensors.items() if x.is_meta]
    if without and len(without) < len(tensors):
        raise ValueError(f"{without[0]} is on the device meta, without data, and others have data")
