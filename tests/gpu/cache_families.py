"""The rows that read caches of keys, by family, and the problems that tests give them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import flashattn
import numpy as np
import pytest
import torch
from bias_cases import BiasCase
from cache_checks import CACHES, CacheChecks, dense_row
from flashattn import Arch, DType, Feature
from gpu_problems import CONTIGUOUS, heads_of, mixed_rows, mla_rows, query, rows, types_of
from memory import E4M3
from problems import AttentionProblem

Problems = Mapping[str, AttentionProblem]
_LENGTHS = (0, 1, 63, 64, 65, 127, 2100, 900, 2, 513)
_FEW_LENGTHS = (0, 1, 63, 64, 65, 1100)


@dataclass(frozen=True)
class CacheFamily:
    """of_row makes a problem one of a row: of its types and head dimensions."""

    name: str
    rows: list[flashattn.Config]
    batch: AttentionProblem
    problems: Problems
    of_row: Callable[[AttentionProblem, flashattn.Config], AttentionProblem]
    checks: CacheChecks = CACHES

    @property
    def dense(self) -> list[flashattn.Config]:
        return [config for config in self.rows if not config.features & Feature.PAGED]

    @property
    def paged(self) -> list[flashattn.Config]:
        return [config for config in self.rows if config.features & Feature.PAGED]

    @property
    def paged_and_dense(self) -> list[flashattn.Config]:
        """Rows with pages, of which the same row without pages is in the table too."""
        return [config for config in self.paged if dense_row(config) in self.rows]


def _of_archs(*archs: Arch) -> list[flashattn.Config]:
    """Returns the rows of the families, but for those that test_gpu_fp8_products.py is for."""
    configs = [row.config for row in rows() if row.config.arch in archs]
    return [config for config in configs if config.operand_dtype != DType.E4M3]


def of_heads(p: AttentionProblem, config: flashattn.Config) -> AttentionProblem:
    """Leaves the problem a d_head_v of its own."""
    return replace(p, **heads_of(config, p.d_head_v), **types_of(config))


# ---- SM80_DECODE: few queries over many keys ----


def _decode() -> CacheFamily:
    used = tuple(4097 if length == 2100 else length for length in _LENGTHS)
    batch = AttentionProblem(len(used), 1, 4097, 8, 2, 128, "bfloat16", seqused_k=used)
    problems = {
        "one query": batch,
        "causal": replace(batch, seqlen_q=4, causal=True),
        "window": replace(batch, seqlen_q=3, window_size=(77, 2)),
        "softcap": replace(batch, seqlen_q=2, softcap=3.0),
        "narrow v": replace(batch, seqlen_q=3, causal=True, d_head_v=48),
        "one long": AttentionProblem(1, 1, 9000, 32, 8, 128, "bfloat16", seqused_k=(8999,)),
        "many short": AttentionProblem(
            200, 1, 90, 8, 2, 128, "bfloat16", seqused_k=tuple(i * 37 % 91 for i in range(200))
        ),
    }
    return CacheFamily("decode", _of_archs(Arch.SM80_DECODE), batch, problems, of_heads)


DECODE = _decode()


# ---- SM80, SM90, SM80_WIDE and SM90_WIDE: more rows than are decoded ----


def _prefill() -> CacheFamily:
    batch = AttentionProblem(
        len(_FEW_LENGTHS), 150, 1100, 4, 2, 128, "bfloat16", seqused_k=_FEW_LENGTHS
    )
    problems = {
        "full": batch,
        "causal": replace(batch, causal=True),
        "window": replace(batch, window_size=(77, 2)),
        "softcap": replace(batch, causal=True, softcap=3.0),
        "narrow v": replace(batch, causal=True, d_head_v=48),
        "fewer queries": replace(batch, causal=True, seqused_q=(150, 1, 0, 64, 65, 129)),
    }
    configs = _of_archs(Arch.SM80, Arch.SM90, Arch.SM80_WIDE, Arch.SM90_WIDE)
    return CacheFamily("prefill", configs, batch, problems, _of_served_row)


def _of_served_row(p: AttentionProblem, config: flashattn.Config) -> AttentionProblem:
    """Skips the test if the row lacks a feature that the problem needs."""
    p = of_heads(p, config)
    if not query(p, dense_row(config)):
        pytest.skip("the row lacks the feature")
    return p


PREFILL = _prefill()
PREFILL_PAGE_SIZES = (1, 3, 16, 19, 64, 128, 256)
# SM90 kernels read pages of one token, others of few, and larger ones each in a way of its own.
PAGE_SIZES_OF_EVERY_WAY = (1, 5, 16)


# ---- K and V of e4m3 ----


def _scales(batch: int, heads: int, seed: int) -> tuple[tuple[float, ...], ...]:
    """Returns scales of both signs, one per batch entry and K/V head."""
    scales = np.random.default_rng(seed).uniform(0.2, 2, (batch, heads))
    scales[:, ::2] *= -1
    return tuple(tuple(float(np.float32(x)) for x in row) for row in scales)


def e4m3_problem(batch: int, *sizes: int, **options: object) -> AttentionProblem:
    heads_kv = sizes[3]
    scales = {"k_descale": _scales(batch, heads_kv, 1), "v_descale": _scales(batch, heads_kv, 2)}
    return AttentionProblem(batch, *sizes, dtype=E4M3, **{**scales, **options})


def _of_e4m3(p: AttentionProblem, config: flashattn.Config) -> AttentionProblem:
    types = p.q_dtype or "bfloat16", p.o_dtype or "bfloat16"
    return replace(p, d_head=config.d_head, q_dtype=types[0], o_dtype=types[1])


def _e4m3_prefill() -> CacheFamily:
    batch = e4m3_problem(len(_FEW_LENGTHS), 150, 1100, 4, 2, seqused_k=_FEW_LENGTHS)
    problems = {
        "full": e4m3_problem(2, 150, 330, 4, 2),
        "tile_edges": e4m3_problem(1, 128, 256, 2, 2),
        "past_tile_edges": e4m3_problem(1, 129, 257, 3, 1),
        "many_tiles": e4m3_problem(2, 700, 700, 80, 40, causal=True),
        "long": e4m3_problem(1, 150, 3000, 2, 1),
        "one_key": e4m3_problem(2, 70, 1, 2, 2),
        "no_key": e4m3_problem(2, 70, 0, 2, 2),
        "causal": e4m3_problem(2, 300, 300, 4, 2, causal=True),
        "causal_more_keys": e4m3_problem(1, 67, 190, 4, 2, causal=True),
        "causal_more_queries": e4m3_problem(1, 300, 70, 2, 1, causal=True),
        "window": e4m3_problem(1, 330, 370, 4, 2, window_size=(77, 5)),
        "softcap": e4m3_problem(1, 150, 330, 4, 2, softcap=2.0),
        "softcap_causal": e4m3_problem(1, 150, 330, 4, 2, softcap=20.0, causal=True),
        "in_use": batch,
        "in_use_causal": replace(batch, causal=True, seqused_q=(150, 1, 0, 64, 65, 129)),
        "ragged": e4m3_problem(
            3, 95, 150, 4, 2, causal=True,
            cu_seqlens_q=(0, 70, 70, 161), cu_seqlens_k=(0, 40, 60, 210),
        ),
        "growing": e4m3_problem(1, 150, 700, 2, 1, values="growing"),
        "one_large_key": e4m3_problem(1, 150, 700, 2, 1, values="one_large_key"),
        "wide": e4m3_problem(1, 150, 700, 2, 1, values="wide"),
    }  # fmt: skip
    configs = [row.config for row in rows() if row.config.dtype == DType.E4M3]
    own = [c for c in configs if c.arch != Arch.SM80_DECODE and c.operand_dtype != DType.E4M3]
    return CacheFamily("e4m3", own, batch, problems, _of_e4m3)


E4M3_PREFILL = _e4m3_prefill()


# ---- SM90_DECODE, SM80_WIDE and SM90_WIDE: chunks of prompts and long drafts over long caches ----


def _chunks() -> CacheFamily:
    batch = AttentionProblem(len(_LENGTHS), 20, 2100, 8, 2, 128, "bfloat16", seqused_k=_LENGTHS)
    problems = {
        "full": batch,
        "causal": replace(batch, causal=True),
        "window": replace(batch, window_size=(77, 2)),
        "causal window": replace(batch, causal=True, window_size=(300, 0)),
        "softcap": replace(batch, causal=True, softcap=3.0),
        "fewer queries": replace(batch, causal=True, seqused_q=(20, 1, 0, 20, 7, 9, 20, 3, 20, 11)),
        "one long": AttentionProblem(1, 70, 8192, 8, 2, 128, "bfloat16", seqused_k=(8191,)),
        "one long, causal": AttentionProblem(
            1, 128, 8192, 8, 2, 128, "bfloat16", causal=True, seqused_k=(8192,)
        ),
    }

    def of_row(p: AttentionProblem, config: flashattn.Config) -> AttentionProblem:
        return replace(p, **heads_of(config), **types_of(config))

    configs = _of_archs(Arch.SM90_DECODE, Arch.SM80_WIDE, Arch.SM90_WIDE)
    return CacheFamily("chunks", configs, batch, problems, of_row)


CHUNKS = _chunks()


# ---- SM80_MLA and SM90_MLA: V is the first columns of K ----

D_HEAD, D_HEAD_V = 576, 512


def latent_tensors(
    q: torch.Tensor, k: torch.Tensor, _: torch.Tensor | None = None, d_head_v: int = D_HEAD_V
) -> list[torch.Tensor]:
    return [q, k, k if k.dtype == torch.uint8 else k[..., :d_head_v]]


def _mla() -> CacheFamily:
    lengths = tuple(i * i * 37 % 121 for i in range(90))
    sinks = tuple(i / 8 - 2.0 for i in range(40))
    many = AttentionProblem(90, 2, 120, 40, 1, D_HEAD, seqused_k=lengths, sinks=sinks)
    batch = AttentionProblem(len(_LENGTHS), 2, 2100, 40, 1, D_HEAD, "bfloat16", seqused_k=_LENGTHS)
    problems = {
        "full": batch,
        "causal": replace(batch, causal=True),
        "window": replace(batch, seqlen_q=5, n_heads=16, window_size=(77, 2)),
        "causal window": replace(batch, causal=True, window_size=(300, 0)),
        "chunk": replace(batch, causal=True, seqlen_q=5, n_heads=16, attention_chunk=100),
        "softcap": replace(batch, causal=True, softcap=3.0),
        "sinks": replace(batch, sinks=sinks),
        "fewer queries": replace(batch, causal=True, seqused_q=(2, 1, 0, 2, 1, 0, 2, 1, 2, 1)),
        "two K/V heads": replace(batch, n_heads=12, n_heads_kv=2, causal=True),
        "one long, few heads": AttentionProblem(1, 1, 9000, 16, 1, D_HEAD, seqused_k=(8999,)),
        "one long, many heads": AttentionProblem(
            1, 3, 5000, 128, 1, D_HEAD, causal=True, seqused_k=(5000,)
        ),
        # More tiles than multiprocessors.
        "many": replace(many, causal=True, softcap=3.0, window_size=(70, 0)),
        "many short": AttentionProblem(
            300, 1, 90, 8, 1, D_HEAD, seqused_k=tuple(i * 37 % 91 for i in range(300))
        ),
        "many, fewer queries": replace(
            many, causal=True, seqused_q=tuple(i % 3 for i in range(many.batch))
        ),
    }
    checks = CacheChecks(latent_tensors, v_has_own_pages=False)
    configs = [row.config for row in mla_rows()]

    def of_row(p: AttentionProblem, config: flashattn.Config) -> AttentionProblem:
        return replace(p, **types_of(config))

    return CacheFamily("mla", configs, batch, problems, of_row, checks)


MLA = _mla()
FEW_PROBLEMS = ("causal", "softcap", "one long, few heads")
BIASES = {
    "slopes": BiasCase(slopes=2),
    "float32": BiasCase(kind="float32"),
    "bfloat16": BiasCase(slopes=1, kind="bfloat16", strided=True),
    "bits": BiasCase(kind="bits"),
    "tree": BiasCase(kind="bits", n_keys=33, from_end=True),
    "repeated": BiasCase(kind="float16", repeats="bhq"),
    "factors": BiasCase(kind="bfloat16", repeats="h", factors=True),
}
BIASED_PROBLEMS = ("causal", "chunk", "softcap", "two K/V heads", "one long, many heads")
FEW_BIASED_PROBLEMS = ("chunk",)


def biased(configs: Iterable[flashattn.Config]) -> list[flashattn.Config]:
    return [config for config in configs if config.features & Feature.BIAS]


def of_first_rows(
    configs: list[flashattn.Config], problems: Problems, few: Iterable[str]
) -> list[tuple[str, AttentionProblem, flashattn.Config]]:
    """Returns all problems, with their names, for the first row of each family and type, and few
    for the others, which differ from it in their tiles alone."""
    first = {(config.arch, config.dtype): config for config in reversed(configs)}
    return [
        (name, p, config)
        for config in configs
        for name, p in problems.items()
        if config in first.values() or name in few
    ]


# ---- MIXED: ragged batches of few queries and of many ----

GROUP = 4  # sequences of up to 4 queries then have the 16 rows that are decoded


def ragged(queries: tuple[int, ...], keys: tuple[int, ...], **options: object) -> AttentionProblem:
    """Makes ragged queries over a padded cache."""
    options = {"cu_seqlens_q": (0, *accumulate(queries)), "seqused_k": keys, **options}
    return AttentionProblem(
        len(queries), max(queries), max(keys), 2 * GROUP, 2, 128, "bfloat16", **options
    )


def _some(n: int, most: int) -> tuple[int, ...]:
    return tuple(1 + i * 37 % most for i in range(n))


def _of_mixed(p: AttentionProblem, config: flashattn.Config) -> AttentionProblem:
    """Skips if the other families have no kernels of the row's types, or if a query has more rows
    than are decoded."""
    types = types_of(config)
    if p.o_dtype:
        types["o_dtype"] = p.o_dtype
    p = replace(p, **types)
    support = query(replace(p, layouts=CONTIGUOUS), dense_row(config))
    if not support:
        expected = "more rows" if p.n_heads // p.n_heads_kv > config.B_r else "no forward kernel"
        assert expected in support.reason
        pytest.skip(support.reason)
    return p


def _mixed() -> CacheFamily:
    serving = ragged((1,) * 30 + (300,) + (1,) * 30 + (257,), _some(30, 900) + (300,) * 32)
    border = ragged((4, 5, 3, 16, 1, 17, 0, 128, 129, 2), (700, 700, 64, 65, 1, 17, 5, 128, 900, 0))
    problems = {
        "decodes and chunks": serving,
        "causal": replace(serving, causal=True),
        "all decoded": replace(ragged(_some(20, 4), _some(20, 600), causal=True), seqlen_q=200),
        "all chunks": ragged((70, 300, 5, 129), (70, 640, 300, 100), causal=True),
        "border": border,
        "border, causal": replace(border, causal=True),
        "border, window": replace(border, window_size=(77, 2)),
        "border, softcap": replace(border, softcap=3.0),
        "empty sequences": ragged((0, 1, 0, 0, 90, 0, 4, 0), (9, 300, 0, 5, 90, 0, 500, 1)),
        "fewer queries": replace(
            serving, causal=True, seqused_q=(1, 0) * 15 + (4,) + (1,) * 30 + (200,)
        ),
        "one long cache": ragged((1, 40, 2), (9000, 40, 100), causal=True),
        "fp32 o": replace(border, causal=True, o_dtype="float32"),
        "d_head 64": replace(border, causal=True, d_head=64),
        "d_head 80": replace(border, causal=True, d_head=80),
        "d_head 256": replace(border, causal=True, d_head=256),
        "a head a group": replace(border, n_heads=3, n_heads_kv=3),
        "many heads a group": replace(border, n_heads=24, n_heads_kv=1, causal=True),
        "heads first": replace(border, layouts=("heads_first",) * 4),
        "o that TMA cannot store": replace(border, layouts=("contiguous",) * 3 + ("shifted",)),
        "ragged keys": replace(
            ragged((1, 200, 4, 5), (300, 200, 90, 5), causal=True),
            seqused_k=None, cu_seqlens_k=(0, 300, 500, 590, 595),
        ),
        "ragged keys in use": replace(
            ragged((1, 200, 4, 5), (200, 200, 90, 0)),
            seqlen_k=300, cu_seqlens_k=(0, 300, 500, 590, 595),
        ),
    }  # fmt: skip
    configs = [row.config for row in mixed_rows()]
    return CacheFamily("mixed", configs, serving, problems, _of_mixed)


MIXED = _mixed()
