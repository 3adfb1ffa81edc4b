"""The examples on a GPU: decoding in pages, with its CUDA graph, and the chat."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flashattn._library import library

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples"), str(ROOT / "examples/tests")]  # the chat, its tests' helpers


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs CUDA's headers")
@pytest.mark.parametrize("sizes", [["3", "50", "20"], ["40", "1000", "30"]])
def test_decoding_in_pages(sizes: list[str], tmp_path: Path) -> None:
    folder, program = ROOT / "examples/paged_decode", tmp_path / "paged_decode"
    toolkit, shared = (
        Path(shutil.which("nvcc")).resolve().parents[1],
        Path(library()._name).resolve(),
    )
    sources = [folder / name for name in ("main.c", "cache.c", "machine_cuda.c")]
    includes = [f"-I{ROOT / 'include'}", f"-I{toolkit / 'include'}"]
    link = [shared, f"-L{toolkit / 'lib64'}", "-lcudart"]
    paths = f"-Wl,-rpath,{shared.parent}:{toolkit / 'lib64'}"
    subprocess.run(["cc", "-std=c11", *includes, *sources, "-o", program, *link, paths], check=True)
    done = subprocess.run([program, *sizes], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "sm80decode" in done.stdout or "sm90decode" in done.stdout
    assert re.search(r"attention has -?\d+ %", done.stdout)  # of two times, on a device at work


def test_the_chat_attends_on_the_gpu(tmp_path: Path) -> None:
    """A tiny random model: the program compares its answer with float64 attention itself."""
    pytest.importorskip("tokenizers")
    from chat_support import OF_FILE, model_file, tiny_model
    from program import run_demo

    path = tmp_path / "tiny-random.gguf"
    path.write_bytes(model_file(tiny_model(0, OF_FILE)))
    done = run_demo("chat", "--model", str(path), "--tokens", "40", "--lengths", "64")
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("attention runs there", "pages of 16 tokens, fp16 on cuda", "\nOK: "):
        assert words in done.stdout
    assert re.search(r"ran in libflashattn's (SM\w+|MIXED) kernels", " ".join(done.stdout.split()))


def test_sparse_attention_with_torch() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples/sparse_torch.py"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "512 queries of 128 heads on cuda" in done.stdout


def test_a_model_is_trained_on_the_gpu() -> None:
    arguments = ["--device", "cuda", "--steps", "60"]
    done = subprocess.run(
        [sys.executable, ROOT / "examples/train", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nOK: " in done.stdout
