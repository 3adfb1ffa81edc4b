"""Text to tokens and back: the byte-level BPE of the model's file, and the form of a dialogue that
the model was trained on.
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

from .gguf import GgufError, Values

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
BEGIN_TURN, END_OF_TURN = "<|im_start|>", "<|im_end|>"
CONTROL = 3  # the type of a token that stands for no text


def make_tokenizer(values: Values) -> Tokenizer:
    """Makes the tokenizer from the values of a GGUF file. Raises GgufError where they are none of a
    tokenizer of this kind."""
    kind = values.text("tokenizer.ggml.model"), values.text("tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise GgufError(f"its tokenizer is {kind}, not ('gpt2', 'smollm')")
    tokens = values.texts("tokenizer.ggml.tokens")
    types = values.integers("tokenizer.ggml.token_type")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if not len(vocabulary) == len(tokens) == len(types):
        raise GgufError(
            f"it has {len(tokens)} tokens, {len(vocabulary)} different ones, and {len(types)} types"
        )
    for token in (BEGIN_TURN, END_OF_TURN):
        if token not in vocabulary:
            raise GgufError(f"it has no token {token!r}")
    merges = read_merges(values, vocabulary)
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    digits_apart = Digits(individual_digits=True)
    tokenizer.pre_tokenizer = Sequence([digits_apart, ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = ByteLevelDecoder()
    control = [AddedToken(t, special=True) for t, kind in zip(tokens, types) if kind == CONTROL]
    tokenizer.add_special_tokens(control)
    tokenizer.encode_special_tokens = True  # what looks like one in a text is text
    return tokenizer


def read_merges(values: Values, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """The pairs of tokens that become one, in order."""
    merges = []
    for merge in values.texts("tokenizer.ggml.merges"):
        first, _, second = merge.partition(" ")
        for token in (first, second, first + second):
            if token not in vocabulary:
                raise GgufError(f"it merges {merge!r}, and {token!r} is none of its tokens")
        merges.append((first, second))
    return merges


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
