"""This module refuses tensors that need a derivative, since the library computes none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.autograd import forward_ad

from .._tensor import check_gradient


def refuse(names: Iterable[str], values: Iterable[Any]) -> None:
    """Raises NotImplementedError for a tensor that requires a gradient while gradients are
    recorded, or has a tangent. Ignores values that are no tensors."""
    for name, x in zip(names, values):
        if isinstance(x, Tensor):
            check_gradient(x, name)
            if forward_ad.unpack_dual(x).tangent is not None:
                raise NotImplementedError(
                    f"{name} has a tangent, and there is no forward derivative: use "
                    f"torch.autograd.forward_ad.unpack_dual({name}).primal"
                )
