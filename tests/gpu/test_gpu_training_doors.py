"""Gradients of random problems by every door of torch, in every way of calling it
(training_doors.py), among memory that holds NaN. `python tests/python/training_sampler.py` tries as
many as there is time for."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
import training_sampler  # noqa: E402


@pytest.mark.parametrize("number", range(240))
def test_gradients(number: int) -> None:
    _, verdict, _, text = training_sampler.check(number, "cuda")
    is_served = "'float32'" not in text
    assert verdict == ("ok" if is_served else "refused"), text
