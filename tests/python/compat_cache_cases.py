"""Calls of flash_attn_with_kvcache, as broad as FlashAttention's published tests of it
(test_flash_attn_kvcache in tests/test_flash_attn.py and hopper/test_flash_attn.py). Pairs of values
are tried and not all products. Import it after pytest.importorskip("torch").
"""

from __future__ import annotations

import numpy as np
import torch
from compat_cache import CacheCase
from compat_support import HEADS, TYPES, assert_matches_oracle, int32, normal, tensor
from flashattn.cli.torch_arrays import to_array
from flashattn.compat import fa2, fa3
from memory import dtype_of
from pairwise import Row, pairwise

MASKS = {"full": (False, (-1, -1)), "causal": (True, (-1, -1)), "window": (False, (30, 11))}
UNIT = {"float32": 2e-7, "float16": 1e-3, "bfloat16": 8e-3}  # of the last place, relative

FACTORS = {
    "api": ("fa2", "fa3"),
    "sizes": ((8, 1, 128), (6, 3, 99), (2, 16, 300), (2, 64, 128)),  # batch, seqlen_q, capacity
    "heads": tuple(HEADS),
    "d_head": (40, 59, 64, 128),
    "dtype": TYPES,
    "mask": tuple(MASKS),
    "new": ("none", "as_queries", "fewer", "ragged"),
    "rotary": ("none", "interleaved", "halves"),
    "rotary_part": (1.0, 0.4),
    "rotary_from": ("cache_seqlens", "rotary_seqlens"),
    "where": ("dense", "larger", "batch_idx", "page1", "page16", "page64", "page16_rows"),
    "leftpad": (False, True),
    "lengths": ("tensor", "int"),
    "queries": ("padded", "ragged"),
    "softcap": (0.0, 20.0),
}
OF_FA3 = {
    "new": "ragged",
    "rotary_from": "rotary_seqlens",
    "queries": "ragged",
    "where": "page16_rows",
}


def _is_possible(row: Row) -> bool:
    if row.get("api") == "fa2" and any(row.get(name) == value for name, value in OF_FA3.items()):
        return False
    if row.get("new") == "none" and row.get("rotary", "none") != "none":
        return False
    if row.get("rotary_from") == "rotary_seqlens":
        return row.get("rotary") != "none" and row.get("new") != "none"
    return True


CASES = pairwise(FACTORS, _is_possible)


def name(row: Row) -> str:
    return "-".join(str(value).replace(" ", "") for value in row.values())


