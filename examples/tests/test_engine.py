"""The engine in C beside the chat in Python: the same tokens of a text, and the same answers of a
tiny random model, whose file is written here. FLASHATTN_LIBRARY is the library that both use.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from chat.arrays import preferred_arrays
from chat.attention import FlashAttention
from chat.checkpoint import load_model
from chat.dialogue import end_of_turn, question
from chat.generate import generate
from chat_support import (
    OF_FILE,
    gguf_file,
    model_parts,
    padded,
    string,
    tiny_model,
    tokenizer_values,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from program import EXAMPLES

SOURCES = EXAMPLES / "engine"
QUESTIONS = ("Why is the sky blue?", "What is 12 times 11?", "  then   he said: 'they'll go!'")
N_NEW = 24

# Prints the tokens of each line of standard input.
TOKENS = """
#include "tokenizer.h"
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    static char line[4096];
    static int32_t tokens[4096];
    gguf_t *file = gguf_open(argv[argc - 1]);
    tokenizer_t *tokenizer = tokenizer_make(file);
    while (fgets(line, sizeof line, stdin) != NULL) {
        int count = 0;
        line[strcspn(line, "\\n")] = '\\0';
        tokenizer_encode(tokenizer, line, tokens, &count);
        for (int i = 0; i < count; i++)
            printf("%d ", (int)tokens[i]);
        puts("");
    }
    tokenizer_free(tokenizer);
    gguf_close(file);
    return 0;
}
"""


def random_merges(seed: int, tokens: list[str], count: int) -> list[tuple[str, str]]:
    """Returns pairs of printable tokens, of which later ones join earlier ones too."""
    random, known = np.random.default_rng(seed), tokens[3:-2]
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        first, second = (known[i] for i in random.integers(len(known), size=2))
        if first + second not in known and "\u010a" not in first + second:
            merges.append((first, second))
            known = [*known, first + second]
    return merges


def compile_program(program: Path, *sources: Path) -> None:
    library = Path(os.environ["FLASHATTN_LIBRARY"]).resolve()
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    include = [f"-I{EXAMPLES.parent / 'include'}", f"-I{SOURCES}"]
    link = [library, f"-Wl,-rpath,{library.parent}", "-lm", "-pthread"]
    command = [os.environ.get("CC", "cc"), *flags, *include, *sources, "-o", program, *link]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer has 60 merges more than that of the chat's tests."""
    of_words = tokenizer_values()["tokenizer.ggml.tokens"]
    merges = random_merges(0, of_words, 60)
    values, tensors = model_parts(tiny_model(0, OF_FILE))
    values["tokenizer.ggml.tokens"] = [*of_words, *(a + b for a, b in merges)]
    values["tokenizer.ggml.token_type"] = [*values["tokenizer.ggml.token_type"], *[1] * 60]
    values["tokenizer.ggml.merges"] = ["t h", "h e", *(f"{a} {b}" for a, b in merges)]
    shape, kind, stored = tensors["token_embd.weight"]
    more = np.random.default_rng(1).standard_normal((60, shape[1])) * 0.1
    tensors["token_embd.weight"] = (
        (shape[0] + 60, shape[1]),
        kind,
        stored + more.astype(np.float32).tobytes(),
    )
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    path.write_bytes(gguf_file(values, tensors))
    return path


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("engine") / "engine"
    others = ("check.c", "device_cuda.c")
    compile_program(program, *(p for p in SOURCES.glob("*.c") if p.name not in others))
    return program


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("encoder") / "encoder"
    source = program.with_suffix(".c")
    source.write_text(TOKENS)
    compile_program(
        program, source, *(SOURCES / f"{n}.c" for n in ("tokenizer", "gguf", "support"))
    )
    return program


@given(st.lists(st.text("abhet '!\t 12_sldvmr.", min_size=1), min_size=1, max_size=40))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_tokens_are_those_of_the_chat(model: Path, encoder: Path, lines: list[str]) -> None:
    _, tokenizer = load_model(model)
    text = "\n".join(lines) + "\n"
    done = subprocess.run([encoder, model], input=text, capture_output=True, text=True, check=True)
    found = [[int(token) for token in line.split()] for line in done.stdout.splitlines()]
    assert found == [tokenizer.encode(line).ids for line in lines]


def expected_answer(path: Path, text: str) -> str:
    """Returns the answer of the chat."""
    model, tokenizer = load_model(path)
    ids = question(tokenizer, text)
    attention = FlashAttention(model.sizes, len(ids) + N_NEW, preferred_arrays())
    end = end_of_turn(tokenizer)
    answer = generate(model, ids, attention, end, N_NEW, lambda _: None)
    return tokenizer.decode([i for i in answer.token_ids if i != end], skip_special_tokens=False)


