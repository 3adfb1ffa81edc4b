"""examples/engine on a GPU: compiled by nvcc with cuBLAS, it agrees with float64, and answers as it
does on the processor. ENGINE_MODEL is the GGUF file of a published model, which a test asks, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flashattn._library import library

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples"), str(ROOT / "examples/tests")]  # the chat, its tests' helpers
SOURCES = ROOT / "examples/engine"
QUESTIONS = ("Why is the sky blue?", "What is 12 times 11?", "Name three rivers.", "Who are you?")

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


def compile_with_cuda(folder: Path, *left_out: str) -> Path:
    """Compiles all but the files of the other program, as the README says."""
    shared, program = Path(library()._name).resolve(), folder / "program"
    names = (*SOURCES.glob("*.c"), *SOURCES.glob("*.cu"))
    sources = [path for path in names if path.name not in left_out]
    flags = ["-O3", "-arch=native", "-DENGINE_CUDA", "-Xcompiler", "-march=native,-pthread"]
    library_of = [f"-L{shared.parent}", f"-l:{shared.name}", "-Xlinker", f"-rpath={shared.parent}"]
    link = [*library_of, "-lcublas", "-lm"]
    command = ["nvcc", *flags, f"-I{ROOT / 'include'}", *sources, *link, "-o", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return program


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_with_cuda(tmp_path_factory.mktemp("engine"), "check.c")


def answers(engine: Path, device: str, model: Path, n_new: int, text: str) -> list[str]:
    """Returns the lines that the engine prints; of its figures those that a device must have."""
    command = [engine, "--device", device, model, str(n_new)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace")
    print(f"on {device}: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ steps, [\d.]+ ms each, of which attention has \d+ %", done.stderr)
    assert device == "cpu" or re.search(r"sm[89]0|mixed", done.stderr)
    return done.stdout.splitlines()


@pytest.mark.parametrize("seed", ["1", "5"])
def test_a_thousand_steps_agree_with_a_plain_model(tmp_path: Path, seed: str) -> None:
    program = compile_with_cuda(tmp_path, "main.c", "tokenizer.c")
    done = subprocess.run(
        [program, "--device", "cuda", "1000", seed], capture_output=True, text=True
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"\d+ steps of \d+ sequences, .* logits deviate by", done.stdout)


def test_a_tiny_model_answers_as_on_the_processor(engine: Path, tmp_path: Path) -> None:
    """The answers are short: with fp16 the likeliest of two like tokens may be another one."""
    from chat_support import OF_FILE, model_file, tiny_model

    model = tmp_path / "tiny.gguf"
    model.write_bytes(model_file(tiny_model(0, OF_FILE)))
    text = "\n".join(QUESTIONS) + "\n"
    assert answers(engine, "cuda", model, 16, text) == answers(engine, "cpu", model, 16, text)


def words_alike(one: str, other: str) -> int:
    """Returns how many words both begin with."""
    return len(os.path.commonprefix([one.split(), other.split()]))


@pytest.mark.skipif("ENGINE_MODEL" not in os.environ, reason="ENGINE_MODEL names no GGUF file")
def test_a_model_answers_as_on_the_processor(engine: Path) -> None:
    """Answers may part where two tokens are about as likely, which is not at once."""
    model, text = Path(os.environ["ENGINE_MODEL"]), "\n".join(QUESTIONS) + "\n"
    on_cuda, on_cpu = (answers(engine, device, model, 64, text) for device in ("cuda", "cpu"))
    print("\n".join(f"{a}\n{b}" for a, b in zip(on_cuda, on_cpu, strict=False)))
    assert len(on_cuda) > 0 and words_alike(" ".join(on_cuda), " ".join(on_cpu)) >= 8
