"""Times ggml's flash attention with the plug-in and without, in turns, and prints tables: processor
time of one thread, medians, and the ratio of ggml's to the library's.

usage: llama_cpp_times.py [--rounds N] [--prompt N] [--tokens N]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import ggml_programs as programs

TYPES = ("f16", "q8_0", "q4_0")
SHAPES = [
    {"queries": queries, "keys": keys, "heads": heads, "heads_kv": heads_kv, "d": d, "d_v": d}
    for queries in (1, 512)
    for keys in (512, 4096)
    for heads, heads_kv, d in ((9, 3, 64), (32, 8, 128))
]


def in_turns(rounds: int, run: Callable[[bool], list[float]]) -> list[tuple[float, float]]:
    """Runs with the plug-in and without, in turns; returns the medians of each number, the
    library's first."""
    results: dict[bool, list[list[float]]] = {True: [], False: []}
    for _ in range(rounds):
        for is_ours in (False, True):
            results[is_ours].append(run(is_ours))
    ours, theirs = ([statistics.median(of) for of in zip(*results[k])] for k in (True, False))
    return list(zip(ours, theirs))


def row(name: str, ours: float, theirs: float, unit: float) -> str:
    return f"| {name} | {theirs * unit:,.2f} | {ours * unit:,.2f} | {theirs / ours:.2f} |"


def time_operations(rounds: int) -> None:
    shapes = [
        {**shape, "k": dtype, "v": dtype, "repeats": 15 if shape["queries"] == 1 else 1}
        for dtype in TYPES
        for shape in SHAPES
    ]
    plugin = programs.plugin()

    def run(is_ours: bool) -> list[float]:
        done = programs.operations(shapes, plugin if is_ours else None)
        return [each["seconds"] for each in done]

    print(
        "| queries x keys, heads, d, type | ggml, ms | the library, ms | ratio |\n|---|---|---|---|"
    )
    for shape, (ours, theirs) in zip(shapes, in_turns(rounds, run)):
        name = "{queries} x {keys}, {heads}/{heads_kv}, {d}, {k}".format(**shape)
        print(row(name, ours, theirs, 1e3), flush=True)


def time_model(rounds: int, prompt: int, tokens: int) -> None:
    print("\n| SmolLM2-135M, cache | ggml, ms | the library, ms | ratio |\n|---|---|---|---|")
    for dtype in TYPES:
        options = ("--cache", dtype, "--prompt", prompt, "--tokens", tokens)

        def run(is_ours: bool) -> list[float]:
            done = programs.generate(*options, plugin=is_ours)  # noqa: B023
            return [done["prompt"] / prompt, statistics.median(done["token"])]

        of_prompt, of_token = in_turns(rounds, run)
        print(row(f"{dtype}, a token of a prompt of {prompt}", *of_prompt, 1e3))
        print(row(f"{dtype}, a token after it", *of_token, 1e3), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=32)
    args = parser.parse_args()
    programs.plugin()
    time_operations(args.rounds)
    time_model(args.rounds, args.prompt, args.tokens)


if __name__ == "__main__":
    main()
