"""Calls of flash_kv_append() for the tests, and the arrays that they need.

A case holds all that its arrays depend on, the seed included, so printing it is enough to replay
it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from append_oracle import Oracle
from flashattn import quant_blocks
from memory import E4M3, QUANT_BLOCKS, dtype_of, nan_of

# How the place of a token is found.
# 64: page_rows has so many bits.
KINDS = ("contiguous", "slots", "table", "rows", "indptr", "mapping", "slots64", "rows64")
SLOT_ROOM = 40  # keys of a sequence in the contiguous cache and in a slot


@dataclass(frozen=True)
class Rotary:
    dim: int
    dtype: str = "float32"
    interleaved: bool = False
    source: str = "lengths"  # of positions: lengths, start, positions
    joined: bool = False  # cosines and sines in one array [n_positions, dim]


@dataclass(frozen=True)
class Queries:
    lengths: tuple[int, ...]  # of each sequence; all alike unless ragged
    n_heads: int
    dtype: str = "float32"
    out: str = "in place"  # or a type
    ragged: bool = False
    at_start: bool = False


@dataclass(frozen=True)
class AppendCase:
    lengths: tuple[int, ...] = (1,)  # new tokens of each sequence; all alike unless ragged
    used: tuple[int, ...] = (0,)  # keys before
    n_heads_kv: int = 1
    d_head: int = 8
    dtype: str = "float32"  # of new tokens
    cache_dtype: str = "float32"
    kind: str = "contiguous"
    page_size: int = 4
    ragged: bool = False
    trailing: int = 0  # tokens behind the last sequence of a ragged tensor
    has_v: bool = True
    v_apart: bool = False
    rotary: Rotary | None = None
    queries: Queries | None = None
    scales: str | None = None  # of a cache of e4m3: number, array, strided, pages
    size: float = 1.0  # standard deviation of the values
    padding: float = 0.0  # share of tokens whose slot is -1
    layouts: tuple[str, str, str] = ("contiguous",) * 3  # of new tokens, of the cache, of Q
    seed: int = 0
    v_cache_dtype: str | None = None  # None: that of K's
    d_head_v: int | None = None  # None: d_head

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def cache_dtypes(self) -> tuple[str, str]:
        return self.cache_dtype, self.v_cache_dtype or self.cache_dtype

    @property
    def counts_lengths(self) -> bool:
        return self.kind != "mapping"


@dataclass
class Arrays:
    """The arrays of a case. `options` are keywords of flash_kv_append() and of the oracle."""

    k_new: np.ndarray
    v_new: np.ndarray | None
    k_shape: tuple[int, ...]  # of the cache
    v_shape: tuple[int, ...]
    q: np.ndarray | None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    k: np.ndarray
    v: np.ndarray | None
    q: np.ndarray | None
    lengths: np.ndarray | None

    def assert_same_bits(self, other: Result) -> None:
        for name in ("k", "v", "q", "lengths"):
            a, b = getattr(self, name), getattr(other, name)
            if a is None or b is None:
                assert a is b, name
                continue
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            differ = np.argwhere(_bits(a) != _bits(b))
            assert not len(differ), (
                f"{name} differs in {len(differ)} places, first at {differ[0]}: "
                f"{a[tuple(differ[0])]} and {b[tuple(differ[0])]}"
            )


def _bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(f"u{x.itemsize}")


def poisoned(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Returns an array of NaN."""
    array = np.empty(shape, dtype_of(dtype))
    array[...] = nan_of(array.dtype)
    return array


