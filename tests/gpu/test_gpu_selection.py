"""The selected row has what a problem needs and nothing more."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import pytest
from flashattn import Arch, Feature
from gpu_problems import (
    configs_for,
    device_options,
    device_shapes,
    needs_alignment,
    query,
    rows,
)
from problems import AttentionProblem

BASE = AttentionProblem(2, 300, 300, 4, 2, 128, "bfloat16")
MASKS = {
    "full": ({}, Feature(0)),
    "causal": ({"causal": True}, Feature.CAUSAL),
    "window": ({"window_size": (50, 0)}, Feature.WINDOW),
    "softcap": ({"softcap": 20.0}, Feature.SOFTCAP),
    "lengths": ({"seqused_k": (300, 4)}, Feature.VARLEN),
    "causal_lengths": ({"causal": True, "seqused_k": (9, 300)}, Feature.CAUSAL | Feature.VARLEN),
}
# Families that serve these problems, and are selected for few queries or a larger d_head.
LEFT_OUT = {Arch.SM90_DECODE, Arch.SM80_WIDE, Arch.SM90_WIDE}
LENGTHS = [(1, 512), (300, 300), (4096, 4096)]


def _select(p: AttentionProblem, **options: object) -> flashattn.Config:
    return flashattn.select_config(*device_shapes(p), **device_options(p), **options).config


def _needless(config: flashattn.Config, needed: Feature) -> int:
    return bin(config.features & ~needed).count("1")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("d_head", [32, 40, 64, 96, 128, 136, 192, 256])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_selected_row_has_the_least(dtype: str, d_head: int, lengths: tuple, mask: str) -> None:
    """It is of the decode family if that serves, else of the newest family, with the smallest head
    dimension that fits, then the fewest features, and the fast way to load."""
    options, needed = MASKS[mask]
    p = replace(BASE, seqlen_q=lengths[0], seqlen_k=lengths[1], d_head=d_head, dtype=dtype)
    if lengths[0] == 1 and options.get("causal"):
        needed &= ~Feature.CAUSAL  # the last query sees every key
    p = replace(p, **options)
    selected = _select(p)
    rivals = configs_for(p)
    families = {c.arch for c in rivals} - LEFT_OUT
    first = Arch.SM80_DECODE if Arch.SM80_DECODE in families else max(families)
    assert selected in rivals and selected.arch == first
    rivals = [c for c in rivals if c.arch == selected.arch]
    assert selected.d_head == min(c.d_head for c in rivals)
    rivals = [c for c in rivals if c.d_head == selected.d_head]
    assert _needless(selected, needed) == min(_needless(c, needed) for c in rivals)
    assert needs_alignment(selected)


def test_unaligned_rows_go_through_registers() -> None:
    for p in (replace(BASE, d_head=125), replace(BASE, layouts=("shifted",) * 4)):
        assert not needs_alignment(_select(p))
    only_output = replace(BASE, layouts=("contiguous",) * 3 + ("shifted",))
    assert needs_alignment(_select(only_output))


def test_the_family_of_this_device_comes_first() -> None:
    """Problems that its loads cannot address are exempt."""
    families = {Arch(row.config.arch) for row in rows()}
    newest = max(families & {Arch.SM80, Arch.SM90})
    assert _select(BASE).arch == newest
    assert _select(replace(BASE, causal=True, window_size=(50, 3), softcap=9.0)).arch == newest
    assert _select(replace(BASE, layouts=("shifted",) * 4)).arch == Arch.SM80
    assert _select(replace(BASE, seqused_k=(300, 4))).arch == newest


def test_batch_invariant_selection_looks_at_no_batch() -> None:
    chosen = {
        _select(replace(BASE, batch=batch, seqlen_q=300), batch_invariant=True)
        for batch in (1, 2, 50)
    }
    assert len(chosen) == 1


def test_selection_gives_its_reason() -> None:
    tensors = device_shapes(BASE)
    assert "multiprocessors" in flashattn.select_config(*tensors).reason
    support = query(replace(BASE, dtype="float16"))
    assert support and support.reason
