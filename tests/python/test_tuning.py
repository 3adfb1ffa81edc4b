"""Measuring kernels and following results, as far as that needs no GPU."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import flashattn
import numpy as np
import pytest
from flashattn import TUNING_HEADER
from flashattn.cli import main, results_file, tune
from flashattn.cli.problem import BadInput
from problems import runnable_kernels
from subprocesses import run_python

LINE = (
    "cc=90 sms=132 dtype=FP32 d_head=16 features=none q=64 k=64 heads=2 ns={ns}: "
    "REFERENCE (FP32, any, 16, 1): causal+window+softcap+varlen+paged+bias"
)
SHAPE = ["--seqlen", "16,40", "--heads", "2", "--d-head", "16,8", "dtype=FP32"]


@pytest.fixture
def q() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1, 40, 2, 16)).astype(np.float32)


def _fp32_configs() -> list[flashattn.Config]:
    rows = [k.config for k in runnable_kernels() if k.config.dtype == flashattn.DType.FP32]
    assert rows
    return rows


# ---- measure, tuning_line, set_tuning ----


def test_measure_times_each_kernel_and_computes(q: np.ndarray) -> None:
    out = np.empty_like(q)
    seconds = flashattn.measure(q, q, q, _fp32_configs(), out=out, n_launches=3, causal=True)
    assert len(seconds) == len(_fp32_configs()) and all(0 < s < math.inf for s in seconds)
    np.testing.assert_allclose(out, flashattn.flash_attn_func(q, q, q, causal=True), atol=1e-5)


def test_measure_refuses(q: np.ndarray) -> None:
    out, configs = np.empty_like(q), _fp32_configs()
    with pytest.raises(ValueError, match="n_kernels is 0"):
        flashattn.measure(q, q, q, [], out=out)
    with pytest.raises(ValueError, match="n_launches is 0"):
        flashattn.measure(q, q, q, configs, out=out, n_launches=0)
    with pytest.raises(LookupError, match="without a kernel"):
        flashattn.measure(q, q, q, ["REFERENCE (FP32, any, 17, 1)"], out=out)
    half = next(k.config for k in runnable_kernels() if k.config.dtype == flashattn.DType.FP16)
    with pytest.raises(NotImplementedError, match="dtype"):
        flashattn.measure(q, q, q, [half], out=out)
    with pytest.raises(ValueError, match="out has shape"):
        flashattn.measure(q, q, q, configs, out=out[:, :3])


def test_the_cpu_has_no_results(q: np.ndarray) -> None:
    with pytest.raises(NotImplementedError, match="device is the CPU"):
        flashattn.tuning_line(q, q, q, _fp32_configs()[0], 1e-3)


def test_set_tuning_refuses_with_the_place(q: np.ndarray) -> None:
    before = flashattn.select_config(q, q, q)
    flashattn.set_tuning(f"{TUNING_HEADER}\n{LINE.format(ns=1)}")
    with pytest.raises(ValueError, match="line 3: expected sms= at position 6"):
        flashattn.set_tuning(f"{TUNING_HEADER}\n\ncc=90 fast")
    with pytest.raises(ValueError, match=TUNING_HEADER):
        flashattn.set_tuning("")
    with pytest.raises(ValueError, match="NUL"):
        flashattn.set_tuning(TUNING_HEADER + "\0")
    assert flashattn.select_config(q, q, q) == before
    flashattn.set_tuning(None)


# ---- FLASHATTN_TUNING ----

_CALL = """
import flashattn
try:
    flashattn.set_tuning(None)
    print("ok")
except ValueError as error:
    print(error)