def expected_of(case: AppendCase, arrays: Arrays) -> Result:
    """Returns what the oracle writes into a cache of NaN."""
    options = dict(arrays.options)
    of_k, of_v = options.pop("kv_dtype", (None, None))
    oracle = Oracle(**options)
    k = poisoned(arrays.k_shape, case.cache_dtypes[0])
    v = q = lengths = None
    oracle.append(arrays.k_new, k, kv_dtype=of_k)
    if arrays.v_new is not None:
        v = poisoned(arrays.v_shape, case.cache_dtypes[1])
        oracle.append(arrays.v_new, v, is_v=True, kv_dtype=of_v)
    if arrays.q is not None:
        out = case.queries.out
        q = arrays.q.copy() if out == "in place" else poisoned(arrays.q.shape, out)
        oracle.turn_queries(arrays.q, q)
    if case.counts_lengths:
        lengths = oracle.lengths_after(arrays.k_new)
    return Result(k, v, q, lengths)


# ---- Arrays ----


def arrays_of(case: AppendCase) -> Arrays:
    rng = np.random.default_rng(case.seed)
    options: dict[str, Any] = {}
    new_shape = _token_shape(case.lengths, case.ragged, case.trailing)
    shape = (*new_shape, case.n_heads_kv, case.d_head)
    k_new = _values(rng, shape, case.dtype, case.size)
    d_heads = (case.d_head, case.d_head_v or case.d_head)
    v_shape = (*shape[:-1], d_heads[1])
    v_new = _values(rng, v_shape, case.dtype, case.size) if case.has_v else None
    if case.ragged:
        options["cu_seqlens_new"] = _ends(case.lengths)
    if case.counts_lengths:
        options["seqused_k"] = np.array(case.used, np.int32)
    rows = (*_pool(case, rng, options), case.n_heads_kv)
    shapes = [(*rows, _row_elements(*of)) for of in zip(d_heads, case.cache_dtypes)]
    if {*case.cache_dtypes} & {*QUANT_BLOCKS}:
        named = [dtype if dtype in QUANT_BLOCKS else None for dtype in case.cache_dtypes]
        options["kv_dtype"] = tuple(named)
    q = None
    if case.queries is not None:
        q = _queries(case, rng, options)
    if case.rotary is not None:
        _set_rotary(case, rng, options, int(np.prod(new_shape)))
    if case.scales is not None:
        _set_scales(case, rng, options, rows[0])
    return Arrays(k_new, v_new, *shapes, q, options)


def _row_elements(d_head: int, dtype: str) -> int:
    return quant_blocks.row_bytes(d_head, dtype) if dtype in QUANT_BLOCKS else d_head


def _token_shape(lengths: tuple[int, ...], ragged: bool, trailing: int) -> tuple[int, ...]:
    if ragged:
        return (sum(lengths) + trailing,)
    assert len(set(lengths)) <= 1
    return (len(lengths), lengths[0] if lengths else 3)


def _values(rng: np.random.Generator, shape: tuple, dtype: str, size: float) -> np.ndarray:
    x = size * rng.standard_normal(shape)
    if dtype == E4M3:
        x = np.clip(x, -448, 448)
    return x.astype(np.float32).astype(dtype_of(dtype))


def _ends(lengths: tuple[int, ...]) -> np.ndarray:
    return np.cumsum([0, *lengths]).astype(np.int32)


