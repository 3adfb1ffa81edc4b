"""Measuring on the device, and selection that follows measured results."""

from __future__ import annotations

import re
from pathlib import Path

import flashattn
import pytest
import torch
from flashattn import TUNING_HEADER
from flashattn.cli import main
from gpu_problems import configs_for, device_inputs, device_shapes
from problems import AttentionProblem
from subprocesses import run_python

P = AttentionProblem(2, 300, 300, 4, 2, 64, "bfloat16")
SHAPE = ["--seqlen", "200,500", "--heads", "4", "--d-head", "64", "dtype=BF16"]


@pytest.fixture
def estimated():
    """Selects by estimates alone, except for results that the test sets."""
    q, k, v = device_shapes(P)
    flashattn.set_tuning(TUNING_HEADER)
    yield flashattn.select_config(q, k, v)
    flashattn.set_tuning(None)


def test_measure_times_the_device_and_computes() -> None:
    q, k, v = device_inputs(P)
    configs, out = configs_for(P), torch.empty_like(q)
    seconds = flashattn.measure(q, k, v, configs, out=out, n_launches=5)
    assert len(seconds) == len(configs) and all(1e-6 < s < 1e-2 for s in seconds)
    torch.testing.assert_close(out, flashattn.flash_attn_func(q, k, v), atol=2e-2, rtol=2e-2)


def test_measure_takes_more_launches_than_a_queue_holds() -> None:
    q, k, v = device_inputs(P)
    configs = configs_for(P)[:2]
    seconds = flashattn.measure(q, k, v, configs, out=torch.empty_like(q), n_launches=1500)
    assert all(1e-6 < s < 1e-2 for s in seconds)


def test_time_grows_with_the_problem() -> None:
    times = []
    for seqlen in (512, 4096):
        q = torch.randn(1, seqlen, 8, 64, device="cuda", dtype=torch.float16)
        config = flashattn.select_config(q, q, q).config
        times += flashattn.measure(q, q, q, [config], out=torch.empty_like(q), n_launches=15)
    assert times[1] > 4 * times[0]


def test_measure_on_a_stream() -> None:
    q, k, v = device_inputs(P)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        assert flashattn.measure(q, k, v, configs_for(P), out=torch.empty_like(q), n_launches=2)


def test_a_capturing_stream_is_refused_and_stays_sound() -> None:
    q, k, v = device_inputs(P)
    out, configs = torch.empty_like(q), configs_for(P)[:1]
    flashattn.measure(q, k, v, configs, out=out)
    expected = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(ValueError, match="stream is capturing"):
            flashattn.measure(q, k, v, configs, out=out)
        flashattn.flash_attn_func(q, k, v, out=out, config=configs[0])
    out.zero_()
    graph.replay()
    torch.testing.assert_close(out, expected, atol=0, rtol=0)


def test_selection_follows_a_result(estimated: flashattn.Selection) -> None:
    q, k, v = device_shapes(P)
    rival = next(c for c in configs_for(P) if c != estimated.config)
    line = flashattn.tuning_line(q, k, v, rival, 1.5e-5)
    info = flashattn.device_info(flashattn.Device.CUDA_CURRENT)
    assert line == (
        f"cc={info.compute_capability} sms={info.n_multiprocessors} dtype=BF16 d_head=64 "
        f"features=none q=256 k=256 heads=8 ns=15000: {rival}"
    )
    flashattn.set_tuning(f"{TUNING_HEADER}\n{line}\n")
    followed = flashattn.select_config(q, k, v)
    if rival.arch == estimated.config.arch:
        assert followed.config == rival and "measured: 15000 ns" in followed.reason
    else:  # the family of the estimate was not measured
        assert followed == estimated
    invariant = flashattn.select_config(q, k, v, batch_invariant=True)
    assert "measured" not in invariant.reason
    with pytest.raises(NotImplementedError, match="BATCH_INVARIANT"):
        flashattn.tuning_line(q, k, v, rival, 1.5e-5, batch_invariant=True)
    assert "measured" not in flashattn.select_config(q, k, v, causal=True).reason


def test_tune_writes_what_a_later_process_follows(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path = str(tmp_path / "results.txt")
    assert main(["tune", "--launches", "3", "--output", path, *SHAPE]) == 0
    output = capsys.readouterr().out
    assert "TFLOP/s" in output and f"export FLASHATTN_TUNING={path}" in output
    code = (
        "import torch, flashattn; q = torch.empty(1, 200, 4, 64, device='cuda', "
        "dtype=torch.bfloat16); print(flashattn.select_config(q, q, q).reason)"
    )
    result = run_python("-c", code, FLASHATTN_TUNING=path)
    assert "measured: " in result.stdout and "given results" in result.stdout, result.stderr


@pytest.mark.parametrize(
    "cache, features", [(["--page-size", "16"], "varlen+paged"), (["--seqused"], "varlen")]
)
@pytest.mark.parametrize("dtype", ["BF16", "E4M3"])
def test_tune_measures_decoding(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: str,
    cache: list[str], features: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "results.txt"
    shape = ["--seqlen-q", "1", "--seqlen", "700", "--heads", "8", "--heads-kv", "2"]
    options = ["--launches", "3", "--cold", "--output", str(path), *shape, "--d-head", "64", *cache]
    assert main(["tune", *options, f"dtype={dtype}"]) == 0
    assert "SM80_DECODE" in capsys.readouterr().out
    lines = [line for line in path.read_text().splitlines() if "SM80_DECODE" in line]
    assert len(lines) == 1 and f"dtype={dtype} d_head=64 features={features} q=1 k=" in lines[0]


def test_tune_passes_over_prompts_of_a_type_that_only_decodes(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["tune", "--launches", "2", "--seqlen", "200", "--d-head", "64", "d_head=64"]) == 0
    output = capsys.readouterr().out
    shape = "E4M3, d_head 64, 200 queries, 200 keys, batch 1, heads 8/8: "
    assert bool(re.search(rf"{shape}\d+ kernels", output)) != (f"passed over: {shape}" in output)
