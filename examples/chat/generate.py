"""Answers a prompt token by token: the prompt in one pass, then a pass for each new token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from .attention import FlashAttention
from .llama import Attention, Llama


@dataclass(frozen=True)
class Answer:
    prompt_ids: list[int]
    token_ids: list[int]  # with the end token, where the answer came to its end
    logits: np.ndarray  # [len(token_ids), vocabulary]: those that each token was chosen from
    prompt_seconds: float
    token_seconds: float  # of all passes after the prompt's
    attention_seconds: float  # the part of token_seconds that attention took


class Clock:
    """Passes calls on to an attention, and adds up how long they took."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.seconds = 0.0

    def __call__(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        begin = perf_counter()
        o = self.attention(layer, q, k, v)
        self.seconds += perf_counter() - begin
        return o


def generate(
    model: Llama,
    prompt_ids: Sequence[int],
    attention: FlashAttention,
    end: int,
    max_tokens: int,
    show: Callable[[int], None],
) -> Answer:
    """The likeliest token after the other, until `end` or max_tokens. `show` gets each at once."""

    def next_logits(ids: Sequence[int], attend: Attention) -> np.ndarray:
        attention.extend(len(ids))
        return model.logits(model.hidden_states(ids, attend)[-1:])

    start = perf_counter()
    logits = [next_logits(prompt_ids, attention)]
    begin = perf_counter()
    clock = Clock(attention)
    token_ids = [int(logits[-1].argmax())]
    show(token_ids[-1])
    while token_ids[-1] != end and len(token_ids) < max_tokens:
        logits.append(next_logits(token_ids[-1:], clock))
        token_ids.append(int(logits[-1].argmax()))
        show(token_ids[-1])
    return Answer(
        list(prompt_ids),
        token_ids,
        np.concatenate(logits),
        prompt_seconds=begin - start,
        token_seconds=perf_counter() - begin,
        attention_seconds=clock.seconds,
    )
