"""What the demo prints: plain text, at most 100 columns but for the model's own words."""

from __future__ import annotations

from collections.abc import Sequence

import flashattn
from demo_support import cpu_text, why_no_gpu
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from .arrays import Arrays
from .attention import PAGE_SIZE
from .compare import Comparison
from .generate import Answer
from .llama import Sizes


def print_header(name: str, sizes: Sizes, arrays: Arrays) -> None:
    print(
        f"model   {name}: {sizes.n_layers} layers, {sizes.n_heads} query and "
        f"{sizes.n_heads_kv} K/V heads of {sizes.d_head}\n"
        f"device  {cpu_text()}\n"
        f"gpu     {why_no_gpu() or f'{flashattn.cuda_devices()[0].name}: attention runs there'}\n"
        f"cache   pages of {PAGE_SIZE} tokens, {arrays.name}"
    )


class Speech:
    """Prints an answer's tokens as they come. A character may take several tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def __call__(self, token_id: int) -> None:
        text = self._stream.step(self._tokenizer, token_id)
        if text:
            print(text, end="", flush=True)


def print_prompt(prompt: str) -> None:
    print(f"\n> {prompt}\n")


def print_speed(sizes: Sizes, answer: Answer) -> None:
    n_passes = len(answer.token_ids) - 1
    print(f"\n\n{len(answer.prompt_ids)} tokens of prompt in {answer.prompt_seconds:.2f} s", end="")
    if n_passes:
        token, attention = answer.token_seconds / n_passes, answer.attention_seconds / n_passes
        print(
            f", then {1 / token:.1f} tokens/s: a token takes {token * 1e3:.1f} ms,\n"
            f"of which attention takes {attention * 1e3:.2f} ms in all {sizes.n_layers} layers",
            end="",
        )
    print(".")


def print_kernel(selection: flashattn.Selection) -> None:
    print(f"Its kernel is {selection.config}\n({selection.reason}).")


def print_comparison(comparison: Comparison, tolerance: float) -> bool:
    """Returns whether the answer agrees with the reference."""
    agrees = comparison.agrees(tolerance)
    print(
        f"{'OK' if agrees else 'FAILED'}: {comparison.n_same} of {comparison.n_tokens} tokens are "
        f"those of float64 attention in numpy; logits deviate\nby {comparison.deviation:.1e} at "
        f"most (tolerance {tolerance:.0e})."
    )
    return agrees


def print_times_header(names: Sequence[str]) -> None:
    print(
        "\nAttention of one layer: best times in ms, and their ratios to flashattn's. On the CPU "
        "each\nhas one thread:"
    )
    width = time_width(names)
    titles = f"{'a whole prompt':>{width}}  {'a token over a cache':>{width}}"
    print(f"{'':8}{titles}")
    columns = "".join(f"{name:>{10 if name == names[0] else 16}}" for name in names)
    print(f"{'tokens':8}{columns}  {columns}")


def time_width(names: Sequence[str]) -> int:
    return 10 + 16 * (len(names) - 1)


def print_times(length: int, prompt: Sequence[float], token: Sequence[float]) -> None:
    """Prints the seconds of every implementation; the library's come first."""
    print(f"{length:<8}{time_columns(prompt)}  {time_columns(token)}")


def time_columns(seconds: Sequence[float]) -> str:
    columns = [f"{seconds[0] * 1e3:10.3f}"]
    columns += [f"{x * 1e3:9.3f}{x / seconds[0]:6.1f}x" for x in seconds[1:]]
    return "".join(columns)
