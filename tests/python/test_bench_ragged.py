"""`bench --lengths`: what a description of a ragged batch means, how much work it is, and what is
refused. Measuring takes a GPU (tests/gpu/test_gpu_command_line.py).
"""

from __future__ import annotations

import pytest
from flashattn.cli import main, ragged
from flashattn.cli.ragged import RaggedBatch
from flashattn.oracle import Mask

UNBOUNDED = (-1, -1)
BATCH = RaggedBatch("some", [1, 7, 40, 12, 3], [33, 7, 25, 50, 1])


@pytest.mark.parametrize(
    "text, lengths_q, lengths_k",
    [
        ("8", [8], [8]),
        ("1024,4096", [1024, 4096], [1024, 4096]),
        ("3x5,1", [5, 5, 5, 1], [5, 5, 5, 1]),
        ("2x1:1024", [1, 1], [1024, 1024]),
        ("4-4:9-9", [4], [9]),
        ("2x512:2048,1:999", [512, 512, 1], [2048, 2048, 999]),
    ],
)
def test_lengths_as_written(text: str, lengths_q: list[int], lengths_k: list[int]) -> None:
    assert ragged.parse(text, seed=0) == RaggedBatch(text, lengths_q, lengths_k)


def test_lengths_drawn() -> None:
    batch = ragged.parse("300x1-5", seed=0)
    assert set(batch.lengths_q) == {1, 2, 3, 4, 5} and batch.lengths_k == batch.lengths_q
    batch = ragged.parse("64x1:1024-8192", seed=0)
    assert batch.lengths_q == [1] * 64
    assert len(set(batch.lengths_k)) > 32
    assert 1024 <= min(batch.lengths_k) and max(batch.lengths_k) <= 8192


def test_a_seed_gives_the_same_lengths() -> None:
    text = "8x1000-4000,60x1-200:300-900"
    assert ragged.parse(text, seed=3) == ragged.parse(text, seed=3)
    assert ragged.parse(text, seed=3) != ragged.parse(text, seed=4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [UNBOUNDED, (5, -1), (-1, 3), (0, 0), (2**62, 4)])
@pytest.mark.parametrize("chunk", [0, 1, 6, 33, 1000])
def test_pairs_are_those_that_the_mask_leaves(
    chunk: int, causal: bool, window: tuple[int, int]
) -> None:
    mask = Mask(causal, *window, chunk)
    expected = sum(mask.visible(q, k).sum() for q, k in zip(BATCH.lengths_q, BATCH.lengths_k))
    assert ragged.visible_pairs(BATCH, causal, window, chunk) == expected


def test_causal_pairs_of_a_square() -> None:
    assert ragged.visible_pairs(ragged.parse("2x4", seed=0), True, UNBOUNDED) == 2 * (1 + 2 + 3 + 4)


@pytest.mark.parametrize(
    "text, alike",
    [("3x64", "3x64"), ("30,40", "2x35"), ("4x1:100,4x1:300", "8x1:200"), ("4x8:64", "4x8:64")],
)
def test_sequences_of_one_length(text: str, alike: str) -> None:
    expected = ragged.parse(alike, seed=0)
    assert ragged.of_one_length(ragged.parse(text, seed=0)) == expected


@pytest.mark.parametrize("text", ["8x1024-4096", "16384,60x1-200", "64x1:1024-8192", "1,1:9"])
def test_one_length_is_about_as_much_to_do(text: str) -> None:
    batch = ragged.parse(text, seed=0)
    pairs, alike = (
        ragged.visible_pairs(b, False, UNBOUNDED) for b in (batch, ragged.of_one_length(batch))
    )
    assert 0.95 < alike / pairs < 1.05


@pytest.mark.parametrize(
    "lengths, complaint",
    [
        ("", "''"),
        ("8,,9", "''"),
        ("x8", "'x8'"),
        ("8.5", "'8.5'"),
        ("8x9:-3", "'8x9:-3'"),
        ("1k", "'1k'"),
        ("0x8", "0x8 has no sequence"),
        ("7,8x0", "8x0 has a length of 0"),
        ("4:0-9", "4:0-9 has a length of 0"),
        ("256-1", "256-1 is empty"),
        ("5x999999999", "up to 4999999995 tokens"),
    ],
)
def test_bad_lengths_are_named(capsys: pytest.CaptureFixture, lengths: str, complaint: str) -> None:
    assert main(["bench", "--device", "cuda", "--lengths", lengths]) == 2
    error = capsys.readouterr().err
    assert error.startswith("flashattn: --lengths") and complaint in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "options, complaint",
    [
        ([], "add --device cuda"),
        (["--device", "cuda", "--seqlen", "64"], "--seqlen"),
        (["--device", "cuda", "--seqlen-q", "64"], "--seqlen-q"),
        (["--device", "cuda", "--tokens", "64"], "--tokens"),
        (["--device", "cuda", "--batch", "2"], "--batch"),
        (["--device", "cuda", "--scores", "growing"], "--scores"),
        (["--device", "cuda", "--leftpad-k", "5"], "--leftpad-k"),
        (["--device", "cuda", "--seed", "-1"], "--seed is -1"),
    ],
)
def test_options_that_do_not_go_together(
    capsys: pytest.CaptureFixture, options: list[str], complaint: str
) -> None:
    assert main(["bench", "--lengths", "8", *options]) == 2
    assert complaint in capsys.readouterr().err
