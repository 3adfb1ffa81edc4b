"""Text to tokens and back: the byte-level BPE of the model's file, and the form of a dialogue that
the model was trained on.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
BEGIN_TURN, END_OF_TURN = "<|im_start|>", "<|im_end|>"
CONTROL = 3  # the type of a token that stands for no text


def make_tokenizer(values: dict[str, Any]) -> Tokenizer:
    """Makes the tokenizer from the values of a GGUF file."""
    kind = values["tokenizer.ggml.model"], values["tokenizer.ggml.pre"]
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"its tokenizer is {kind}, not ('gpt2', 'smollm')")
    tokens = values["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits_apart = Digits(individual_digits=True)
    tokenizer.pre_tokenizer = Sequence([digits_apart, ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = ByteLevelDecoder()
    types = values["tokenizer.ggml.token_type"]
    control = [AddedToken(t, special=True) for t, kind in zip(tokens, types) if kind == CONTROL]
    tokenizer.add_special_tokens(control)
    tokenizer.encode_special_tokens = True  # what looks like one in a text is text
    return tokenizer


def question(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a dialogue up to where the model is to answer text."""
    turns = turn(tokenizer, "system", SYSTEM) + turn(tokenizer, "user", text)
    return turns + begin_turn(tokenizer, "assistant\n")


def turn(tokenizer: Tokenizer, role: str, text: str) -> list[int]:
    end = [tokenizer.token_to_id(END_OF_TURN), *tokenizer.encode("\n").ids]
    return begin_turn(tokenizer, f"{role}\n{text}") + end


def begin_turn(tokenizer: Tokenizer, text: str) -> list[int]:
    return [tokenizer.token_to_id(BEGIN_TURN), *tokenizer.encode(text).ids]


def end_of_turn(tokenizer: Tokenizer) -> int:
    """The token with which an answer ends."""
    return tokenizer.token_to_id(END_OF_TURN)
