"""The demo's main job: answer a question, compare the answer with float64 attention, and time
attention alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from demo_support import print_progress, show_lines_at_once
from tokenizers import Tokenizer

from . import report
from .arrays import Arrays, preferred_arrays
from .attention import FlashAttention
from .checkpoint import NAME, ModelError, load_model
from .compare import compare
from .dialogue import end_of_turn, question
from .generate import Answer, generate
from .llama import Llama, Sizes
from .times import implementations, time_prompt, time_token, use_one_thread

PROMPT = "What is attention in a neural network? Answer briefly."
LENGTHS = [512, 1024, 2048, 4096]


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="chat",
        description="Asks a small language model, whose attention libflashattn computes, and "
        "compares it with other attentions.",
    )
    parser.add_argument(
        "prompt", nargs="*", default=[PROMPT], help=f"the question; default: {PROMPT}"
    )
    parser.add_argument(
        "--tokens", type=int, default=128, help="tokens of the answer, at most (%(default)s)"
    )
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=LENGTHS,
        metavar="TOKENS",
        help="lengths of prompts for which attention alone is timed "
        f"({' '.join(map(str, LENGTHS))})",
    )
    parser.add_argument("--model", type=Path, help="a GGUF file (default: the package's)")
    parsed = parser.parse_args(arguments)
    for option, smallest in (("tokens", parsed.tokens), ("lengths", min(parsed.lengths))):
        if smallest < 1:
            parser.error(f"--{option} is {smallest}; at least 1 is needed")
    return parsed


class PromptError(Exception):
    """The prompt cannot be answered; the message says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 when the answer deviates too far, 2 when the demo cannot run."""
    options = parse_arguments(arguments)
    show_lines_at_once()
    print_progress("reading the model")
    prompt = " ".join(options.prompt)
    try:
        model, tokenizer = load_model(options.model)
        prompt_ids = tokenize(tokenizer, prompt, model.sizes.context, options.tokens)
    except (ModelError, PromptError) as error:
        print(f"chat: {error}", file=sys.stderr)
        return 2
    arrays = preferred_arrays()
    report.print_header(options.model.stem if options.model else NAME, model.sizes, arrays)
    report.print_prompt(prompt)
    answer = speak(model, tokenizer, arrays, prompt_ids, options.tokens)
    print_progress("computing the same with float64 attention")
    agrees = report.print_comparison(compare(model, answer), arrays.tolerance)
    time_attention(model.sizes, arrays, options.lengths)
    return 0 if agrees else 1


def tokenize(tokenizer: Tokenizer, prompt: str, context: int, max_tokens: int) -> list[int]:
    ids = question(tokenizer, prompt)
    if len(ids) + max_tokens > context:
        raise PromptError(
            f"the prompt has {len(ids)} tokens; beside an answer of {max_tokens} only "
            f"{max(context - max_tokens, 0)} fit into the model's context of {context}"
        )
    return ids


def speak(
    model: Llama, tokenizer: Tokenizer, arrays: Arrays, prompt_ids: list[int], max_tokens: int
) -> Answer:
    attention = FlashAttention(model.sizes, len(prompt_ids) + max_tokens, arrays)
    show, end = report.Speech(tokenizer), end_of_turn(tokenizer)
    answer = generate(model, prompt_ids, attention, end, max_tokens, show)
    show.end()
    report.print_speed(model.sizes, answer, attention.kernel(model.sizes.n_heads))
    return answer


def time_attention(sizes: Sizes, arrays: Arrays, lengths: Sequence[int]) -> None:
    use_one_thread()
    found = implementations(arrays)
    report.print_times_header([i.name for i in found])
    for length in lengths:
        prompt = [time_prompt(i, sizes, length) for i in found]
        token = [time_token(i, sizes, length) for i in found]
        report.print_times(length, prompt, token)