@pytest.mark.parametrize("pages", ["1024", "40"])
def test_answers_are_those_of_the_chat(model: Path, engine: Path, pages: str) -> None:
    """With few pages questions wait for each other."""
    asked = "\n".join(QUESTIONS) + "\n"
    done = subprocess.run(
        [engine, model, str(N_NEW), "2", pages], input=asked, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(expected_answer(model, text) + "\n" for text in QUESTIONS)
    assert re.search(r"\d+ steps, [\d.]+ ms each, of which attention has \d+ %", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "usage: engine [--device cpu|cuda] MODEL.gguf"),
        (("--device", "cuda", "{model}"), "compiled for cpu alone"),
        (("--device",), "it needs a name"),
        (("missing.gguf",), "missing.gguf cannot be opened"),
        (("{model}", "many"), "TOKENS is many"),
        (("{model}", "24", "1", "2"), "too long for the model or its cache"),
        (("{damaged}",), "ends at byte"),
    ],
)
def test_refusals(
    model: Path, engine: Path, tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(model.read_bytes()[:1000])
    given_ones = [a.format(model=model, damaged=damaged) for a in arguments]
    done = subprocess.run([engine, *given_ones], input="Why?\n", capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("engine: ") and complaint in done.stderr


def refusal(engine: Path, folder: Path, data: bytes, questions: bytes = b"Why?\n") -> str:
    """Returns what the engine says of a file."""
    path = folder / "other.gguf"
    path.write_bytes(data)
    done = subprocess.run([engine, path, "2"], input=questions, capture_output=True)
    assert done.returncode == 1 and done.stdout == b"", (done.returncode, done.stderr)
    return done.stderr.decode(errors="replace")


FLOATS = np.zeros(192, np.float32)
NAN, INFINITY = (np.full(192, x, np.float16).tobytes() for x in (np.nan, np.inf))


@pytest.mark.parametrize(
    ("values", "tensors", "complaint"),
    [
        ({"tokenizer.ggml.merges": ["", "t h"]}, {}, 'the model merges ""'),
        ({"tokenizer.ggml.merges": ["t "]}, {}, "the model merges"),
        ({"tokenizer.ggml.model": "llama"}, {}, "the tokenizer is llama, smollm"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, {}, "the tokenizer is gpt2, llama-bpe"),
        ({"llama.rope.dimension_count": 32}, {}, "llama.rope.dimension_count is 32, not all 64"),
        ({"llama.rope.scaling.type": "yarn"}, {}, "llama.rope.scaling.type is yarn, not none"),
        ({}, {"output.weight": ((1, 192), 0, FLOATS.tobytes())}, "has a tensor output.weight"),
        ({}, {"blk.0.attn_q.bias": ((192,), 0, FLOATS.tobytes())}, "has a tensor blk.0.attn_q"),
        ({}, {"output_norm.weight": ((192,), 1, NAN)}, "element 0 of output_norm.weight is nan"),
        ({}, {"output_norm.weight": ((192,), 1, INFINITY)}, "output_norm.weight is inf"),
        ({}, {"x": ((1, 2**40, 2**40, 2**40), 0, b"")}, "an axis of 1099511627776"),
        ({}, {"blk.0.ffn_gate.weight": ((2**63, 192), 0, b"")}, "an axis of 9223372036854775808"),
        ({}, {"blk.0.ffn_gate.weight": ((2**58, 192), 0, b"")}, "an axis of 288230376151711744"),
        ({}, {"blk.0.ffn_gate.weight": ((0, 192), 0, b"")}, "an axis of 0"),
    ],
)
def test_models_that_are_not_served(
    engine: Path, tmp_path: Path, values: dict, tensors: dict, complaint: str
) -> None:
    """What the engine does not compute, or no memory holds, is named and not left out."""
    values_of_file, tensors_of_file = model_parts(tiny_model(0, OF_FILE))
    data = gguf_file({**values_of_file, **values}, {**tensors_of_file, **tensors})
    said = refusal(engine, tmp_path, data)
    assert said.startswith("engine: ") and complaint in said


def test_arrays_of_arrays_are_not_read(engine: Path, tmp_path: Path) -> None:
    nested = struct.pack("<IQ", 9, 1) * 1_000_000
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("x") + struct.pack("<I", 9)
    assert "an array of arrays" in refusal(engine, tmp_path, header + nested)


def test_a_merge_at_the_end_of_the_file(engine: Path, tmp_path: Path) -> None:
    values, _ = model_parts(tiny_model(0, OF_FILE))
    values["tokenizer.ggml.merges"] = values.pop("tokenizer.ggml.merges")[:1] + [""]
    data = gguf_file(values, {}).rstrip(b"\0")
    assert "the model merges" in refusal(engine, tmp_path, data + bytes(8))


def test_tensors_begin_where_the_file_says(engine: Path, tmp_path: Path) -> None:
    """general.alignment moves them, here from a multiple of 32 bytes to one of 4096."""
    values, tensors = model_parts(tiny_model(0, OF_FILE))
    data = gguf_file({"general.alignment": 4096, **values}, tensors)
    end = len(data) - sum(len(padded(stored)) for _, _, stored in tensors.values())
    paths = tmp_path / "32.gguf", tmp_path / "4096.gguf"
    paths[0].write_bytes(gguf_file(values, tensors))
    paths[1].write_bytes(data[:end] + bytes(-end % 4096) + data[end:])
    answers = [
        subprocess.run([engine, path, "4"], input=b"he\n", capture_output=True, check=True).stdout
        for path in paths
    ]
    assert answers[0] == answers[1]


def test_a_folder_is_no_model(engine: Path, tmp_path: Path) -> None:
    done = subprocess.run([engine, tmp_path], input="", capture_output=True, text=True)
    assert done.returncode == 1 and f"{tmp_path} cannot be read" in done.stderr


def test_a_byte_of_0_is_refused(model: Path, engine: Path, tmp_path: Path) -> None:
    """It would end the question for the tokenizer, whose text is a string of C."""
    said = refusal(engine, tmp_path, model.read_bytes(), b"Why\0 not?\n")
    assert "a line has a byte of 0" in said


def test_answers_that_cannot_be_written(model: Path, engine: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([engine, model, "2"], input=b"Why?\n", stdout=full, stderr=-1)
    assert done.returncode == 1 and b"the answers cannot be written" in done.stderr
