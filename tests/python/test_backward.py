"""Gradients of random problems, by every kernel, against the oracle."""

from __future__ import annotations

from gradient_problems import GradientProblem, check, configs_for
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import examples, gradient_problems, long_lengths, random_problems


@random_problems
@given(gradient_problems(), st.data())
def test_random_gradients_agree_with_the_oracle(g: GradientProblem, data: st.DataObject) -> None:
    configs = data.draw(st.sampled_from([(None, None), *configs_for(g)]), label="configs")
    check(g, configs=configs)


@settings(random_problems, max_examples=examples(150))
@given(gradient_problems(long_lengths), st.data())
def test_random_gradients_of_several_blocks(g: GradientProblem, data: st.DataObject) -> None:
    """Vector kernels have blocks of a hundred rows and keys, and sums of a few hundred."""
    p = g.forward
    assume(p.batch * p.n_heads * p.seqlen_q * p.seqlen_k <= 2_000_000)
    configs = [x for x in configs_for(g) if not any(c.startswith("REFERENCE") for c in x)]
    check(g, configs=data.draw(st.sampled_from([(None, None), *configs]), label="configs"))
