"""`bench-decode` without a GPU: its options, what it refuses, what it times of a batch, and the
table, the records and the picture that it makes of given times.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flashattn.cli import bench_decode, decode_times, main, mixes, read_floor
from flashattn.cli.ragged import RaggedBatch

Table = list[list[str]]
PNG = b"\x89PNG"

# ---- Batches ----


@pytest.mark.parametrize(
    "text, queries, lengths_q, lengths_k",
    [
        ("5,7", 1, [1, 1], [5, 7]),
        ("2x9,3-3", 4, [4, 4, 4], [9, 9, 3]),
        ("2x1:8,16:32", 3, [1, 1, 16], [8, 8, 32]),
    ],
)
def test_lengths_as_written(
    text: str, queries: int, lengths_q: list[int], lengths_k: list[int]
) -> None:
    assert mixes.parse(text, queries, seed=0) == RaggedBatch(text, lengths_q, lengths_k)


def test_names_of_mixes() -> None:
    ragged, skewed, mixed = (mixes.parse(name, 1, seed=0) for name in ("ragged", "skewed", "mixed"))
    assert len(ragged.lengths_k) == 64 and max(ragged.lengths_k) > 4096 > min(ragged.lengths_k)
    assert len(skewed.lengths_k) == 64 and sorted(skewed.lengths_k)[-2:][1] == 32768
    assert max(skewed.lengths_k[:63]) <= 500
    assert mixed.lengths_q == [1] * 60 + [2048] * 2 and mixed.lengths_k[60:] == [2048, 4096]
    assert [mixes.is_mixed(batch) for batch in (ragged, skewed, mixed)] == [False, False, True]
    assert mixes.few_and_many(mixed) == (list(range(60)), [60, 61])


def test_a_seed_gives_the_same_lengths() -> None:
    assert mixes.parse("ragged", 1, seed=5) == mixes.parse("ragged", 1, seed=5)
    assert mixes.parse("ragged", 1, seed=5) != mixes.parse("ragged", 1, seed=6)


def test_lengths_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("# of a day\n300, 2x7\n\n16:64  # a chunk\n")
    batch = mixes.parse(f"@{path}", 1, seed=0)
    assert (batch.lengths_q, batch.lengths_k) == ([1, 1, 1, 16], [300, 7, 7, 64])


def test_only_caches_of_one_length_are_uniform() -> None:
    assert mixes.is_uniform(mixes.uniform(3, 100, 2))
    assert not mixes.is_uniform(mixes.parse("100,101", 1, seed=0))
    assert not mixes.is_uniform(mixes.parse("1:64,2:64", 1, seed=0))


@pytest.mark.parametrize(
    "options, complaint",
    [
        (["--caches", "4"], "--caches 4: each is BATCHxKEYS"),
        (["--caches", "0x4"], "batches and keys are at least 1"),
        (["--batches", "2"], "--batches and --contexts go together"),
        (["--heads", "8/3"], "--heads 8/3"),
        (["--heads", "eight"], "'eight' is not HEADS/HEADS_KV"),
        (["--queries", "0"], "at least 1"),
        (["--page-size", "16,0"], "at least 1"),
        (["--lengths", "1k"], "--lengths: '1:1k'"),
        (["--lengths", "5-3"], "the range 5-3 is empty"),
        (["--lengths", "@absent.txt"], "absent.txt"),
        (["--lengths", "5", "--seed", "-1"], "--seed is -1"),
        (["--lengths", "5,7", "--plot", "x.png"], "--plot draws caches of one length"),
    ],
)
def test_bad_options_are_named(
    capsys: pytest.CaptureFixture, options: list[str], complaint: str
) -> None:
    assert main(["bench-decode", *options]) == 2
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1


def test_an_empty_file_of_lengths_is_refused(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("# nothing\n")
    assert main(["bench-decode", "--lengths", f"@{tmp_path / 'none.txt'}"]) == 2
    assert "the file has no lengths" in capsys.readouterr().err


# ---- What is timed ----

# Microseconds; those of pages and parts are times these.
OWN, FA3, TORCH, FLOOR = 10.0, 20.0, 15.0, 8.0
FACTORS = {"known": 1, "lengths": 2, "page": 3, "few": 1, "many": 4}


@dataclass(frozen=True)
class FakeProblem:
    cache: str
    used: object = True

    def part(self, sequences: list[int]) -> FakeProblem:
        return FakeProblem("few" if len(sequences) > 1 else "many")


class FakeCaches:
    n_bytes, kv = 1_000_000, None

    def __init__(self, batch: RaggedBatch, *_: object) -> None:
        self.batch = batch

    def known(self) -> FakeProblem:
        return FakeProblem("known", used=None)

    def with_lengths(self) -> FakeProblem:
        return FakeProblem("lengths")

    def in_pages(self, _size: int) -> FakeProblem:
        return FakeProblem("page")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., Table]:
    """Returns the cells that `bench-decode` prints on a device with its own clock, heads first."""
    spent: list[float] = []

    def takes(microseconds: float) -> Callable[[], None]:
        return lambda: spent.append(microseconds)

    def median_seconds(calls: list, _runs: int) -> list[float]:
        times = []
        for call in calls:
            spent.clear()
            call()
            times.append(sum(spent) * 1e-6)
        return times

    serving = SimpleNamespace(
        own=lambda p, **_: takes(OWN * FACTORS[p.cache]),
        fa3=lambda p: takes(FA3 * FACTORS[p.cache]),
    )
    monkeypatch.setattr(decode_times, "Caches", FakeCaches)
    monkeypatch.setattr(decode_times, "serving_calls", serving)
    monkeypatch.setattr(decode_times, "_torch_calls", lambda _: {"cuDNN": takes(TORCH)})
    monkeypatch.setattr(decode_times.bench_cuda, "cold_median_seconds", median_seconds)
    floors = [takes(FLOOR), takes(2 * FLOOR)]
    monkeypatch.setattr(decode_times.read_floor, "calls", lambda *_: floors)
    monkeypatch.setattr(bench_decode.gpu, "require", lambda _: SimpleNamespace(name="a GPU"))
    monkeypatch.setattr(bench_decode.extras, "require", lambda *_: None)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*options: str) -> Table:
        assert main(["bench-decode", *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        rows = [line for line in lines if re.search("[│┃]", line)]
        return [[cell.strip() for cell in re.split("[│┃]", row)[1:-1]] for row in rows]

    return run


def test_a_row_for_each_kind_of_cache(bench: Callable[..., Table]) -> None:
    head, *rows = bench("--caches", "4x100", "--page-size", "64,16")
    assert head == [
        "batch x keys", "cache", "us", "GB/s", "floor us", "x floor", "FA3 us", "cuDNN us",
        "x best peer",
    ]  # fmt: skip
    assert rows == [
        ["4 x 100", "known", "10.0", "100", "8.0", "1.250", "", "15.0", "1.500"],
        ["4 x 100", "lengths", "20.0", "50", "8.0", "2.500", "40.0", "", "2.000"],
        ["4 x 100", "page 64", "30.0", "33", "8.0", "3.750", "60.0", "", "2.000"],
        ["4 x 100", "page 16", "30.0", "33", "8.0", "3.750", "60.0", "", "2.000"],
    ]


def test_parts_of_a_mixed_batch_are_timed_alone_and_after_each_other(
    bench: Callable[..., Table],
) -> None:
    _, *rows = bench("--lengths", "3x1:100,16:100", "--page-size", "64")
    found = {row[1]: [row[2], row[4], row[6], row[7]] for row in rows}
    assert found == {
        "lengths": ["20.0", "8.0", "40.0", "2.000"],
        "page 64": ["30.0", "8.0", "60.0", "2.000"],
        "page 64 decodes": ["10.0", "", "20.0", "2.000"],
        "page 64 chunks": ["40.0", "", "80.0", "2.000"],
        "page 64 apart": ["50.0", "8.0", "100.0", "1.200"],  # FA3's one call takes less
    }
    rates = {row[1]: row[3] for row in rows}
    assert rates["page 64 decodes"] == "75" and rates["page 64"] == "33"  # 3 of 4 caches


def test_batches_and_contexts_are_crossed(bench: Callable[..., Table]) -> None:
    _, *rows = bench("--batches", "1,2", "--contexts", "64,32", "--page-size", "")
    names = [row[0] for row in rows if row[1] == "known"]
    assert names == ["1 x 64", "1 x 32", "2 x 64", "2 x 32"]
    _, *rows = bench("--batches", "1", "--contexts", "64", "--caches", "3x5", "--lengths", "7,9")
    assert list(dict.fromkeys(row[0] for row in rows)) == ["1 x 64", "3 x 5", "7,9"]


def test_a_table_for_each_number_of_heads(bench: Callable[..., Table]) -> None:
    cells = bench("--caches", "1x8", "--heads", "8/2,4/4", "--page-size", "16")
    assert [row[0] for row in cells].count("batch x keys") == 2 and len(cells) == 8


def test_without_peers_and_without_the_floor(
    bench: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_times.read_floor, "calls", lambda *_: [])
    head, *_ = bench("--caches", "1x8", "--no-peers")
    assert head == ["batch x keys", "cache", "us", "GB/s"]


def test_a_problem_that_no_kernel_serves(
    bench: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = decode_times.serving_calls.own
    no_pages = {"own": lambda p, **o: None if p.cache == "page" else own(p, **o)}
    monkeypatch.setattr(
        decode_times,
        "serving_calls",
        SimpleNamespace(fa3=decode_times.serving_calls.fa3, **no_pages),
    )
    _, *rows = bench("--caches", "1x8", "--page-size", "16")
    assert rows[-1] == ["1 x 8", "page 16", "none serves", "", "8.0", "", "60.0", "", ""]


def test_records(bench: Callable[..., Table], tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    bench("--caches", "2x8", "--heads", "8/2", "--page-size", "16", "--json", str(path))
    results = json.loads(path.read_text())
    assert results["title"] == "1 query, d_head 128, BF16, a GPU"
    first, *_ = results["rows"]
    assert first.pop("seconds") == pytest.approx({"own": 1e-5, "cuDNN": 1.5e-5})
    assert first == {
        "batch": "2 x 8", "sequences": 2, "keys": 16, "queries": 2, "heads": 8, "heads_kv": 2,
        "cache": "known", "bytes": 1_000_000, "floor_seconds": pytest.approx(8e-6),
    }  # fmt: skip


def test_the_picture_has_a_panel_for_each_batch(
    bench: Callable[..., Table], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn = []
    draw = bench_decode.plot.draw_panels
    monkeypatch.setattr(bench_decode.plot, "draw_panels", lambda *a: (drawn.append(a[1]), draw(*a)))
    path = tmp_path / "rates.png"
    caches = ["--batches", "1,2,3,5", "--contexts", "64,32", "--lengths", "7,9"]
    bench(*caches, "--page-size", "16", "--plot", str(path))
    assert path.read_bytes().startswith(PNG)
    (panels,) = drawn
    assert [panel.title for panel in panels] == ["batch 1", "batch 2", "batch 3", "batch 5"]
    lines = {line.label: line for line in panels[0].lines}
    assert list(lines) == [
        "libflashattn, known", "cuDNN, known", "reading alone", "libflashattn, lengths",
        "FA3, lengths", "libflashattn, page 16", "FA3, page 16",
    ]  # fmt: skip
    assert list(lines["reading alone"].x) == [32, 64]
    assert list(lines["libflashattn, known"].y) == pytest.approx([100] * 2)
    assert [line.kind for line in lines.values()][-2:] == ["page 16"] * 2


# ---- The floor ----


def test_no_floor_where_its_library_is_not_there() -> None:
    path = Path(read_floor.library()._name).with_name("libflashattn_read_floor.so")
    if path.exists():
        pytest.skip("it is there")
    assert read_floor.calls(None, 1024) == []


FLOOR_OF_THREE_WAYS = """
#include <stdint.h>
#include <stddef.h>
int flashattn_read_floor_shapes(void) { return 3; }
/* The second way is not for this device. */
int flashattn_read_floor(int shape, const char *memory, int64_t bytes, int64_t *sink, void *stream)
{
    if (shape == 1)
        return 801;
    *sink += stream == NULL ? memory[bytes - 1] : 0;
    return bytes == 96 ? 0 : 1;
}
"""


def test_the_floor_has_the_ways_that_the_device_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "floor.c"
    source.write_text(FLOOR_OF_THREE_WAYS)
    output = tmp_path / "libflashattn_read_floor.so"
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", output], check=True)
    stream = SimpleNamespace(cuda_stream=None)
    torch = SimpleNamespace(uint8=None, cuda=SimpleNamespace(current_stream=lambda: stream))
    library = SimpleNamespace(_name=str(tmp_path / "libflashattn.so"))
    monkeypatch.setattr(read_floor, "library", lambda: library)
    monkeypatch.setattr(read_floor.extras, "load", lambda _: torch)
    memory = FakeMemory(np.full(100, 7, np.uint8))
    calls = read_floor.calls(memory, 100)  # whole loads of 16 bytes: 96
    assert len(calls) == 2 and memory.sink[0] == 2 * 7
    for call in calls:
        call()
    assert memory.sink[0] == 4 * 7
    assert read_floor.calls(memory, 15) == []


class FakeMemory:
    """Has what the benchmark uses of a torch tensor."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.sink: np.ndarray | None = None

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def new_zeros(self, n: int) -> FakeMemory:
        self.sink = np.zeros(n, np.int64)
        return FakeMemory(self.sink)

    def view(self, _dtype: object) -> FakeMemory:
        return self