"""


def _call(path: Path | str, **environment: str) -> tuple[str, str]:
    result = run_python("-c", _CALL, FLASHATTN_TUNING=str(path), **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip(), result.stderr


def test_a_file_of_results_is_read(tmp_path: Path) -> None:
    path = tmp_path / "results.txt"
    path.write_text(f"{TUNING_HEADER}\n{LINE.format(ns=1)}\n")
    assert _call(path) == ("ok", "")
    assert _call("none") == ("ok", "")
    path.write_text(f"{TUNING_HEADER}\nresults\n")
    assert "FLASHATTN_TUNING: line 2: expected cc=" in _call(path)[0]
    assert "No such file" in _call(tmp_path / "absent")[0]
    assert "Is a directory" in _call(tmp_path)[0]


def test_results_of_absent_kernels_are_passed_over_aloud(tmp_path: Path) -> None:
    path = tmp_path / "results.txt"
    path.write_text(f"{TUNING_HEADER}\n{LINE.format(ns=1).replace('16, 1)', '17, 1)')}\n")
    assert _call(path) == ("ok", "")
    output, trace = _call(path, FLASHATTN_TRACE="1")
    assert output == "ok" and "line 2 passed over" in trace and "any, 17, 1" in trace


# ---- The command ----


def test_tune_ranks_on_the_cpu(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["tune", "--device", "cpu", "--launches", "2", "--top", "9", *SHAPE]) == 0
    output = capsys.readouterr().out
    assert output.count(f"{len(_fp32_configs())} kernels") == 4  # shapes
    assert output.count("(selected)") == 4
    for config in _fp32_configs():
        assert output.count(str(config)) == 4


@pytest.mark.parametrize("pages", [["--page-size", "5,16"], ["--seqused"]])
def test_tune_ranks_decoding_in_pages_and_by_lengths(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, pages: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    decode = ["--seqlen-q", "1", "--heads-kv", "1", "--batch", "3", "--causal", *pages]
    assert main(["tune", "--device", "cpu", "--launches", "1", *SHAPE, *decode]) == 0
    output = capsys.readouterr().out
    assert output.count("(selected)") == 4 * (len(pages[-1].split(",")))
    assert output.count("in pages of 5, batch 3, heads 2/1, causal") == (
        4 if "5" in pages[-1] else 0
    )


def test_tune_passes_over_shapes_that_no_kernel_serves(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    support = tune.query_support

    def only_16(q: np.ndarray, *tensors: np.ndarray, **options: object) -> object:
        of_none = flashattn.Support(False, "d_head 8")
        return support(q, *tensors, **options) if q.shape[-1] == 16 else of_none

    monkeypatch.setattr(tune, "query_support", only_16)
    assert main(["tune", "--device", "cpu", "--launches", "1", *SHAPE]) == 0
    output = capsys.readouterr().out
    assert output.count("passed over: FP32, d_head 8, ") == 2 and output.count("(selected)") == 2
    assert main(["tune", "--device", "cpu", *SHAPE, "--d-head", "8"]) == 2
    assert "d_head 8" in capsys.readouterr().err


@pytest.mark.parametrize("page_size", [None, 16])
def test_tune_times_cold_caches_on_a_device(
    monkeypatch: pytest.MonkeyPatch, page_size: int | None
) -> None:
    """Every kernel is called; what is written between the calls, and the clock, are a device's."""

    def cold_median_seconds(calls: list, runs: int) -> list[float]:
        for call in calls:
            call()
        return [1e-3 * (i + 1) for i in range(len(calls))]

    monkeypatch.setattr(tune.bench_cuda, "cold_median_seconds", cold_median_seconds)
    args = argparse.Namespace(
        device="cpu", batch=2, tokens=None, seqlen_q=1, heads=2, heads_kv=1, d_head=16,
        d_head_v=None, causal=True, window=(-1, -1), softcap=0.0, scale=None, seqused=False,
        attention_chunk=8, leftpad_k=0 if page_size else 5,
    )  # fmt: skip
    shape = tune.Shape(flashattn.DType.FP32, 16, 40, page_size, args)
    tensors, options = tune._inputs(shape)
    configs = [c for c in _fp32_configs() if not page_size or c.features & flashattn.Feature.PAGED]
    seconds = tune._cold(configs, 3, tensors, options)
    assert list(seconds) == configs and list(seconds.values())[0] == 1e-3


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--device", "cpu", "--output", "x"], "results are for CUDA devices"),
        (["--device", "cpu", "--launches", "0"], "--launches is 0"),
        (["--device", "cpu", "--top", "0"], "--top is 0"),
        (["--device", "cpu", "--page-size", "16,0"], "--page-size is 0"),
        (["--device", "cpu", "--cold"], "--cold is for CUDA devices"),
        (["--device", "cpu", "--d-head", "64,0"], "--d-head is 0"),
        (["--device", "cpu", "--seqlen", "0"], "--seqlen is 0"),
        (["--device", "cpu", "--leftpad-k", "512"], "--leftpad-k is 512"),
        (["--device", "cpu", "--leftpad-k", "5", "--page-size", "8"], "do not go together"),
        (["--device", "cpu", "arch=SM80"], "no kernel"),
        (["--device", "cpu", "arch=SM81"], "SM81"),
    ],
)
def test_tune_refuses(capsys: pytest.CaptureFixture, arguments: list[str], words: str) -> None:
    assert main(["tune", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == "" and len(output.err.splitlines()) == 1 and words in output.err


def test_tune_needs_a_cuda_device(capsys: pytest.CaptureFixture) -> None:
    if flashattn.cuda_devices():
        pytest.skip("there is one")
    assert main(["tune"]) == 2
    assert "tune without --device cpu needs an NVIDIA GPU" in capsys.readouterr().err


# ---- The file ----


def test_new_results_replace_those_of_the_same_problem(tmp_path: Path) -> None:
    path = str(tmp_path / "results.txt")
    other = LINE.format(ns=3).replace("q=64", "q=128")
    assert results_file.read(path) == "" == results_file.read(None)
    results_file.write(path, "", [LINE.format(ns=1), other], "a device")
    first = results_file.read(path)
    assert first.splitlines()[0] == TUNING_HEADER
    assert first.splitlines()[1].startswith("# a device, ")
    assert first.splitlines()[2:] == [LINE.format(ns=1), other]
    results_file.write(path, first, [LINE.format(ns=2)], "another")
    assert results_file.read(path).splitlines()[1:] == [
        first.splitlines()[1],
        other,
        LINE.format(ns=2),
    ]
    flashattn.set_tuning(results_file.read(path))
    flashattn.set_tuning(None)


def test_another_kind_of_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("# notes\nbuy milk\n")
    with pytest.raises(BadInput, match="no file of results"):
        results_file.read(str(path))
    with pytest.raises(BadInput, match="no such folder"):
        results_file.read(str(tmp_path / "absent" / "results.txt"))
    assert path.read_text() == "# notes\nbuy milk\n"
