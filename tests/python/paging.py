"""Attention problems whose K and V lie in pages. The keys of a padded problem are scattered over a
pool that holds NaN everywhere else, and ids that must not be followed are no pages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from memory import LATENT, arrange, nan_of
from problems import AttentionProblem, make_inputs, run_call

# The ways to find the pages of a sequence: flash_paging_t. 64: page_rows has so many bits. ends:
# lengths are those of cu_seqlens_k; used: of which seqused_k are in use.
KINDS = (
    "table", "rows", "indptr", "slots", "rows64", "slots64", "table ends", "slots64 ends",
    "indptr ends used",
)  # fmt: skip


_HOLES = (-1, -2, -(2**31))


@dataclass(frozen=True)
class PagedProblem:
    """p is padded along its keys. A slot has room for seqlen_k keys, and page_size is not used with
    it."""

    p: AttentionProblem
    page_size: int
    kind: str = "table"
    v_apart: bool = False
    holes: float = 0.0  # share of the pages that are holes of the table

    @property
    def way(self) -> str:
        """Gives the kind, however many bits rows have, and whatever has the lengths."""
        return self.kind.partition(" ")[0].removesuffix("64")

    @property
    def lengths(self) -> tuple[int, ...]:
        p = self.p
        return p.seqused_k if p.seqused_k is not None else (p.seqlen_k,) * p.batch

    @property
    def row_type(self) -> type:
        return np.int64 if "64" in self.kind else np.int32

    @property
    def hidden_pages(self) -> np.ndarray:
        """Gives [batch, pages]: which pages of each sequence are holes, of the seed."""
        n_pages = -(-max(self.p.seqlen_k, 1) // self.page_size)
        drawn = np.random.default_rng([self.p.seed, 11]).random((self.p.batch, n_pages))
        return drawn < self.holes

    @property
    def hidden_keys(self) -> np.ndarray:
        """Gives [batch, seqlen_k]: which keys lie in holes."""
        return self.hidden_pages.repeat(self.page_size, axis=1)[:, : self.p.seqlen_k]

    @property
    def dense(self) -> AttentionProblem:
        return replace(self.p, seqused_k=self.lengths)


@dataclass(frozen=True)
class Pool:
    """K or V in pages, with the places of each sequence's pages."""

    pages: np.ndarray
    ids: list[list[int]]  # of each sequence


