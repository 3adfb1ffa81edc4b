"""Integers that do not fit the C API's types are refused by name: none is cut off on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import flashattn
import numpy as np
import pytest
from flashattn import config

ROW = flashattn.kernels()[0].config
X = np.zeros((1, 1, 1, 8), np.float32)

DOORS: dict[str, Callable[[Any], object]] = {
    "device": flashattn.device_info,
    "n_threads": flashattn.set_num_threads,
    "n_launches": lambda n: flashattn.measure(X, X, X, [ROW], out=X.copy(), n_launches=n),
}


def _resources(device: object) -> object:
    return config.kernel_resources(ROW, device)


@pytest.mark.parametrize("value", [2**32, 2**32 + 1, -(2**32), 2**31], ids=str)
@pytest.mark.parametrize("door", [*DOORS.items(), ("device", _resources)], ids=lambda door: door[0])
def test_what_does_not_fit_is_refused(door: tuple[str, Callable], value: int) -> None:
    name, call = door
    with pytest.raises(ValueError, match=f"{name} is {value}, which does not fit 32 bits"):
        call(value)


@pytest.mark.parametrize("value", [None, 1.5, "1", [1]], ids=str)
@pytest.mark.parametrize("door", [*DOORS.items(), ("device", _resources)], ids=lambda door: door[0])
def test_what_is_no_integer_is_refused(door: tuple[str, Callable], value: object) -> None:
    name, call = door
    with pytest.raises(ValueError, match=f"{name} is .*: not an integer"):
        call(value)


@pytest.mark.parametrize("name", config.FIELDS)
def test_fields_of_a_configuration_are_not_cut_off(name: str) -> None:
    other = replace(ROW, **{name: getattr(ROW, name) + 2**32})
    for call in (str, flashattn.lookup_kernel, config.resolve):
        with pytest.raises(ValueError, match=f"{name} is .*, which does not fit 32 bits"):
            call(other)


def test_numbers_of_numpy_are_integers() -> None:
    assert flashattn.device_info(np.int64(0)).device == 0
