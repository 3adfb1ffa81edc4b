"""Gradients of random problems by every door of torch and JAX, in every way of calling it
(training_doors.py). `python tests/python/training_sampler.py --device cpu` tries as many as there
is time for."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
import training_sampler  # noqa: E402


@pytest.mark.parametrize("number", range(60))
def test_gradients(number: int) -> None:
    _, verdict, _, text = training_sampler.check(number, "cpu")
    assert verdict == "ok", text


@pytest.mark.parametrize("number", range(8))
def test_gradients_of_jax(number: int) -> None:
    pytest.importorskip("jax")
    _, verdict, _, text = training_sampler.check(number, "cpu", of_jax=True)
    assert verdict == "ok", text
