"""This module hands integers to C, where ctypes would cut off what does not fit."""

from __future__ import annotations

import operator
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
