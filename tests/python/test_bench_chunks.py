"""`bench-chunks` without a GPU: its options, what it refuses, and how it prints given times."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from flashattn.cli import bench_chunks, main
from flashattn.cli.bench_chunks import Chunks
from flashattn.cli.serving_calls import Heads

Table = list[list[str]]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., Table]:
    """Returns the cells that `bench-chunks` prints, heads first. The library takes 1 ms for
    contiguous keys and 2 for pages, FA3 always 3, and cold launches a second more."""

    class Caches:
        def __init__(self, *_: object) -> None:
            pass

        def known(self) -> int:
            return 1

        def with_lengths(self) -> int:
            return 1

        def in_pages(self, page_size: int) -> int | None:
            return None if page_size == 5 else 2

    serving = SimpleNamespace(
        own=lambda p: p and (lambda: p * 1e-3),
        fa3=lambda p: lambda: 3e-3,
        parse_heads=bench_chunks.serving_calls.parse_heads,
    )
    monkeypatch.setattr(bench_chunks, "Caches", Caches)
    monkeypatch.setattr(bench_chunks, "serving_calls", serving)
    clock = bench_chunks.bench_cuda
    monkeypatch.setattr(clock, "median_seconds", lambda calls, *_: [call() for call in calls])
    monkeypatch.setattr(
        clock, "cold_median_seconds", lambda calls, _: [call() + 1 for call in calls]
    )
    monkeypatch.setattr(bench_chunks.gpu, "require", lambda _: SimpleNamespace(name="a GPU"))
    monkeypatch.setattr(bench_chunks.extras, "require", lambda *_: None)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*options: str) -> Table:
        assert main(["bench-chunks", *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        rows = [line for line in lines if re.search("[│┃]", line)]
        return [[cell.strip() for cell in re.split("[│┃]", row)[1:-1]] for row in rows]

    return run


def test_pages_beside_contiguous_keys_and_the_peer(bench: Callable[..., Table]) -> None:
    head, *rows = bench("--chunks", "2x1000:1000@8/2x64", "--page-size", "16,5")
    assert head == [
        "batch x queries over keys, heads, d_head", "cache", "ms", "TFLOP/s", "x contiguous",
        "FA3 TFLOP/s", "x FA3",
    ]  # fmt: skip
    name = "2 x 1000 over 1000, 8/2, 64"  # 2.05 billion operations
    assert rows == [
        [name, "contiguous", "1.0000", "2.1", "1.000", "0.7", "3.000"],
        [name, "page 16", "2.0000", "1.0", "0.500", "0.7", "1.500"],
        [name, "page 5", "none serves", "", "", "0.7", ""],
    ]


def test_without_peers_and_cold(bench: Callable[..., Table]) -> None:
    head, *rows = bench("--chunks", "1x8:8", "--page-size", "16", "--no-peers", "--cold")
    assert head[-1] == "x contiguous" and [row[2] for row in rows] == ["1001.0000", "1002.0000"]


def test_default_chunks_and_pages(bench: Callable[..., Table]) -> None:
    _, *rows = bench()
    assert len(rows) == 7 * (1 + 7)
    assert rows[0][0] == "4 x 4096 over 4096, 32/8, 128"
    assert rows[-1][0] == "4 x 4096 over 4096, 8/4, 256"


def test_records(bench: Callable[..., Table], tmp_path: Path) -> None:
    path = tmp_path / "chunks.json"
    bench("--chunks", "1x2:4", "--page-size", "16", "--heads", "4/2", "--json", str(path))
    results = json.loads(path.read_text())
    assert results["title"] == "chunks, BF16, warm, a GPU"
    assert results["rows"][1] == {
        "batch": 1, "queries": 2, "keys": 4, "heads": 4, "heads_kv": 2, "d_head": 128,
        "cache": "page 16", "operations": 4 * 4 * 128 * 7, "seconds": {"own": 2e-3, "FA3": 3e-3},
    }  # fmt: skip


def test_operations_are_those_that_the_mask_leaves() -> None:
    square = Chunks("", 2, 4, 4, Heads(3, 1), 8)
    assert square.operations == 4 * 3 * 8 * 2 * (1 + 2 + 3 + 4)
    assert Chunks("", 1, 2, 10, Heads(1, 1), 1).operations == 4 * (9 + 10)


@pytest.mark.parametrize(
    "options, complaint",
    [
        (["--chunks", "4x4"], "'4x4' is not BxQUERIES:KEYS"),
        (["--chunks", "4x4:8@3"], "'4x4:8@3' is not"),
        (["--chunks", "4x0:8"], "sizes are at least 1"),
        (["--chunks", "4x4:8@6/4"], "--heads 6/4"),
        (["--heads", "8/2,4/2"], "only one here"),
        (["--page-size", "16,0"], "at least 1"),
        (["--runs", "0"], "at least 1"),
    ],
)
def test_bad_options_are_named(
    capsys: pytest.CaptureFixture, options: list[str], complaint: str
) -> None:
    assert main(["bench-chunks", *options]) == 2
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1
