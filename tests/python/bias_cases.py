"""Slopes of ALiBi and masks for attention problems (problems.py): random ones of a seed, for the
oracle and for a call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from memory import dtype_of

if TYPE_CHECKING:
    from problems import AttentionProblem

KINDS = ("float32", "float16", "bfloat16", "bool", "bits")
NUMBERS = KINDS[:3]
BLOCK = 128


@dataclass(frozen=True)
class BiasCase:
    """Says what joins scores. Axes of the mask that `repeats` names, of "bhq", have one element;
    `strided` masks of numbers have keys that are no neighbours. Squares of BLOCK queries and keys
    are hidden as a whole, too, or shown as they are: kernels leave such blocks out."""

    slopes: int = 0  # axes of alibi_slopes: 0 (none), 1 or 2
    kind: str | None = None  # of KINDS; None: no mask
    repeats: str = ""
    n_keys: int | None = None  # None: those of every sequence
    from_end: bool = False  # the mask covers the last n_keys keys
    hidden: float = 0.3  # share of elements
    empty_rows: float = 0.1  # share of rows that hide all that they cover
    strided: bool = False
    hidden_blocks: float = 0.0  # share of squares
    shown_blocks: float = 0.0
    factors: bool = False  # heads have factors of their own, one of them 0 and one negative
    seed: int = 0

    def options(self, p: AttentionProblem) -> dict[str, object]:
        """Returns keywords of the oracle. Nobody may write to their arrays."""
        return dict(_options(self, p))

    def call_options(self, p: AttentionProblem) -> dict[str, object]:
        """Returns keywords of a call, where they differ."""
        return dict(_call_options(self, p))

    def _mask(self, p: AttentionProblem, rng: np.random.Generator) -> np.ndarray:
        ragged = p.cu_seqlens_q is not None
        n_queries = p.cu_seqlens_q[-1] if ragged else p.seqlen_q
        rows = [
            1 if axis in self.repeats else n
            for axis, n in zip("bhq", (p.batch, p.n_heads, n_queries))
        ][1 if ragged else 0 :]
        shape = (*rows, p.seqlen_k if self.n_keys is None else self.n_keys)
        hides = rng.random(shape) < self.hidden
        hides |= rng.random((*rows, 1)) < self.empty_rows
        numbers = rng.standard_normal(shape)
        if self.hidden_blocks or self.shown_blocks:
            drawn = _squares(rng.random((*rows[:-1], *(-(-n // BLOCK) for n in shape[-2:]))), shape)
            shown = drawn >= 1 - self.shown_blocks
            hides = (hides & ~shown) | (drawn < self.hidden_blocks)
            numbers[shown] = 0
        if self.kind in ("bool", "bits"):
            return ~hides
        return np.where(hides, -math.inf, numbers).astype(dtype_of(self.kind))


def _squares(drawn: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Returns what was drawn for each square for each of its queries and keys."""
    n_queries, n_keys = shape[-2:]
    return drawn.repeat(BLOCK, axis=-2).repeat(BLOCK, axis=-1)[..., :n_queries, :n_keys]


@lru_cache(maxsize=8)  # a test takes the same ones for each kernel
def _options(case: BiasCase, p: AttentionProblem) -> dict[str, object]:
    rng = np.random.default_rng([case.seed, 7])
    found: dict[str, object] = {}
    if case.slopes:
        shape = (p.batch, p.n_heads)[-case.slopes :]
        found["alibi_slopes"] = (2.0 ** rng.uniform(-8, 0, shape)).astype(np.float32)
    if case.kind is not None:
        found["attn_mask"] = case._mask(p, rng)
        found["mask_keys"] = found["attn_mask"].shape[-1] if case.from_end else None
    if case.factors:
        factors = (2.0 ** rng.uniform(-6, 1, p.n_heads)).astype(np.float32)
        factors[1::4], factors[2::4] = -factors[1::4], 0
        found["mask_head_scale"] = factors
    return found


@lru_cache(maxsize=8)
def _call_options(case: BiasCase, p: AttentionProblem) -> dict[str, object]:
    if case.kind is None:
        return {}
    mask = case.options(p)["attn_mask"]
    if case.kind == "bits":
        keys = {"mask_keys": mask.shape[-1]} if case.from_end else {}
        return {"attn_mask": None, "mask_bits": packed(mask), **keys}
    if case.strided and mask.dtype != bool:
        apart = np.full((*mask.shape, 3), np.nan, mask.dtype)
        apart[..., 1] = mask
        return {"attn_mask": apart[..., 1]}
    return {}


def packed(mask: np.ndarray) -> np.ndarray:
    """Returns the words of a bool mask, with bits beyond its columns that must not matter."""
    n_keys = mask.shape[-1]
    whole_words = np.ones((*mask.shape[:-1], -(-n_keys // 32) * 32), bool)
    whole_words[..., :n_keys] = mask
    return np.packbits(whole_words, axis=-1, bitorder="little").view("<u4")
