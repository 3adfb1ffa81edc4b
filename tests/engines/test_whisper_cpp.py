"""whisper.cpp with the plug-in, that of pywhispercpp's wheel, whose ggml is another than
llama-cpp-python's: logits of a small random model, beside those without the plug-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import flashattn.ggml
import numpy as np
import pytest

PROGRAM = Path(__file__).parent / "whisper_cpp_decode.py"
RELEASE = "pywhispercpp==1.5.1"
N_ENCODED, N_DECODED = 4, 58 * 8  # layers of the encoder; two calls a layer for each call


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds it for the ggml in pywhispercpp's sources."""
    folder = tmp_path_factory.mktemp("sources")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", "pywhispercpp", "--dest", str(folder), RELEASE]
    subprocess.run(command, check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as tar:
        tar.extractall(folder, filter="data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        return flashattn.ggml.install(next(folder.glob("*/whisper.cpp")))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model") / "ggml-small-random.bin"


def decode(model: Path, threads: int, plugin: Path | None = None) -> dict:
    command = [sys.executable, PROGRAM, model, "--threads", str(threads)]
    command += ["--plugin", str(plugin)] if plugin else []
    done = subprocess.run(command, env=os.environ, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def largest_difference(a: dict, b: dict) -> float:
    return float(np.abs(np.subtract(a["logits"], b["logits"])).max())


def test_logits_are_as_near_to_ggmls_as_ggmls_to_each_other(plugin: Path, model: Path) -> None:
    """ggml sums in fp16 over its cache of fp16, in an order that its threads make."""
    own = [decode(model, threads, plugin) for threads in (1, 2)]
    of_ggml = [decode(model, threads) for threads in (1, 2)]
    assert own[0] == own[1] == {**own[0], "served": N_ENCODED + N_DECODED, "left": 0}
    among = largest_difference(*of_ggml)
    between = min(largest_difference(own[0], other) for other in of_ggml)
    spread = float(np.std(own[0]["logits"]))
    print(f"of logits {spread:.2f} wide: ggml's {among:.3f} apart, ours {between:.3f} from them")
    assert between < among < spread / 2
