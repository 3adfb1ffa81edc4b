"""This module reads numbers and flags of a call, with the argument's name in messages, and hands
integers to C, where ctypes would cut off what does not fit."""

from __future__ import annotations

import ctypes
import operator
import sys
from typing import Any


def integer(name: str, value: Any) -> int:
    """Returns the integer that a value is. Raises ValueError."""
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}: not an integer") from None


def int32(name: str, value: Any) -> int:
    """Raises ValueError unless the value is an integer of 32 bits."""
    number = integer(name, value)
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{name} is {number}, which does not fit 32 bits")
    return number


def int64(name: str, value: Any) -> int:
    """Raises ValueError unless the value is an integer of 64 bits."""
    number = integer(name, value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name} is {number}, which does not fit 64 bits")
    return number


def bound(name: str, value: Any) -> int | None:
    """Returns the integer of 64 bits that a value is, or None for None. Raises ValueError."""
    return None if value is None else int64(name, value)


def window(value: Any) -> tuple[int, int]:
    """Returns the two integers that a window_size is. Raises ValueError."""
    try:
        left, right = map(operator.index, value)
    except (TypeError, ValueError):
        raise ValueError(
            f"window_size is {value!r}: not a pair of integers (left, right), -1 for an unbounded "
            "side"
        ) from None
    return left, right


def is_true(name: str, value: Any) -> bool:
    """Returns whether a value is true. Raises ValueError for one that does not say, such as text:
    "no" would be as true as "yes"."""
    try:
        if not isinstance(value, (str, bytes)):
            return bool(value)
    except (TypeError, ValueError, RuntimeError):  # the last one is torch's
        pass
    raise ValueError(f"{name} is of type {type(value).__name__}: not a bool")


def refuse_gradient(name: str, value: Any) -> None:
    """Raises NotImplementedError for a torch tensor that requires a gradient and is taken as a
    number."""
    torch = sys.modules.get("torch")
    if torch is not None and getattr(value, "requires_grad", False) and torch.is_grad_enabled():
        instead = "multiply q by it, or " if name == "softmax_scale" else ""
        raise NotImplementedError(
            f"{name} requires a gradient, and there is none of numbers: {instead}use {name}.item()"
        )


def real(name: str, value: Any) -> float:
    """Returns a number as a float. Raises ValueError for an integer beyond its range, TypeError for
    what is no number, such as text, and NotImplementedError for what requires a gradient."""
    refuse_gradient(name, value)
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except OverflowError:
        raise ValueError(f"{name} is {value}, which no float holds") from None
    except (TypeError, ValueError, RuntimeError):  # the last two are torch's, of tensors
        pass
    raise TypeError(f"{name} is of type {type(value).__name__}: not a number")


def float32(name: str, value: Any) -> float:
    """Returns a number as float32 has it. Raises as real()."""
    return ctypes.c_float(real(name, value)).value
