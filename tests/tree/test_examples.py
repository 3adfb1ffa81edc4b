"""The examples in the README, in docs/ and in examples/ compile and run.

FLASHATTN_LIBRARY is the library that they run with; CC the compiler (default: cc).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
TOP_LEVEL = sorted(ROOT.glob("*.md"), key=lambda document: document != README)
DOCUMENTS = [*TOP_LEVEL, *sorted((ROOT / "docs").rglob("*.md"))]
WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def blocks(language: str) -> list[str]:
    """Returns the documents' fenced blocks in a language."""
    fence = re.compile(rf"^```{language}\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
    found = [block for document in DOCUMENTS for block in fence.findall(document.read_text())]
    assert found, f"the documents have no example in {language}"
    return found


def library() -> Path:
    path = Path(os.environ["FLASHATTN_LIBRARY"]).resolve()
    assert path.exists()
    return path


def run(command: list[str | Path], **options: object) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(command, capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def compile_program(sources: list[Path], program: Path, *options: str | Path) -> None:
    compiler = os.environ.get("CC", "cc")
    link = [library(), f"-Wl,-rpath,{library().parent}", *options]
    run([compiler, *WARNINGS, f"-I{ROOT / 'include'}", *sources, "-o", program, *link])


def compile_and_run(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    program = folder / "program"
    compile_program([source], program, "-lm")
    return run([program])


def run_python(arguments: list[str | Path]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "bindings/python"), os.environ.get("PYTHONPATH", "")])
    return run([sys.executable, *arguments], env={**os.environ, "PYTHONPATH": path})


@pytest.mark.parametrize("source", blocks("c"))
def test_c_in_the_documents(source: str, tmp_path: Path) -> None:
    (tmp_path / "example.c").write_text(source)
    assert compile_and_run(tmp_path / "example.c", tmp_path).stderr == ""


def skip_without_modules(source: str) -> None:
    for module in ("jax", "torch", "transformers"):
        imports = re.search(rf"^(?:import|from) {module}\b", source, re.MULTILINE)
        if imports and not find_spec(module):
            pytest.skip(f"needs {module}")


@pytest.mark.parametrize("source", blocks("python"))
def test_python_in_the_documents(source: str) -> None:
    skip_without_modules(source)
    complaints = run_python(["-c", source]).stderr
    assert complaints == "" or "torch.compile" in source  # which may say what it finds to use


@pytest.mark.parametrize("source", sorted((ROOT / "examples").glob("*.c")), ids=lambda p: p.name)
def test_c_examples(source: Path, tmp_path: Path) -> None:
    assert compile_and_run(source, tmp_path).stdout != ""


def paged_decode(machine: str) -> list[Path]:
    folder = ROOT / "examples/paged_decode"
    return [folder / name for name in ("main.c", "cache.c", f"machine_{machine}.c")]


def test_decoding_in_pages_on_the_processor(tmp_path: Path) -> None:
    program = tmp_path / "paged_decode"
    compile_program(paged_decode("cpu"), program)
    output = run([program, "3", "50", "20"]).stdout
    assert "3 sequences of 50 to 70 keys" in output and "tokens/s" in output
    refused = subprocess.run([program, "none"], capture_output=True, text=True)
    assert refused.returncode == 1 and refused.stderr.startswith("BATCH is none")


def sources_of_check(*others: str) -> list[Path]:
    """Returns the sources of the engine's check."""
    of_engine = (ROOT / "examples/engine").glob("*.c")
    left_out = {"main.c", "tokenizer.c", "device_cuda.c"} - set(others)
    return sorted(path for path in of_engine if path.name not in left_out)


def test_the_engine_agrees_with_a_plain_model(tmp_path: Path) -> None:
    program = tmp_path / "check"
    compile_program(sources_of_check(), program, "-O2", "-lm", "-pthread")
    output = run([program, "1000", "5"]).stdout
    assert re.match(r"\d+ steps of \d+ sequences, .* logits deviate by", output)


def compile_cuda_program(sources: list[Path], program: Path, *options: str) -> None:
    toolkit = Path(shutil.which("nvcc")).resolve().parents[1]
    libraries = toolkit / "lib64"
    runtime = [f"-I{toolkit / 'include'}", f"-L{libraries}", "-lcudart", f"-Wl,-rpath,{libraries}"]
    compile_program(sources, program, *runtime, *options)


def run_where_there_may_be_a_gpu(command: list[str | Path], output: str) -> None:
    """Without a GPU the program says so in a line."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        assert output in done.stdout
    else:
        assert done.stdout == "" and done.stderr.count("\n") == 1


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs CUDA's headers")
def test_decoding_in_pages_on_a_gpu_needs_one(tmp_path: Path) -> None:
    program = tmp_path / "paged_decode"
    compile_cuda_program(paged_decode("cuda"), program)
    run_where_there_may_be_a_gpu([program, "2", "50", "20"], "tokens/s")


def has_cublas() -> bool:
    nvcc = shutil.which("nvcc")
    return nvcc is not None and (Path(nvcc).resolve().parents[1] / "include/cublas_v2.h").exists()


@pytest.mark.skipif(not has_cublas(), reason="needs nvcc and cuBLAS")
def test_the_engine_on_a_gpu_needs_one(tmp_path: Path) -> None:
    program, kernels = tmp_path / "check", tmp_path / "layers.o"
    run(["nvcc", "-c", ROOT / "examples/engine/layers.cu", "-o", kernels])
    sources = [*sources_of_check("device_cuda.c"), kernels]
    options = ["-O2", "-DENGINE_CUDA", "-lcublas", "-lstdc++", "-lm", "-pthread"]
    compile_cuda_program(sources, program, *options)
    run_where_there_may_be_a_gpu([program, "--device", "cuda", "50"], "logits deviate by")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs CUDA's headers")
@pytest.mark.parametrize("source", blocks("cuda"))
def test_cuda_in_the_documents(source: str, tmp_path: Path) -> None:
    (tmp_path / "example.c").write_text(source)
    compile_cuda_program([tmp_path / "example.c"], tmp_path / "program")
    run_where_there_may_be_a_gpu([tmp_path / "program"], "decoded")


@pytest.mark.parametrize("source", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_python_examples(source: Path) -> None:
    skip_without_modules(source.read_text())
    assert run_python([source]).stdout != ""