def _scatter(x: np.ndarray, q: PagedProblem, rng: np.random.Generator, layout: str) -> Pool:
    """Copies the used keys of [batch, seqlen_k, n_heads_kv, d_head], page by page, at random."""
    size = max(q.p.seqlen_k, 1) if q.way == "slots" else q.page_size
    n_ids = [-(-length // size) for length in q.lengths]
    places = [int(i) for i in rng.permutation(sum(n_ids) + 2)]
    pages = np.full((len(places), size, *x.shape[2:]), nan_of(x.dtype), x.dtype)
    ids: list[list[int]] = []
    for b, length in enumerate(q.lengths):
        ids.append([places.pop() for _ in range(n_ids[b])])
        for i, page in enumerate(ids[b]):
            keys = x[b, i * size : min((i + 1) * size, length)]
            pages[page, : len(keys)] = keys
    return Pool(arrange(pages, layout), ids)


def _no_page(rng: np.random.Generator, n_pages: int, shape: tuple[int, ...]) -> np.ndarray:
    """Returns ids that must not be followed."""
    return rng.choice(np.array([-1, n_pages, 2**31 - 1, -(2**31)], np.int32), shape)


def _dig(q: PagedProblem, pool: Pool, rng: np.random.Generator, ids: tuple[int, ...]) -> None:
    """Makes holes of pages, whose ids become some of `ids`, and whose keys NaN."""
    for b, pages in enumerate(pool.ids):
        for i in np.flatnonzero(q.hidden_pages[b, : len(pages)]):
            pool.pages[pages[i]] = nan_of(pool.pages.dtype)
            pages[i] = int(rng.choice(ids))


def _table(q: PagedProblem, pool: Pool, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Makes a table [rows, ids] with a row more than is used, and an id more than any sequence
    has."""
    most = -(-max(q.p.seqlen_k, 1) // q.page_size) + 1
    table = _no_page(rng, len(pool.pages), (len(rows) + 1, most))
    for b, ids in enumerate(pool.ids):
        table[rows[b], : len(ids)] = ids
    return table


def _flat(pool: Pool, indptr: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    table = _no_page(rng, len(pool.pages), (int(indptr[-1]),))
    for b, ids in enumerate(pool.ids):
        table[indptr[b] : indptr[b] + len(ids)] = ids
    return table


def _lengths(q: PagedProblem, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns what says how many keys each sequence has."""
    used = np.array(q.lengths, np.int32)
    if "ends" not in q.kind:
        return {"seqused_k": used}
    if "used" not in q.kind:
        return {"cu_seqlens_k": np.cumsum([0, *used]).astype(np.int32)}
    room = used if q.way == "slots" else -(-used // q.page_size) * q.page_size
    existing = rng.integers(used, np.minimum(room, q.p.seqlen_k), endpoint=True)
    return {"seqused_k": used, "cu_seqlens_k": np.cumsum([0, *existing]).astype(np.int32)}


def make_pages(
    q: PagedProblem, inputs: list[np.ndarray]
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Returns q, k, v of a padded problem with pages, and the keywords that describe the pages."""
    rng = np.random.default_rng(q.p.seed)
    layout_k, layout_v = q.p.layouts[1:3]
    seed = int(rng.integers(2**31))
    k = _scatter(inputs[1], q, np.random.default_rng(seed), layout_k)
    v = _scatter(inputs[2], q, np.random.default_rng(seed + q.v_apart), layout_v)
    if q.p.dtype == LATENT:
        v = k
    batch = q.p.batch
    options = _lengths(q, rng)
    if q.holes:
        _dig(q, k, rng, _HOLES)
        if v is not k:
            _dig(q, v, rng, (*_HOLES, 0, 2**31 - 1))  # V's id is not looked at there
        options["page_holes"] = True
    if q.way == "slots":
        if q.v_apart:
            v = _scatter(inputs[2], q, np.random.default_rng(seed), layout_v)
        rows = [ids[0] if ids else -1 for ids in k.ids]
        options["page_rows"] = np.array(rows, q.row_type)
        return [inputs[0], k.pages, v.pages], _in_memory(options)
    if q.way == "indptr":
        spare = rng.integers(0, 3, batch)
        n_ids = [len(ids) + int(s) for ids, s in zip(k.ids, spare)]
        indptr = int(rng.integers(0, 3)) + np.cumsum([0, *n_ids]).astype(np.int32)
        options["page_indptr"] = indptr
        tables = [_flat(pool, indptr, rng) for pool in (k, v)]
    else:
        rows = np.arange(batch)
        if q.way == "rows":
            rows = rng.permutation(batch)
            options["page_rows"] = rows.astype(q.row_type)
        tables = [_table(q, pool, rows, rng) for pool in (k, v)]
    options["page_table"] = tables[0]
    if q.v_apart:
        options["v_page_table"] = tables[1]
    return [inputs[0], k.pages, v.pages], _in_memory(options)


def _in_memory(options: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copies each array to memory of its own, which ends where it must not be read."""
    return {
        name: x if x is True else arrange(np.ascontiguousarray(x), "contiguous")
        for name, x in options.items()
    }


def run_paged(
    q: PagedProblem, inputs: list[np.ndarray] | None = None, config: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (O, LSE) of one call with pages."""
    pages, options = make_pages(q, inputs or make_inputs(q.dense))
    p = replace(q.p, seqused_k=None)
    return run_call(p, pages, options, config)
