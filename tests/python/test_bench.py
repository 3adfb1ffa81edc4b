"""`bench` on the CPU: its table and picture, and what it refuses before it measures."""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import flashattn
import numpy as np
import pytest
from complaints import assert_complains
from flashattn import DType
from flashattn.cli import bench, bench_cpu_peers, extras, main, memory, plot, problem, rates, words
from flashattn.cli.timing import SELECTED, Timing

SMALL = ["--seqlen", "16,33", "--heads", "2", "--d-head", "16", "--runs", "1"]
PNG = b"\x89PNG"


@pytest.fixture(autouse=True)
def wide_and_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Room for a column for every peer that is installed, and a folder of the test's own."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


# ---- The table ----


def test_bench(capsys) -> None:
    code = main(["bench", *SMALL, "--causal", "--heads-kv", "1", "--plot", "speed.png"])
    output = capsys.readouterr().out
    assert code == 0 and Path("speed.png").read_bytes().startswith(PNG)
    for part in ("selected (FP16)", "selected (FP32)", "numpy", "GFLOP/s", "causal"):
        assert part in output


def test_bench_of_chosen_kernels(capsys) -> None:
    code = main(["bench", *SMALL, "--no-numpy", "--threads", "1", "arch=REFERENCE", "dtype=FP32"])
    output = capsys.readouterr().out
    assert code == 0 and "REFERENCE" in output and "1 thread" in output
    assert "1 threads" not in output
    assert "numpy" not in output.replace("x numpy", "") and "BF16" not in output


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_0"])
def test_bench_of_quantised_blocks(dtype: str, capsys) -> None:
    chosen = [f"dtype={dtype}", "arch=REFERENCE", "--no-peers"]
    assert main(["bench", *SMALL, "--d-head", "32", "--d-head-v", "64", *chosen]) == 0
    assert f"REFERENCE ({dtype}" in capsys.readouterr().out.replace("\n", "")
    assert main(["bench", *SMALL, "--d-head", "40", *chosen]) == 2
    assert "--d-head is 40: a multiple of 32" in capsys.readouterr().err


@pytest.mark.parametrize("q_dtype", ["E4M3", "fp32", "BF16"])
def test_bench_of_a_q_of_another_type(q_dtype: str, capsys, monkeypatch) -> None:
    seen = set()
    attention = bench.flash_attn_func
    monkeypatch.setattr(
        bench,
        "flash_attn_func",
        lambda q, k, v, *, out, **options: (
            seen.add((q.dtype.name, k.dtype.name, out.dtype.name))
            or attention(q, k, v, out=out, **options)
        ),
    )
    assert main(["bench", *SMALL, "--no-peers", "--q-dtype", q_dtype]) == 0
    output = capsys.readouterr().out
    assert "selected (E4M3)" in output and "(FP16)" not in output
    assert f"Q of {q_dtype.upper()}" in " ".join(output.split())
    of_q = problem.NUMPY_NAME[DType[q_dtype.upper()]]
    assert seen == {(of_q, "float8_e4m3fn", "bfloat16" if "8" in of_q else of_q)}


def test_bench_with_chunks_and_padding(capsys) -> None:
    """numpy has chunks too; padding is for the library alone."""
    options = [*SMALL, "--attention-chunk", "8", "dtype=FP32", "arch=REFERENCE"]
    assert main(["bench", *options]) == 0
    output = capsys.readouterr().out
    assert "chunks of 8, " in output and "numpy (three steps)" in output
    assert main(["bench", *options, "--leftpad-k", "5"]) == 0
    output = capsys.readouterr().out
    assert "chunks of 8, 5 keys of padding" in output and "numpy" not in output


def test_the_title_has_the_processor_the_queries_and_the_threads(capsys) -> None:
    options = [*SMALL, "--no-peers", "--threads", "2", "dtype=FP32"]
    assert main(["bench", *options]) == 0
    title = capsys.readouterr().out.splitlines()[0]
    assert flashattn.device_info().name in title
    assert "as many queries as keys" in title and "2 threads" in title
    assert main(["bench", *options, "--seqlen-q", "1"]) == 0
    assert "1 query, " in capsys.readouterr().out.splitlines()[0]


def test_decoding_is_rated_by_the_bytes_it_reads(capsys) -> None:
    assert main(["bench", *SMALL, "--no-peers", "--seqlen-q", "2", "dtype=FP32"]) == 0
    output = capsys.readouterr().out
    assert "GB/s" in output and "FLOP/s" not in output


