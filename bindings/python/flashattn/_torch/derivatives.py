"""This module refuses tensors that need a derivative, where the library computes none, and those
that torch itself could not say that of."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor
from torch.autograd import forward_ad

from .._tensor import check_form, check_gradient
from .foreign import check_data


def refuse(names: Iterable[str], values: Iterable[Any], derived: Collection[str] = ()) -> None:
    """Raises NotImplementedError for a tensor that requires a gradient while gradients are
    recorded, unless its name is among `derived`, or has a tangent, and ValueError for one that is
    sparse or nested, or has no data while others have. Ignores values that are no tensors."""
    tensors = {name: x for name, x in zip(names, values) if isinstance(x, Tensor)}
    for name, x in tensors.items():
        check_form(x, name)
        if name not in derived:
            check_gradient(x, name)
        if forward_ad.unpack_dual(x).tangent is not None:
            raise NotImplementedError(
                f"{name} has a tangent, and there is no forward derivative: use "
                f"torch.autograd.forward_ad.unpack_dual({name}).primal"
            )
    check_data(tensors)


def refuse_gradient(name: str, where: str) -> None:
    """Raises NotImplementedError for a tensor that requires a gradient where there is none."""
    raise NotImplementedError(
        f"{name} requires a gradient, and there is none {where}: use {name}.detach() or "
        "torch.no_grad()"
    )
