"""Compares an answer with the reference: the same model with float64 attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .attention import reference_attention
from .generate import Answer
from .llama import Llama


@dataclass(frozen=True)
class Comparison:
    n_tokens: int
    n_same: int  # tokens that the reference chooses, too
    deviation: float  # the largest of a logit

    def agrees(self, tolerance: float) -> bool:
        """A NaN does not. Where logits agree, only near ties can make another token."""
        return self.deviation <= tolerance


def compare(model: Llama, answer: Answer) -> Comparison:
    """The reference sees the prompt and the answer's tokens but the last in one pass, without a
    cache. If it chooses the same token after each of them, it would have said the same."""
    ids = answer.prompt_ids + answer.token_ids[:-1]
    hidden = model.hidden_states(ids, reference_attention(model.sizes))
    logits = model.logits(hidden[len(answer.prompt_ids) - 1 :])
    same = logits.argmax(axis=1) == answer.token_ids
    deviation = np.abs(logits - answer.logits).max()
    return Comparison(len(same), int(same.sum()), float(deviation))
