"""`bench-decode` and `bench-chunks` on a device time the same attention in every kind of cache."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch
from flashattn.cli import main, mixes, read_floor, serving_calls
from flashattn.cli.serving_calls import Caches, Heads, Problem

HEADS = Heads(8, 2)
PAGE_SIZES = [7, 16]
DTYPES = ("FP16", "BF16", "E4M3")


def _caches(lengths: str, dtype: str) -> Caches:
    batch = mixes.parse(lengths, 1, seed=0)
    return Caches(batch, HEADS, PAGE_SIZES, argparse.Namespace(dtype=dtype, d_head=64))


def _compute(p: Problem) -> torch.Tensor:
    """[tokens, n_heads, d_head]"""
    return serving_calls.own(p)().flatten(0, -3).float()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_of_cache_holds_the_same_keys(dtype: str) -> None:
    caches = _caches("5x300", dtype)
    expected = _compute(caches.known())
    assert expected.isfinite().all() and expected.abs().max() > 0.01
    in_pages = _copied_to_pages(caches)
    for p in (caches.with_lengths(), *in_pages):
        torch.testing.assert_close(_compute(p), expected, atol=2e-2, rtol=2e-2)


def _copied_to_pages(caches: Caches) -> list[Problem]:
    """in_pages() names random places: the keys are put there."""
    found = []
    dense = [x.clone() for x in caches.kv]
    for size in PAGE_SIZES:
        p = caches.in_pages(size)
        for pool, source in zip((p.k, p.v), dense):
            pages = pool.clone()
            for b, keys in enumerate(caches.batch.lengths_k):
                for i, first in enumerate(range(0, keys, size)):
                    part = source[b, first : first + size]
                    pages[p.table[b, i].item()][: len(part)] = part
            found.append(pages)
        k, v = found[-2:]
        found[-2:] = [Problem(p.queries, p.q, k, v, p.scales, p.used, p.table)]
    return found


@pytest.mark.parametrize("dtype", ("FP16", "BF16"))
def test_parts_of_a_mixed_batch_are_the_whole(dtype: str) -> None:
    caches = _caches("6x1:1-200,40:100,70:300", dtype)
    few, many = mixes.few_and_many(caches.batch)
    for size in PAGE_SIZES:
        p = caches.in_pages(size)
        parts = torch.cat([_compute(p.part(few)), _compute(p.part(many))])
        torch.testing.assert_close(_compute(p), parts, atol=2e-2, rtol=2e-2)


def test_a_row_of_a_page_table_has_different_pages() -> None:
    p = _caches("3x1-500,90", "BF16").in_pages(16)
    used = torch.cat([row[: -(-int(n) // 16)] for row, n in zip(p.table, p.used)])
    assert len(used.unique()) == len(used) and used.max() < len(p.k)


SOUGHT = 0x12345679  # what read_floor.cu looks for
LARGEST_CHUNK = 32768  # of a bulk copy; smaller ones divide it


@pytest.mark.parametrize("n_bytes", [16, 4096, 100_000, 1 << 20])
def test_the_floor_reads_the_bytes_asked_for_and_no_others(n_bytes: int) -> None:
    """Reads see a word in the last 16 bytes of whatever they copy, and none beyond the bytes."""
    words = torch.zeros((1 << 20) // 4 + 4, dtype=torch.int32, device="cuda")
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    calls = read_floor.calls(words, n_bytes, sink)
    if not calls:
        pytest.skip("libflashattn_read_floor.so is not beside the library")
    for end in (n_bytes, *range(LARGEST_CHUNK, n_bytes, LARGEST_CHUNK), n_bytes + 16):
        words.zero_()
        words[end // 4 - 4] = SOUGHT
        for way, call in enumerate(calls):
            sink.zero_()
            call()
            assert (sink.item() == SOUGHT) == (end <= n_bytes), (way, end)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bench_decode(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "times.json"
    batches = ["--caches", "2x256,3x100", "--lengths", "3x1-90", "--lengths", "3x1:64,40:64"]
    shape = ["--heads", "8/2,4/4", "--d-head", "64", "--page-size", "16,3", "--dtype", dtype]
    assert main(["bench-decode", *batches, *shape, "--runs", "2", "--json", str(path)]) == 0
    output = capsys.readouterr().out
    assert output.count("known") == 4 and "page 3 apart" in output or dtype == "E4M3"
    rows = json.loads(path.read_text())["rows"]
    decoding = [row for row in rows if row["queries"] == row["sequences"]]
    assert all(1e-6 < row["seconds"]["own"] < 1 for row in decoding)


@pytest.mark.parametrize("q_dtype", ["FP16", "E4M3"])
def test_q_of_a_type_of_its_own(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, q_dtype: str
) -> None:
    """No kernel for CUDA devices takes a Q of e4m3: the tables say so."""
    monkeypatch.setenv("COLUMNS", "200")
    shape = ["--heads", "8/2", "--d-head", "64", "--page-size", "16", "--runs", "2"]
    types = ["--dtype", "E4M3", "--q-dtype", q_dtype, "--no-peers"]
    assert main(["bench-chunks", "--chunks", "2x64:64", *shape, *types]) == 0
    output = capsys.readouterr().out
    assert f"Q of {q_dtype}" in output
    assert ("none serves" in output) == (q_dtype == "E4M3")


@pytest.mark.parametrize("mode", [[], ["--cold"]])
def test_bench_chunks(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, mode: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    chunks = ["--chunks", "2x64:64,1x40:300@4/2x128", "--heads", "8/2", "--d-head", "64"]
    assert main(["bench-chunks", *chunks, "--page-size", "1,19,64", "--runs", "2", *mode]) == 0
    output = capsys.readouterr().out
    assert output.count("contiguous") == 3 and "none serves" not in output
