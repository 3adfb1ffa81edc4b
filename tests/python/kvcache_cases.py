"""Calls over a cache of K and V, as broad as FlashAttention's published tests of
flash_attn_with_kvcache (test_flash_attn_kvcache in tests/test_flash_attn.py and in
hopper/test_flash_attn.py): their lengths, heads, masks, head dimensions, pages, types, and more.

Pairs of values are tried and not all products of them. What this library has no argument for is
left out: new keys, rotary embedding, left padding, attention chunks, numbers of splits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Union

import numpy as np
from memory import E4M3
from paging import PagedProblem
from pairwise import Row, pairwise
from problems import AttentionProblem

CacheProblem = Union[AttentionProblem, PagedProblem]  # contiguous, or in pages


@dataclass(frozen=True)
class Sizes:
    batch: int
    seqlen_q: int
    seqlen_k: int  # no sequence has more keys

    def __str__(self) -> str:
        return f"{self.batch}x{self.seqlen_q}x{self.seqlen_k}"


@dataclass(frozen=True)
class Breadth:
    """What depends on the device."""

    sizes: tuple[Sizes, ...]
    not_in_pages: tuple[int, ...] = ()  # head dimensions that pages are not read with


# Batches have 32 rows and more, which the rules of docs/numerics.md need.
CPU = Breadth(
    sizes=(
        Sizes(8, 1, 128),
        Sizes(8, 1, 339),
        Sizes(7, 1, 3000),
        Sizes(5, 3, 799),
        Sizes(5, 3, 1024),
        Sizes(2, 16, 4500),
        Sizes(2, 64, 256),
        Sizes(2, 64, 800),
        Sizes(2, 64, 2048),
        Sizes(3, 128, 128),
        Sizes(2, 256, 512),
        Sizes(2, 400, 1100),
    ),
)

# Kernels that read pages do so in chunks of 16 bytes, which a head dimension of 59 does not fill.
CUDA = Breadth(
    sizes=(
        Sizes(16, 1, 128),
        Sizes(16, 1, 339),
        Sizes(7, 1, 8192),
        Sizes(9, 3, 799),
        Sizes(9, 3, 1024),
        Sizes(3, 16, 20000),
        Sizes(5, 64, 256),
        Sizes(5, 64, 800),
        Sizes(5, 64, 2048),
        Sizes(5, 128, 128),
        Sizes(5, 256, 512),
        Sizes(2, 2048, 3577),
    ),
    not_in_pages=(59,),
)

_D_HEADS = (59, 64, 80, 96, 128, 160, 192, 256)
_D_HEADS_V = (None, 64, 192)  # None: as d_head
_HEADS = {"mha": (6, 6), "gqa": (6, 3), "mqa": (6, 1), "gqa8": (16, 2)}  # n_heads, n_heads_kv
_TYPES = {
    "fp16": {"dtype": "float16"},
    "bf16": {"dtype": "bfloat16"},
    "e4m3_fp16": {"dtype": E4M3, "q_dtype": "float16"},
    "e4m3_bf16": {"dtype": E4M3, "q_dtype": "bfloat16"},
}


def cases(breadth: Breadth) -> dict[str, CacheProblem]:
    """Returns problems by names that say which values they combine. A problem holds all that its
    values depend on."""
    factors = {
        "sizes": breadth.sizes,
        "d_head": _D_HEADS,
        "d_head_v": _D_HEADS_V,
        "page_size": (None, 1, 4, 16, 64, 128, 256),
        "found_by": ("table", "rows", "indptr"),
        "v_apart": (False, True),
        "heads": tuple(_HEADS),
        "types": tuple(_TYPES),
        "mask": ("full", "causal", "window", "causal_window"),
        "queries": ("padded", "used", "ragged", "ragged_used"),
        "softcap": (0.0, 15.0),
    }
    rows = pairwise(factors, partial(_is_possible, breadth))
    return {_name(row): _problem(row, seed) for seed, row in enumerate(rows)}


def dense(problem: CacheProblem) -> AttentionProblem:
    """Returns the same problem without pages."""
    return problem.dense if isinstance(problem, PagedProblem) else problem


def _is_possible(breadth: Breadth, row: Row) -> bool:
    """Says whether values go together: a cache without pages has at most an index of rows, and that
    is one of large pages to the library."""
    if row.get("d_head") in breadth.not_in_pages:
        ways = ("table",)
    elif row.get("page_size", 1) is None:
        ways = ("table", "rows")
    else:
        return True
    contiguous = row.get("page_size") is None and not row.get("v_apart")
    return contiguous and row.get("found_by", "table") in ways


def _name(row: Row) -> str:
    d_head_v = "" if row["d_head_v"] is None else f"v{row['d_head_v']}"
    words = [row["sizes"], row["heads"], f"d{row['d_head']}{d_head_v}", row["types"]]
    if row["page_size"] is not None:
        words += [f"page{row['page_size']}", row["found_by"]]
    elif row["found_by"] == "rows":
        words.append("slots")
    words += ["v_apart"] * bool(row["v_apart"]) + [row["mask"], row["queries"]]
    return "-".join(map(str, words + ["softcap"] * bool(row["softcap"])))


def _problem(row: Row, seed: int) -> CacheProblem:
    sizes, rng = row["sizes"], np.random.default_rng(seed)
    n_heads, n_heads_kv = _HEADS[row["heads"]]
    problem = AttentionProblem(
        batch=sizes.batch,
        seqlen_k=sizes.seqlen_k,
        n_heads=n_heads,
        n_heads_kv=n_heads_kv,
        d_head=row["d_head"],
        d_head_v=row["d_head_v"],
        softcap=row["softcap"],
        seqused_k=tuple(rng.integers(1, sizes.seqlen_k + 1, sizes.batch).tolist()),
        seed=seed,
        **_types(row["types"], (sizes.batch, n_heads_kv), rng),
        **_mask(row["mask"], sizes, rng),
        **_queries(row["queries"], sizes, rng),
    )
    if row["page_size"] is not None:
        return PagedProblem(problem, row["page_size"], row["found_by"], row["v_apart"])
    if row["found_by"] == "rows":
        return PagedProblem(problem, sizes.seqlen_k, "slots")
    return problem


def _types(name: str, shape: tuple[int, int], rng: np.random.Generator) -> dict[str, object]:
    """Returns types; and scales of e4m3 for each sequence and K/V head, or one of V for all."""
    found = dict(_TYPES[name])
    if found["dtype"] == E4M3:
        scales = rng.uniform(0.25, 2, (2, *shape)).astype(np.float32)
        k, v = (tuple(map(tuple, x.tolist())) for x in scales)
        found.update(k_descale=k, v_descale=v if name == "e4m3_bf16" else v[0][0])
    return found


def _mask(name: str, sizes: Sizes, rng: np.random.Generator) -> dict[str, object]:
    left, right = rng.integers(0, sizes.seqlen_k // 2, 2).tolist()  # some sequences are longer
    windows = {"window": (left, right), "causal_window": (left, -1)}
    return {"causal": name.startswith("causal"), "window_size": windows.get(name, (-1, -1))}


def _queries(name: str, sizes: Sizes, rng: np.random.Generator) -> dict[str, object]:
    """Returns the lengths of queries: cu_seqlens_q of ragged ones, and seqused_q, beyond which each
    sequence has two rows or more. One sequence has no query where the others fill 32 rows."""
    lengths = rng.integers(1, sizes.seqlen_q + 1, sizes.batch)
    lengths[rng.integers(sizes.batch)] *= sizes.batch < 3
    spare = 2 if name.endswith("used") else 0
    found: dict[str, object] = {"seqlen_q": sizes.seqlen_q + spare}
    if name.startswith("ragged"):
        found["cu_seqlens_q"] = (0, *accumulate((lengths + spare).tolist()))
    if name.endswith("used"):
        found["seqused_q"] = tuple(lengths.tolist())
    return found