def _options(**changes: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    args = parser.parse_args(["bench", "--batch", "3", "--heads", "8", "--heads-kv", "2"])
    return argparse.Namespace(**{**vars(args), **changes})


def test_work() -> None:
    """Of 3 sequences of 100 keys, 8 and 2 heads, d_head 128."""
    full = 4 * 3 * 8 * 100 * 100 * 128
    for causal, operations in ((False, full), (True, full / 2)):
        assert rates.work(DType.BF16, 100, _options(causal=causal)) == operations
    assert rates.unit(_options()) == ("GFLOP/s", 1e9)
    assert rates.unit(_options(device="cuda")) == ("TFLOP/s", 1e12)
    most = rates.MOST_DECODE_QUERIES
    assert rates.unit(_options(seqlen_q=most)) == ("GB/s", 1e9)
    assert rates.unit(_options(seqlen_q=most + 1)) == ("GFLOP/s", 1e9)
    elements = 2 * 3 * 100 * 2 * 128  # of K and V
    for dtype, size in ((DType.E4M3, 1), (DType.BF16, 2), (DType.FP16, 2), (DType.FP32, 4)):
        assert rates.work(dtype, 100, _options(seqlen_q=1, causal=True)) == elements * size
    assert rates.work(DType.BF16, 100, _options(d_head=192, d_head_v=64)) == full
    narrow_v = _options(seqlen_q=1, d_head=192, d_head_v=64)
    assert rates.work(DType.BF16, 100, narrow_v) == elements * 2
    window = _options(seqlen_q=5, window=(20, 0))
    assert rates.work(DType.E4M3, 100, window) == elements * 25 / 100
    for chunk, n_keys in ((30, 10), (33, 34), (1000, 100)):  # queries 95 to 99 of 100 places
        chunks = _options(seqlen_q=5, attention_chunk=chunk)
        assert rates.work(DType.E4M3, 100, chunks) == elements * n_keys / 100
    padded = _options(seqlen_q=5, leftpad_k=10, attention_chunk=30)
    assert rates.work(DType.E4M3, 100, padded) == elements * 30 / 100  # of 90 keys, the last 30
    assert rates.work(DType.BF16, 100, _options(leftpad_k=20)) == full * 80 / 100
    assert rates.work(DType.BF16, 100, _options(leftpad_k=20, causal=True)) == full * 0.32


# ---- Arguments ----


@pytest.mark.parametrize(
    "options, parts",
    [
        (["--runs", "0"], ["--runs is 0"]),
        (["--seqlen", "0"], ["--seqlen is 0"]),
        (["--heads", "3", "--heads-kv", "2"], ["n_heads is 3"]),
        (["--d-head-v", "0"], ["--d-head-v is 0: at least 1"]),
        (["--threads", "-1"], ["-1"]),
        (["--tokens", "7"], ["--tokens is 7: at least --seqlen, 8"]),
        (["--tokens", "64", "--batch", "2"], ["--tokens and --batch"]),
        (["--softcap", "-1", "arch=REFERENCE"], ["softcap is -1: it must be finite and"]),
        (["--attention-chunk", "-1", "arch=REFERENCE"], ["attention_chunk is -1"]),
        (["--leftpad-k", "-1"], ["--leftpad-k is -1: at least 0, and less than --seqlen"]),
        (["--leftpad-k", "8"], ["--leftpad-k is 8: at least 0, and less than --seqlen"]),
        (["B_r=999"], ["no kernel"]),
        (["dtype=7up"], ["dtype=7up"]),
        (["--q-dtype", "E4M3", "dtype=FP16"], ["--q-dtype goes with K and V of E4M3, not FP16"]),
        (["--plot", "absent/x.png"], ["absent/x.png", "there is no folder"]),
        (["--plot", "x.bmp"], ["x.bmp", ".png, .svg, .pdf"]),
        (["--plot", "x"], ["x: cannot be written", ".png, .svg, .pdf"]),
        (["--plot", "dtype=FP32"], ["dtype=FP32: cannot be written"]),
        (["--plot", "folder.png"], ["folder.png", "it is a folder"]),
    ],
    ids=str,
)
def test_bench_complains(options: list[str], parts: list[str], capsys, monkeypatch) -> None:
    Path("folder.png").mkdir()
    monkeypatch.setattr(bench, "_median_seconds", lambda *_: pytest.fail("it measures"))
    assert_complains(capsys, main(["bench", "--runs", "1", "--seqlen", "8", *options]), *parts)


# ---- Packages ----


def _hide(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize(
    "hidden, options, named",
    [
        (["rich"], [], "the package rich: pip install rich, or pip install 'flashattn[cli]'"),
        (["matplotlib"], ["--plot"], "the package matplotlib: pip install matplotlib, or"),
        (
            ["rich", "ml_dtypes", "matplotlib"],
            ["--plot"],
            "the packages rich, ml_dtypes, matplotlib: pip install rich ml_dtypes matplotlib, or",
        ),
        (["rich", "ml_dtypes", "matplotlib"], ["dtype=FP32"], "the package rich:"),
    ],
)
def test_missing_packages_are_named_together(
    hidden: list[str], options: list[str], named: str, capsys, monkeypatch
) -> None:
    _hide(monkeypatch, *hidden)
    assert_complains(capsys, main(["bench", *SMALL, *options]), named)


def test_packages_that_are_not_needed_are_not_asked_for(capsys, monkeypatch) -> None:
    _hide(monkeypatch, "matplotlib", "ml_dtypes", "torch")
    assert main(["bench", *SMALL, "--no-peers", "dtype=FP32"]) == 0


def test_torch_is_not_among_the_extras(monkeypatch) -> None:
    _hide(monkeypatch, "torch", "rich")
    with pytest.raises(extras.BadInput, match="packages torch, rich: pip install torch rich$"):
        extras.require("torch", "rich")


@pytest.mark.parametrize("command", ["tune --device cpu", "check"])
def test_other_commands_name_theirs(command: str, capsys, monkeypatch) -> None:
    _hide(monkeypatch, "ml_dtypes")
    assert_complains(capsys, main(command.split()), "the package ml_dtypes")


def test_arguments_are_checked_before_packages_are_missed(capsys, monkeypatch) -> None:
    _hide(monkeypatch, *extras.OF_CLI)
    assert_complains(capsys, main(["bench", "--seqlen", "0"]), "--seqlen is 0")
    assert_complains(capsys, main(["bench", "--plot", "x"]), "x: cannot be written")
    assert_complains(capsys, main(["bench", "B_r=999"]), "no kernel")
    assert_complains(capsys, main(["tune", "--device", "cpu", "--cold"]), "--cold")
    assert_complains(capsys, main(["bench-decode", "--queries", "0"]), "queries")
    assert_complains(capsys, main(["bench-chunks", "--chunks", "x"]), "--chunks")


# ---- Memory ----


def test_a_problem_beyond_the_memory_is_refused_before_any_is_measured(capsys, monkeypatch) -> None:
    monkeypatch.setattr(bench, "_median_seconds", lambda *_: pytest.fail("it measures"))
    code = main(["bench", "--seqlen", "16,100000000000", "dtype=FP32"])
    assert_complains(
        capsys, code, "Q, K, V and O of FP32", "100000000000 keys", "take 1.5 PiB", "memory left"
    )


@pytest.mark.parametrize("command", ["bench", "tune --device cpu"])
def test_what_is_left_of_the_memory_counts(command: str, capsys, monkeypatch) -> None:
    monkeypatch.setattr(memory, "available", lambda device: 3 << 20 if device == "cpu" else 0)
    code = main([*command.split(), "--seqlen", "5000", "--heads", "1", "dtype=FP32"])
    assert_complains(capsys, code, "take 9.8 MiB, and the machine has 3.0 MiB of memory left")


def test_numpy_is_left_out_where_its_scores_do_not_fit(capsys, monkeypatch) -> None:
    monkeypatch.setattr(memory, "available", lambda _: 500_000)
    options = ["--seqlen", "16,256", "--heads", "2", "--d-head", "16", "--runs", "1", "dtype=FP32"]
    assert main(["bench", *options, "arch=REFERENCE"]) == 0
    output = capsys.readouterr()
    assert output.out.count("numpy (three steps)") == 1
    (line,) = output.err.splitlines()
    assert line.startswith("flashattn: numpy is left out at 256 keys: its scores take 1.0 MiB")


def test_available_memory() -> None:
    left = memory.available("cpu")
    assert left is None or 1 << 20 < left < 1 << 50


def test_memory_that_torch_keeps_for_itself_counts_as_left(monkeypatch) -> None:
    cuda = SimpleNamespace(
        mem_get_info=lambda: (100, 500), memory_reserved=lambda: 50, memory_allocated=lambda: 20
    )
    monkeypatch.setattr(memory.extras, "load", lambda _: SimpleNamespace(cuda=cuda))
    assert memory.available("cuda") == 130
    memory.require(130, "Q", "cuda")
    with pytest.raises(extras.BadInput, match="Q take 131 bytes, and the GPU has 130 bytes"):
        memory.require(131, "Q", "cuda")


def test_memory_that_cannot_be_read_refuses_nothing(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_MEMORY_FILE", tmp_path / "absent")
    assert memory.available("cpu") is None
    memory.require(1 << 60, "all that there is", "cpu")
    q = np.zeros((1, 4, 2, 16), np.float32)
    options = problem.mask_options(_options())
    assert bench_cpu_peers.make_call("numpy (three steps)", q, q, q, options) is not None


# ---- The picture ----


def test_the_picture_has_a_name_of_its_own(capsys) -> None:
    assert main(["bench", *SMALL, "--no-peers", "dtype=FP32", "--plot"]) == 0
    assert Path("bench.png").read_bytes().startswith(PNG)
    assert "bench.png written" in capsys.readouterr().out


@pytest.mark.parametrize("ending", plot.ENDINGS)
def test_every_ending_is_written(ending: str) -> None:
    path = Path(f"picture{ending}")
    plot.draw(str(path), [_timing("a", 8)], "title", "GB/s")
    assert path.stat().st_size > 1000


def _timing(label: str, seqlen: int, *, is_peer: bool = False) -> Timing:
    return Timing(label, "FP32", seqlen, seconds=1.0, rate=float(seqlen), is_peer=is_peer)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list:
    """What would be written."""
    drawn: list = []
    monkeypatch.setattr(plot, "_save", lambda figure, _: drawn.append(figure))
    return drawn


LONG = "REFERENCE (FP32, any, 16, 1): causal+window+softcap+varlen+paged+bias"


def test_names_are_beside_the_lines_and_apart(figures: list) -> None:
    labels = (LONG, "numpy (three steps)", "torch (SDPA, FP32)", f"{SELECTED} (FP32)")
    timings = [_timing(x, n, is_peer=x[0] in "nt") for x in labels for n in (64, 32, 128)]
    plot.draw("x.png", timings, "title", "GB/s")
    (figure,) = figures
    (axes,) = figure.axes
    figure.canvas.draw()
    names = [text.get_text().rpartition("  ")[0] for text in axes.texts]
    assert names == [LONG, "numpy, FP32", "torch, FP32", "libflashattn, FP32"]
    boxes = [text.get_window_extent() for text in axes.texts]
    edge = axes.get_window_extent()
    assert all(box.x0 >= edge.x1 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert axes.get_ylabel() == "GB/s" and list(axes.lines[0].get_xdata()) == [32, 64, 128]


def test_a_colour_is_a_type_and_a_dash_a_library(figures: list) -> None:
    labels = {"selected (FP16)": "FP16", "selected (BF16)": "BF16", "FA3 (FP16)": "FP16"}
    timings = [
        Timing(label, dtype, n, seconds=1.0, rate=1.0, is_peer=label[0] == "F")
        for label, dtype in labels.items()
        for n in (64, 128)
    ]
    plot.draw("x.png", timings, "title", "GB/s")
    fp16, bf16, peer = figures[0].axes[0].lines
    assert fp16.get_color() == peer.get_color() != bf16.get_color()
    assert fp16.get_linestyle() == bf16.get_linestyle() == "-" != peer.get_linestyle()
    assert fp16.get_label() == "libflashattn, FP16"


def test_the_heading_names_library_version_and_machine(figures: list) -> None:
    heading = plot.heading("a processor", "batch 1")
    assert heading == f"libflashattn {flashattn.version()} on a processor\nbatch 1"
    plot.draw("x.png", [_timing("a", 8)], heading, "GB/s")
    assert figures[0].get_suptitle() == heading


def test_the_legend_is_beside_the_panels(figures: list) -> None:
    lines = [
        plot.Line("libflashattn, known", "known", True, [1, 2], [3, 4]),
        plot.Line("FA3, known", "known", False, [1, 2], [3, 4]),
        plot.Line("libflashattn, page 1", "page 1", True, [1, 2], [3, 5]),
    ]
    panels = [plot.Panel("first", lines), plot.Panel("second", lines)]
    plot.draw_panels("x.png", panels, "title", "keys", "GB/s")
    (figure,) = figures
    figure.canvas.draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [line.label for line in lines]
    box = legend.get_window_extent()
    assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)
    known, peer, page = figure.axes[1].lines
    assert known.get_color() == peer.get_color() != page.get_color()
    assert known.get_linestyle() == page.get_linestyle() == "-" != peer.get_linestyle()


def test_one_length_makes_bars(figures: list) -> None:
    plot.draw("x.png", [_timing(LONG, 64), _timing("peer", 64, is_peer=True)], "title", "GB/s")
    (axes,) = figures[0].axes
    assert len(axes.patches) == 2 and not axes.lines and not figures[0].legends
    assert axes.get_xlabel() == "GB/s at 64 keys"
    assert [label.get_text() for label in axes.get_yticklabels()] == [LONG, "peer, FP32"]


# ---- Words ----


def test_words() -> None:
    assert words.count(1, "kernel") == "1 kernel" and words.count(0, "kernel") == "0 kernels"
    assert words.count(2, "query", "queries") == "2 queries"
    sizes = {0: "0 bytes", 1023: "1023 bytes", 1024: "1.0 KiB", 3 << 29: "1.5 GiB"}
    assert {n: words.size(n) for n in sizes} == sizes
    assert words.size(5 << 70) == "5120.0 EiB"
