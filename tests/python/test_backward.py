"""Gradients of random problems, by every kernel, against the oracle."""

from __future__ import annotations

from gradient_problems import GradientProblem, check, configs_for
from hypothesis import given
from hypothesis import strategies as st
from strategies import gradient_problems, random_problems


@random_problems
@given(gradient_problems(), st.data())
def test_random_gradients_agree_with_the_oracle(g: GradientProblem, data: st.DataObject) -> None:
    configs = data.draw(st.sampled_from([(None, None), *configs_for(g)]), label="configs")
    check(g, configs=configs)
