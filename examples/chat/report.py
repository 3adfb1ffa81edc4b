"""What the demo prints: plain text, as wide as the terminal, and at most 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

import flashattn
from demo_support import Words, cpu_text, print_labelled, print_wrapped, why_no_gpu
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from .arrays import Arrays
from .attention import PAGE_SIZE
from .compare import Comparison
from .generate import Answer
from .llama import Sizes


def print_header(name: str, sizes: Sizes, arrays: Arrays) -> None:
    heads = f"{sizes.n_heads} query and {sizes.n_heads_kv} K/V heads of {sizes.d_head}"
    gpu = why_no_gpu() or f"{flashattn.cuda_devices()[0].name}: attention runs there"
    print_labelled("model", f"{name}: {sizes.n_layers} layers, {heads}")
    print_labelled("device", cpu_text())
    print_labelled("gpu", gpu)
    print_labelled("cache", f"pages of {PAGE_SIZE} tokens, {arrays.name}")


class Speech:
    """Prints an answer's tokens as they come. A character may take several tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._words = Words()

    def __call__(self, token_id: int) -> None:
        text = self._stream.step(self._tokenizer, token_id)
        if text:
            self._words.add(text)

    def end(self) -> None:
        self._words.end()
        print("\n")


def print_prompt(prompt: str) -> None:
    print()
    print_wrapped(f"> {prompt}")
    print()


def print_speed(sizes: Sizes, answer: Answer, selection: flashattn.Selection) -> None:
    """Also says what computed the attention, and what share of a token's time that took."""
    n_passes = len(answer.token_ids) - 1
    text = f"{len(answer.prompt_ids)} tokens of prompt in {answer.prompt_seconds:.2f} s"
    if n_passes:
        token, attention = answer.token_seconds / n_passes, answer.attention_seconds / n_passes
        text += (
            f", then {1 / token:.1f} tokens/s: a token takes {token * 1e3:.1f} ms. Attention takes "
            f"{attention * 1e3:.2f} ms of that, {attention / token:.0%}, in all {sizes.n_layers} "
            "layers; the rest is the model's other products, in numpy"
        )
    print_wrapped(f"{text}.")
    family = flashattn.Arch(selection.config.arch).name
    dtype = flashattn.DType(selection.config.dtype).name
    print_wrapped(f"Attention ran in libflashattn's {family} kernels, in {dtype}.")


def print_comparison(comparison: Comparison, tolerance: float) -> bool:
    """Returns whether the answer agrees with the reference."""
    agrees = comparison.agrees(tolerance)
    print_wrapped(
        f"{'OK' if agrees else 'FAILED'}: {comparison.n_same} of {comparison.n_tokens} tokens are "
        f"those of float64 attention in numpy; logits deviate by {comparison.deviation:.1e} at "
        f"most (tolerance {tolerance:.0e})."
    )
    return agrees


def print_times_header(names: Sequence[str]) -> None:
    print()
    print_wrapped(
        "Attention of one layer alone: best times in ms, and how many times as long as "
        "flashattn the others take. On the CPU each has one thread:"
    )
    width = len(time_titles(names))
    print(f"{'':6}{'a whole prompt':>{width}}  {'a token over a cache':>{width}}")
    print(f"{'tokens':6}{time_titles(names)}  {time_titles(names)}".rstrip())


def time_titles(names: Sequence[str]) -> str:
    """A ratio has no title: its times sign says what it is."""
    return f"{names[0]:>11}" + "".join(f"{name:>6}{'':6}" for name in names[1:])


def print_times(length: int, prompt: Sequence[float], token: Sequence[float]) -> None:
    """Prints the seconds of every implementation; the library's come first."""
    print(f"{length:<6}{time_columns(prompt)}  {time_columns(token)}".rstrip())


def time_columns(seconds: Sequence[float]) -> str:
    columns = [f"{milliseconds(seconds[0]):>11}"]
    columns += [f"{milliseconds(x):>6}{x / seconds[0]:5.1f}x" for x in seconds[1:]]
    return "".join(columns)


def milliseconds(seconds: float) -> str:
    """Three digits, and none of less than a microsecond."""
    number = seconds * 1e3
    return f"{number:.{3 if number < 1 else 2 if number < 10 else 1 if number < 100 else 0}f}"