def _pool(case: AppendCase, rng: np.random.Generator, options: dict) -> tuple[int, int]:
    """Sets what says where tokens go; returns (entries of the cache, tokens of each)."""
    batch, size = case.batch, case.page_size
    after = [used + n for used, n in zip(case.used, case.lengths)]
    if case.kind == "contiguous":
        return batch, SLOT_ROOM
    row_type = np.int64 if case.kind.endswith("64") else np.int32
    if case.kind in ("slots", "slots64"):
        options["page_rows"] = rng.permutation(batch + 2)[:batch].astype(row_type)
        return batch + 2, SLOT_ROOM
    if case.kind == "mapping":
        tokens = sum(case.lengths) + case.trailing if case.ragged else max(sum(case.lengths), 0)
        n_pages = tokens // size + 2
        slots = rng.permutation(n_pages * size)[:tokens].astype(np.int64)
        options["slot_mapping"] = np.where(rng.random(tokens) < case.padding, -1, slots)
        return n_pages, size
    n_ids = [-(-n // size) for n in after]
    pages = rng.permutation(sum(n_ids) + 2)
    for name in ("page_table", "v_page_table")[: 1 + case.v_apart]:
        options[name] = _table(case, n_ids, pages, options)
        pages = rng.permutation(pages)
    if case.kind in ("rows", "rows64"):
        rows = rng.permutation(batch)
        options["page_rows"] = rows.astype(row_type)
        for name in ("page_table", "v_page_table")[: 1 + case.v_apart]:
            table = options[name].copy()
            table[rows] = options[name][:batch]
            options[name] = table
    return len(pages), size


def _table(case: AppendCase, n_ids: list[int], pages: np.ndarray, options: dict) -> np.ndarray:
    """Pages that no new token is in have ids that are no pages, since they must not matter."""
    first_ids = [used // case.page_size for used in case.used]
    taken = iter(pages.tolist())
    ids = [
        [next(taken) if i >= first else -1 for i in range(n)] for n, first in zip(n_ids, first_ids)
    ]
    if case.kind == "indptr":
        options["page_indptr"] = _ends(tuple(n_ids)) + np.int32(2)
        return np.array([-1, -1, *(x for row in ids for x in row)], np.int32)
    table = np.full((case.batch, max(n_ids, default=0) + 1), -7, np.int32)
    for row, of_sequence in zip(table, ids):
        row[: len(of_sequence)] = of_sequence
    return table


def _queries(case: AppendCase, rng: np.random.Generator, options: dict) -> np.ndarray:
    queries = case.queries
    if queries.ragged:
        options["cu_seqlens_q"] = _ends(queries.lengths)
    shape = _token_shape(queries.lengths, queries.ragged, 0)
    options["rotary_q_at_start"] = queries.at_start
    return _values(rng, (*shape, queries.n_heads, case.d_head), queries.dtype, case.size)


def _set_rotary(case: AppendCase, rng: np.random.Generator, options: dict, n_tokens: int) -> None:
    rotary, batch = case.rotary, case.batch
    n_positions = 97
    angles = rng.uniform(-4, 4, (n_positions, rotary.dim // 2))
    tables = [f(angles).astype(np.float32).astype(dtype_of(rotary.dtype)) for f in (np.cos, np.sin)]
    if rotary.joined:
        both = np.concatenate(tables, axis=1)
        tables = [both[:, : rotary.dim // 2], both[:, rotary.dim // 2 :]]
    options["rotary_cos"], options["rotary_sin"] = tables
    options["rotary_interleaved"] = rotary.interleaved
    if rotary.source == "positions":
        options["rotary_positions"] = rng.integers(0, n_positions, n_tokens, np.int64)
    elif rotary.source == "start" or not case.counts_lengths:
        options["rotary_start"] = rng.integers(0, 20, batch).astype(np.int32)


def _set_scales(
    case: AppendCase, rng: np.random.Generator, options: dict, n_entries: int
) -> None:
    if case.scales == "pages":
        options["page_scales"] = True
    for name in ("k_descale", "v_descale"):
        if case.scales == "number":
            options[name] = float(np.float32(rng.uniform(0.01, 2)))
            continue
        shape = (n_entries if case.scales == "pages" else case.batch, case.n_heads_kv)
        scales = rng.uniform(0.01, 2, shape).astype(np.float32)
        if case.scales in ("strided", "pages"):
            wide = np.full((shape[0], 2 * shape[1] + 3), np.nan, np.float32)
            wide[:, : 2 * shape[1] : 2] = scales
            scales = wide[:, : 2 * shape[1] : 2]
        options[name] = scales


# ---- Cases ----

_RAGGED = AppendCase(
    lengths=(3, 0, 7, 1), used=(5, 9, 0, 16), n_heads_kv=2, d_head=32, ragged=True, trailing=3
)
_DENSE = AppendCase(lengths=(4, 4, 4), used=(0, 3, 9), n_heads_kv=3, d_head=16)
_STEP = AppendCase(lengths=(1,) * 5, used=(0, 3, 9, 15, 22), n_heads_kv=2, d_head=64)
PAIRS = [
    (a, b)
    for a in ("float32", "float16", "bfloat16", E4M3)
    for b in ("float32", "float16", "bfloat16", E4M3)
    if a != E4M3 or b == E4M3
]


def named_cases() -> dict[str, AppendCase]:
    """Returns cases that each show one thing, for CPUs and CUDA devices."""
    cases: dict[str, AppendCase] = {}
    for kind in KINDS:
        cases[f"dense_{kind}"] = replace(_DENSE, kind=kind)
        cases[f"ragged_{kind}"] = replace(_RAGGED, kind=kind)
        cases[f"step_{kind}"] = replace(_STEP, kind=kind, dtype="bfloat16", cache_dtype="bfloat16")
    for kind in ("table", "rows", "indptr"):
        cases[f"v_apart_{kind}"] = replace(_RAGGED, kind=kind, v_apart=True)
        cases[f"no_v_{kind}"] = replace(_RAGGED, kind=kind, has_v=False)
    for size in (1, 3, 16, 64):
        cases[f"pages_of_{size}"] = replace(_RAGGED, kind="table", page_size=size)
    cases["no_v"] = replace(_DENSE, has_v=False)
    _add_cases_of_other_widths(cases)
    cases["padding"] = replace(_RAGGED, kind="mapping", padding=0.5)
    for dtype, cache_dtype in PAIRS:
        cases[f"{dtype}_to_{cache_dtype}"] = replace(
            _RAGGED, dtype=dtype, cache_dtype=cache_dtype, kind="table"
        )
    for scales in ("number", "array", "strided"):
        for kind in ("table", "mapping"):
            cases[f"scales_{scales}_{kind}"] = replace(
                _RAGGED, cache_dtype=E4M3, dtype="bfloat16", kind=kind, scales=scales, size=30.0
            )
    for kind in KINDS[1:]:
        cases[f"scales_of_pages_{kind}"] = replace(
            _RAGGED, cache_dtype=E4M3, dtype="float16", kind=kind, scales="pages", size=30.0,
            padding=0.3, v_apart=kind != "mapping", rotary=Rotary(32, source="start"),
        )  # fmt: skip
    cases["scales_of_pages_wide_v"] = replace(
        _DENSE, kind="table", d_head_v=64, cache_dtype=E4M3, scales="pages", size=30.0
    )
    _add_cases_of_e4m3(cases)
    for layout in ("padded", "heads_first", "unaligned"):
        cases[f"layout_{layout}"] = replace(
            _RAGGED, kind="table", layouts=(layout,) * 3, dtype="float16", cache_dtype="float16",
            rotary=Rotary(32), queries=Queries((2, 1, 0, 3), 4, "float16", ragged=True),
        )  # fmt: skip
    _add_rotary_cases(cases)
    empty = replace(_DENSE, lengths=(), used=())
    cases["empty_batch"] = empty
    cases["empty_batch_table"] = replace(empty, kind="table")
    cases["no_new_tokens"] = replace(
        _DENSE, lengths=(0, 0, 0), rotary=Rotary(16), queries=Queries((2, 2, 2), 6)
    )
    cases["odd_d_head"] = replace(_RAGGED, d_head=37, rotary=Rotary(30))
    cases["d_head_1"] = replace(_RAGGED, d_head=1)
    return cases


def _add_cases_of_e4m3(cases: dict[str, AppendCase]) -> None:
    """Adds cases of new tokens and queries of e4m3 that turn."""
    for interleaved in (False, True):
        style = "interleaved" if interleaved else "halves"
        for scales in (None, "array"):
            for size in (1.0, 200.0):
                cases[f"turned_e4m3_{style}_{scales}_{size}"] = replace(
                    _RAGGED, dtype=E4M3, cache_dtype=E4M3, kind="table", scales=scales, size=size,
                    rotary=Rotary(16, "float32", interleaved),
                    queries=Queries((3, 0, 7, 1), 4, E4M3, ragged=True),
                )  # fmt: skip
        for tables in ("float32", "float16", "bfloat16"):
            cases[f"vectors_of_e4m3_{style}_{tables}"] = replace(
                _RAGGED, d_head=128, dtype=E4M3, cache_dtype=E4M3, kind="table", size=30.0,
                rotary=Rotary(96, tables, interleaved),
                queries=Queries((3, 0, 7, 1), 4, E4M3, tables, ragged=True),
            )  # fmt: skip
    for out in ("bfloat16", "float32", E4M3):
        cases[f"queries_of_e4m3_into_{out}"] = replace(
            _DENSE, rotary=Rotary(16), queries=Queries((4, 4, 4), 6, E4M3, out)
        )
    cases["queries_into_e4m3"] = replace(
        _DENSE, rotary=Rotary(16), queries=Queries((4, 4, 4), 6, "float16", E4M3), size=300.0
    )


def _add_cases_of_other_widths(cases: dict[str, AppendCase]) -> None:
    """Adds cases whose V has another head dimension than K."""
    for kind in KINDS:
        cases[f"wide_v_{kind}"] = replace(
            _RAGGED, kind=kind, d_head_v=40, v_apart=True, rotary=Rotary(16),
            queries=Queries((2, 1, 0, 3), 4, ragged=True),
        )  # fmt: skip
    for d_head, d_head_v in ((192, 128), (16, 512), (64, 1), (37, 64)):
        cases[f"v_of_{d_head_v}_beside_{d_head}"] = replace(
            _RAGGED, kind="table", d_head=d_head, d_head_v=d_head_v, dtype="bfloat16",
            cache_dtype="bfloat16",
        )  # fmt: skip
    cases["wide_v_of_e4m3"] = replace(
        _DENSE, kind="table", d_head_v=64, cache_dtype=E4M3, scales="array", size=30.0
    )
    cases["wide_v_of_nobody"] = replace(
        _DENSE, lengths=(0, 0, 0), d_head_v=64, rotary=Rotary(16), queries=Queries((2, 2, 2), 6)
    )


def _add_rotary_cases(cases: dict[str, AppendCase]) -> None:
    for interleaved in (False, True):
        style = "interleaved" if interleaved else "halves"
        for d_head, dim in ((32, 2), (32, 16), (96, 80), (96, 32), (128, 128), (256, 256), (8, 6)):
            cases[f"{style}_{dim}_of_{d_head}"] = replace(
                _RAGGED, d_head=d_head, dtype="bfloat16", cache_dtype="bfloat16", kind="table",
                rotary=Rotary(dim, "bfloat16", interleaved),
                queries=Queries((3, 0, 7, 1), 4, "bfloat16", ragged=True),
            )  # fmt: skip
        for dtype in ("float16", "bfloat16", "float32"):
            for joined in (False, True):
                cases[f"{style}_tables_{dtype}_{'joined' if joined else 'apart'}"] = replace(
                    _DENSE, dtype="float16", cache_dtype=E4M3, scales="array",
                    rotary=Rotary(16, dtype, interleaved, joined=joined),
                    queries=Queries((4, 4, 4), 6, "float16", "bfloat16"),
                )  # fmt: skip
    for source in ("lengths", "start", "positions"):
        for kind in ("contiguous", "mapping"):
            cases[f"positions_from_{source}_{kind}"] = replace(
                _DENSE, kind=kind, padding=0.3, rotary=Rotary(16, source=source),
                queries=Queries((4, 4, 4), 6),
            )  # fmt: skip
    cases["q_at_start"] = replace(
        _DENSE, rotary=Rotary(16), queries=Queries((5, 5, 5), 6, at_start=True)
    )
    for dtype in ("float16", "bfloat16", "float32"):
        for out in ("in place", "float16", "bfloat16", "float32"):
            cases[f"q_{dtype}_{out.replace(' ', '_')}"] = replace(
                _DENSE, d_head=64, rotary=Rotary(32), queries=Queries((2, 2, 2), 6, dtype, out)
            )
