"""SGLang with the backend, on the CPU, beside SGLang with its backend torch_native, or beside
transformers: the same tokens of small random models, greedy, with chunks of prompts, prefixes that
are in the cache, and pages. SGLang finds the backend by an entry point, as that of the wheel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
N_LAYERS = 3
N_CACHED = 80  # tokens of the last prompt, which are in the cache


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([sys.executable, FOLDER / "sglang_models.py", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that says that the package is installed, with the entry point of the wheel, and with
    the plug-in that counts calls."""
    project = (ROOT / "pyproject.toml").read_text()
    folder = tmp_path_factory.mktemp("installed")
    about = folder / "flashattn-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: flashattn\nVersion: 0\n")
    (name, function) = re.search(r'"sglang\.srt\.plugins"\]\n(\w+) = "(.*?)"\n', project).groups()
    points = f"[sglang.srt.plugins]\n{name} = {function}\ncounts = sglang_counts:register\n"
    (about / "entry_points.txt").write_text(points)
    return folder


def _environment(installed: Path, counts: Path) -> dict[str, str]:
    paths = [installed, FOLDER, FOLDER / "sglang_stand_in", ROOT / "bindings/python"]
    return {
        **os.environ,
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "COUNTS": str(counts),
    }


def _run(model: Path, installed: Path, backend: str, *options: str) -> dict[str, list]:
    """Returns what sglang_generate.py prints, and how often a layer called this library in each
    mode of SGLang's: {"0 DECODE": calls, ...}."""
    counts = installed / "counts"
    counts.write_text("")
    command = [sys.executable, FOLDER / "sglang_generate.py", model, backend, *options]
    environment = _environment(installed, counts)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {**found, "calls": Counter(counts.read_text().splitlines())}


# A model, what its tokens are compared with, and options.
CASES = {
    "llama": ("llama", "torch_native", ()),
    "llama-bfloat16": ("llama", "torch_native", ("--dtype", "bfloat16")),
    "llama-pages": ("llama", "torch_native", ("--page-size", "16")),
    "qwen3": ("qwen3", "torch_native", ()),
    # With softcap and windows. SGLang's torch_native leaves out the softcap.
    "gemma2": ("gemma2", "transformers", ()),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tokens_are_those_of_another_backend(
    case: tuple[str, str, tuple[str, ...]], models: Path, installed: Path
) -> None:
    name, other, options = case
    expected = _run(models / name, installed, other, *options)
    found = _run(models / name, installed, "flashattn", *options)
    assert not expected["calls"]
    calls = found["calls"]
    print(f"{name} {' '.join(options)}: {dict(calls)}")
    assert {x.split()[0] for x in calls} == {str(i) for i in range(N_LAYERS)}
    assert len({calls[f"{i} DECODE"] for i in range(N_LAYERS)}) == 1 and calls["0 DECODE"]
    assert found["cached"] == [0, 0, 0, 0, N_CACHED]
    assert found["tokens"] == expected["tokens"]
    assert len({tuple(x) for x in found["tokens"]}) > 1


def test_what_is_not_served_is_said_before_sglang_serves(models: Path, installed: Path) -> None:
    command = [sys.executable, FOLDER / "sglang_generate.py", models / "llama", "flashattn"]
    done = subprocess.run(
        [*command, "--torch-compile"],
        env=_environment(installed, installed / "counts"),
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    reason = "decoding is to be compiled on the CPU (--enable-torch-compile)"
    assert f"flashattn.sglang does not serve this: {reason}" in done.stderr


def test_o_over_other_pools(models: Path, installed: Path) -> None:
    """SGLang has no pool of e4m3 on a processor without AMX, and none of layers with windows for
    these models: its layer, its pools and its batches compute a step by themselves."""
    done = subprocess.run(
        [sys.executable, FOLDER / "sglang_pools.py", models / "llama"],
        env=_environment(installed, installed / "counts"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stdout)
    errors = [float(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(errors) == 6 and max(errors) < 1e-5