def make_case(row: Row, rng: np.random.Generator) -> CacheCase:
    batch, seqlen_q, capacity = row["sizes"]
    n_heads, n_heads_kv = HEADS[row["heads"]]
    d_head, dtype = row["d_head"], row["dtype"]
    of_q = np.full(batch, seqlen_q)
    if row["queries"] == "ragged":
        of_q = rng.integers(1, seqlen_q + 1, batch)
    new_k = new_v = None
    n_new = np.zeros(batch, int)
    if row["new"] != "none":
        most = seqlen_q if row["new"] == "as_queries" else max(1, seqlen_q // 2)
        n_new = np.full(batch, most)
        if row["new"] == "ragged":
            n_new = rng.integers(0, most + 1, batch)
        new_k, new_v = (
            [normal(rng, (n, n_heads_kv, d_head), dtype) for n in n_new] for _ in range(2)
        )
    lengths = rng.integers(0, capacity - n_new.max() + 1, batch)
    lengths[0] = capacity - n_new[0]  # one sequence fills its place
    if row["lengths"] == "int":
        lengths[:] = capacity - n_new.max()
    size, table, rows, n_entries = _layout(row["where"], batch, capacity, rng)
    caches = [normal(rng, (n_entries, size, n_heads_kv, d_head), dtype) for _ in range(2)]
    angles = rng.uniform(0, 6, (capacity + 64, int(d_head * row["rotary_part"] / 2)))
    turns = row["rotary"] != "none"
    cos, sin = (f(angles).astype(dtype_of(dtype)) for f in (np.cos, np.sin))
    causal, window = MASKS[row["mask"]]
    return CacheCase(
        q=[normal(rng, (n, n_heads, d_head), dtype) for n in of_q],
        k_cache=caches[0],
        v_cache=caches[1],
        lengths=lengths.tolist(),
        new_k=new_k,
        new_v=new_v,
        cos=cos if turns else None,
        sin=sin if turns else None,
        interleaved=row["rotary"] == "interleaved",
        rotary_seqlens=(
            rng.integers(0, 20, batch).tolist() if row["rotary_from"] == "rotary_seqlens" else None
        ),
        leftpad=(rng.integers(0, lengths // 2 + 1).tolist() if row["leftpad"] else None),
        table=table,
        rows=rows,
        same_position=not causal and window == (-1, -1),
    )


def _layout(
    where: str, batch: int, capacity: int, rng: np.random.Generator
) -> tuple[int, np.ndarray | None, list[int] | None, int]:
    """Returns the size of an entry, the table, the rows, and the number of entries."""
    if where == "dense":
        return capacity, None, None, batch
    if where == "larger":
        return capacity, None, None, batch + 2
    if where == "batch_idx":
        return capacity, None, rng.permutation(batch + 3)[:batch].tolist(), batch + 3
    size = int(where.removeprefix("page").removesuffix("_rows"))
    n_rows = batch + 2 if where.endswith("_rows") else batch
    n_pages = -(-capacity // size)
    table = rng.permutation(n_rows * n_pages).astype(np.int32).reshape(n_rows, n_pages)
    rows = rng.permutation(n_rows)[:batch].tolist() if where.endswith("_rows") else None
    return size, table, rows, n_rows * n_pages


def arguments(row: Row, case: CacheCase, device: str = "cpu") -> dict[str, object]:
    """Returns the arguments of the call, all by keyword."""
    causal, window = MASKS[row["mask"]]
    found = {
        "q": packed(case.q, row["queries"]),
        "k_cache": case.k_cache,
        "v_cache": case.v_cache,
        "cache_seqlens": case.lengths[0] if row["lengths"] == "int" else case.lengths,
        "cache_batch_idx": case.rows,
        "cache_leftpad": case.leftpad,
        "page_table" if row["api"] == "fa3" else "block_table": case.table,
        "causal": causal,
        "window_size": window,
        "softcap": row["softcap"],
        "return_softmax_lse": True,
    }
    if case.new_k is not None:
        found.update(k=packed(case.new_k, row["new"]), v=packed(case.new_v, row["new"]))
    if case.cos is not None:
        found.update(rotary_cos=case.cos, rotary_sin=case.sin, rotary_interleaved=case.interleaved)
    if case.rotary_seqlens is not None:
        found["rotary_seqlens"] = case.rotary_seqlens
    if row["queries"] == "ragged":
        found["cu_seqlens_q"] = ends_of(case.q)
        found["max_seqlen_q"] = row["sizes"][1]
    if row["new"] == "ragged":
        found["cu_seqlens_k_new"] = ends_of(case.new_k)
    return {key: as_tensor(value, device) for key, value in found.items()}


def packed(parts: list[np.ndarray], how: str) -> np.ndarray:
    return np.concatenate(parts) if how == "ragged" else np.stack(parts)


def ends_of(parts: list[np.ndarray]) -> list[int]:
    return [0, *np.cumsum([len(part) for part in parts]).tolist()]


def as_tensor(value: object, device: str) -> object:
    """Returns arrays and lists of lengths as tensors, and the rest as it is."""
    if isinstance(value, list):
        return int32(*value).to(device)
    return tensor(value).to(device) if isinstance(value, np.ndarray) else value


def flat(out: torch.Tensor, lse: torch.Tensor, queries: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns O and LSE as those of a ragged batch."""
    if queries == "ragged":
        return out, lse
    return out.flatten(0, 1), lse.transpose(0, 1).flatten(1, 2)


def check_case(row: Row, seed: int, device: str = "cpu") -> None:
    """Runs a case and asserts what it must give."""
    case = make_case(row, np.random.default_rng(seed))
    given = arguments(row, case, device)
    found = (fa2 if row["api"] == "fa2" else fa3).flash_attn_with_kvcache(**given)
    assert len(found) == (2 if row["api"] == "fa2" else 4)
    k_cache, v_cache = to_array(given["k_cache"]), to_array(given["v_cache"])
    expected_k, expected_v = case.caches_after()
    assert (v_cache == expected_v).all()
    assert_same_cache(k_cache, expected_k, expected_k != case.k_cache, row["dtype"])
    inputs, ends = case.ragged(k_cache, v_cache)
    causal, window = MASKS[row["mask"]]
    assert_matches_oracle(
        flat(*found[:2], row["queries"]),
        inputs,
        f"replay: {row}, seed {seed}",
        np.inf if row["api"] == "fa2" else -np.inf,
        causal=causal,
        window_size=window,
        softcap=row["softcap"],
        **ends,
    )


def assert_same_cache(
    found: np.ndarray, expected: np.ndarray, is_new: np.ndarray, dtype: str
) -> None:
    """Asserts that new tokens are right but for the rounding of the rotary embedding, and the rest
    the same."""
    assert (found[~is_new] == expected[~is_new]).all()
    new, wanted = (x[is_new].astype(np.float64) for x in (found, expected))
    np.testing.assert_allclose(new, wanted, rtol=UNIT[dtype], atol=UNIT[dtype])
