"""Random problems, strides, lengths and types on every family, against the oracle."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from problems import AttentionProblem, check, configs_for, rounds_p
from strategies import attention_problems, random_problems


@random_problems
@given(attention_problems(), st.data())
def test_random_problem_agrees_with_the_oracle(p: AttentionProblem, data: st.DataObject) -> None:
    config = data.draw(st.sampled_from([None, *configs_for(p)]), label="config")
    noisy = rounds_p(p, config)
    assume(p.averages_rounding or not noisy)
    check(p, config=config, roundings=4 if noisy else 1)
