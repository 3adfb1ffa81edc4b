"""The chat's model with the library's attention, against a tiny model that is all in float64, and
the parts of its comparison.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from chat.arrays import HostArrays, TorchArrays
from chat.attention import PAGE_SIZE, FlashAttention, numpy_attention
from chat.compare import Comparison, compare
from chat.generate import Answer, generate
from chat.times import implementations
from chat_support import TINY, float64_logits, tiny_model
from flashattn import oracle

NO_END = -1
PROMPT = [int(x) for x in np.random.default_rng(3).integers(0, 101, 21)]


def answer_to(model, prompt, n_tokens, arrays=None, end=NO_END) -> Answer:
    attention = FlashAttention(TINY, len(prompt) + n_tokens, arrays or HostArrays())
    return generate(model, prompt, attention, end, n_tokens, lambda token: None)


@pytest.mark.parametrize("seed", range(3))
def test_a_tiny_model_says_what_it_says_in_float64(seed):
    model, n_tokens = tiny_model(seed), 2 * PAGE_SIZE + 5
    answer = answer_to(model, PROMPT, n_tokens)
    ids = list(PROMPT)
    for token, logits in zip(answer.token_ids, answer.logits):
        expected = float64_logits(model, ids)[-1]
        np.testing.assert_allclose(logits, expected, atol=1e-4)
        assert token == expected.argmax()
        ids.append(token)
    assert len(answer.token_ids) == n_tokens
    comparison = compare(model, answer)
    assert comparison.n_same == n_tokens
    assert comparison.agrees(1e-4)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torchs_tensors_serve_in_fp16():
    model = tiny_model(0)
    comparison = compare(model, answer_to(model, PROMPT, 20, TorchArrays("cpu")))
    assert comparison.agrees(0.1)


@pytest.mark.parametrize("n_tokens", [[1] * 40, [15, 1, 1, 23], [16, 16, 8], [17, 23]])
def test_a_dialogue_may_come_in_any_parts(n_tokens):
    model, ids = tiny_model(1), (PROMPT + PROMPT)[:40]
    attention = FlashAttention(TINY, len(ids), HostArrays())
    parts = []
    for n in n_tokens:
        first = attention.extend(n)
        parts.append(model.hidden_states(ids[first : first + n], attention))
    logits = model.logits(np.concatenate(parts))
    np.testing.assert_allclose(logits, float64_logits(model, ids), atol=1e-4)


def test_an_answer_ends_with_the_end_token():
    model = tiny_model(2)
    tokens = answer_to(model, PROMPT, 12).token_ids
    end = tokens[6]
    assert answer_to(model, PROMPT, 12, end=end).token_ids == tokens[: tokens.index(end) + 1]


@pytest.mark.parametrize("damage", [np.nan, 1.0])
def test_a_wrong_cache_is_noticed(damage, monkeypatch):
    def extend_and_damage(self, count):
        first = extend(self, count)
        if first == len(PROMPT) + 4:
            self._v[1][self._table[0, 0], 3, 1, 2] += damage
        return first

    extend = FlashAttention.extend
    monkeypatch.setattr(FlashAttention, "extend", extend_and_damage)
    model = tiny_model(0)
    assert not compare(model, answer_to(model, PROMPT, 10)).agrees(1e-4)


def test_a_comparison_without_a_number_does_not_agree():
    assert Comparison(3, 3, 1e-5).agrees(1e-4)
    assert not Comparison(3, 3, float("nan")).agrees(1e-4)


@pytest.mark.parametrize("seqlen_q", [1, 7, 20])
def test_numpys_attention_is_the_oracles(seqlen_q):
    q, k, v = random_qkv(seqlen_q, 20)
    expected, _ = oracle.attention(q[None], k[None], v[None], causal=True)
    o = numpy_attention(*(x.astype(np.float64) for x in (q, k, v)))
    np.testing.assert_allclose(o, expected[0], atol=1e-12)


@pytest.mark.parametrize("seqlen_q", [1, 20])
def test_what_is_timed_gives_the_same(seqlen_q):
    q, k, v = random_qkv(seqlen_q, 20)
    expected = numpy_attention(q, k, v)
    found = implementations(HostArrays())
    assert [i.name for i in found][:2] == ["flashattn", "numpy"]
    for implementation in found:
        o = np.asarray(implementation.attention(*map(implementation.put, (q, k, v))))
        if implementation.name == "torch":
            o = o.transpose(0, 2, 1, 3)
        np.testing.assert_allclose(o.reshape(expected.shape), expected, atol=1e-5)


def random_qkv(seqlen_q: int, seqlen_k: int) -> list[np.ndarray]:
    random = np.random.default_rng(seqlen_q)
    shapes = (seqlen_q, TINY.n_heads), (seqlen_k, TINY.n_heads_kv), (seqlen_k, TINY.n_heads_kv)
    return [random.standard_normal((*s, TINY.d_head)).astype(np.float32) for s in shapes]
