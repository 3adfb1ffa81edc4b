"""The command line on a machine with a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flashattn import compare, oracle
from flashattn._tensor import numpy_dtype
from flashattn.cli import main

SHAPE = ["--tokens", "1024", "--seqlen", "256,512", "--heads", "4", "--d-head", "64"]


def test_info_lists_the_devices(capsys: pytest.CaptureFixture) -> None:
    assert main(["info"]) == 0
    output = capsys.readouterr().out
    assert "cuda 0 " in output and "compute capability" in output
    assert "SM80" in output and "SM80: 0" not in output


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_forward(tmp_path: Path, dtype: str) -> None:
    rng, paths = np.random.default_rng(0), [str(tmp_path / f"{name}.npy") for name in "qkvo"]
    inputs = [rng.standard_normal((2, 20, 4, 64)).astype(numpy_dtype(dtype)) for _ in "qkv"]
    for path, array in zip(paths, inputs):
        np.save(path, array)
    lse = str(tmp_path / "lse.npy")
    options = ["--device", "cuda", "--causal", "--seqused-k", "20,7", "--lse", lse]
    options += ["--dtype", "bf16"] if dtype == "bfloat16" else []
    assert main(["forward", *paths, *options]) == 0
    expected, expected_lse = oracle.attention(*inputs, causal=True, seqused_k=[20, 7])
    o = np.load(paths[3]).view(numpy_dtype(dtype)).astype(np.float64)
    np.testing.assert_allclose(o, expected, atol=0.02)
    np.testing.assert_allclose(np.load(lse), expected_lse, atol=1e-3)


def test_a_problem_beyond_the_memory_is_refused(capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", "--device", "cuda", "--seqlen", "256,2000000000"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and "2000000000 keys" in output.err
    assert "the GPU has" in output.err and output.err.count("\n") == 1


def test_bench(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["bench", "--device", "cuda", "--runs", "3", "--causal", *SHAPE]) == 0
    output = capsys.readouterr().out
    assert "TFLOP/s" in output and "x torch FA2" in output
    assert output.count("selected (FP16)") == 2 == output.count("selected (BF16)")


def test_bench_of_q_beside_e4m3(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    options = ["bench", "--device", "cuda", "--runs", "3", "--no-peers", *SHAPE]
    assert main([*options, "--q-dtype", "BF16"]) == 0
    output = capsys.readouterr().out
    assert "selected (E4M3)" in output and "Q of BF16" in " ".join(output.split())
    assert main([*options, "--q-dtype", "E4M3", "--d-head", "320"]) == 2
    error = capsys.readouterr().err
    assert "no kernel in this library serves dtype" in error and "Q E4M3" in error


@pytest.mark.parametrize("scores", ["growing", "growing_once"])
def test_bench_of_scores_that_grow(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, scores: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    options = ["--runs", "2", "--no-peers", "--scores", scores]
    assert main(["bench", "--device", "cuda", *options, *SHAPE]) == 0
    output = capsys.readouterr().out
    assert "x ordinary scores" in output
    assert output.count("ordinary scores (BF16)") == 2 == output.count("selected (BF16)")


@pytest.mark.parametrize("mask", [[], ["--causal"]])
def test_bench_of_ragged_batches(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, mask: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    batches = ["--lengths", "500,30x1-200", "--lengths", "8x1:300-900,64:256"]
    shape = ["--heads", "4", "--heads-kv", "2", "--d-head", "64", "--runs", "2", *mask]
    assert main(["bench", "--device", "cuda", *batches, *shape]) == 0
    output = capsys.readouterr().out
    assert "x torch FA2" in output and "x one length" in output
    for label in ("selected (BF16)", "torch FA2 (FP16)", "one length (FP16)"):
        assert output.count(label) == 2


def test_bench_of_ragged_batches_by_chosen_kernels(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    options = ["--lengths", "9x1-200", "--heads", "4", "--runs", "2", "--no-peers"]
    assert main(["bench", "--device", "cuda", *options, "arch=SM80", "dtype=BF16"]) == 0
    output = capsys.readouterr().out
    assert "varlen" in output and "FP16" not in output and "torch FA2 (" not in output


def test_bench_notices_a_wrong_ragged_result(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(compare.RELATIVE_ERROR, "float16", 1e-9)
    assert main(["bench", "--device", "cuda", "--lengths", "90,20", "--runs", "2"]) == 1
    error = capsys.readouterr().err
    assert "selected (FP16) on 90,20: O is " in error and "BF16" not in error


def test_bench_of_chosen_kernels(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    filters = ["arch=SM80", "dtype=FP16", "d_head=64"]
    assert main(["bench", "--device", "cuda", "--runs", "2", "--no-peers", *SHAPE, *filters]) == 0
    output = capsys.readouterr().out
    assert "FP16, 64" in output and "BF16" not in output and "torch" not in output


@pytest.mark.parametrize(
    "options", [["progression"], ["progression_sm90"], ["progression_sm90", "--causal"]]
)
def test_progression_needs_its_kernels(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code = main(["bench", "--device", "cuda", "--seqlen", "256", "--set", *options])
    output = capsys.readouterr()
    if code == 0:
        assert "x step before" in output.out
    else:
        assert f'-DFLASH_KERNELS="ship {options[0]}"' in output.err


def test_bench_says_what_no_kernel_serves(capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", "--device", "cuda", "--d-head", "300", "--seqlen", "64"]) == 2
    assert "d_head 300" in capsys.readouterr().err
