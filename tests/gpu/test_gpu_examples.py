"""The example that decodes in pages, with its CUDA graph."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from flashattn._library import library

ROOT = Path(__file__).resolve().parents[2]


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
    done = subprocess.run([program, *sizes], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "sm80decode" in done.stdout or "sm90decode" in done.stdout
    share = re.search(r"attention has (\d+) %", done.stdout)
    assert share and 0 < int(share[1]) < 100
