"""flashattn.compat: flash_attn_with_kvcache of FlashAttention-2 and -3, as broad as their published
tests of it (test_flash_attn_kvcache in tests/test_flash_attn.py and hopper/test_flash_attn.py).

Each case checks the whole cache after the call, and O and LSE against the oracle; pairs of values
are tried and not all products.
"""

from __future__ import annotations

import numpy as np
import pytest
from memory import dtype_of
from pairwise import Row, pairwise

torch = pytest.importorskip("torch")
from compat_cache import CacheCase  # noqa: E402
from compat_support import (  # noqa: E402
    HEADS,
    TYPES,
    assert_matches_oracle,
    int32,
    normal,
    tensor,
)
from flashattn.cli.torch_arrays import to_array  # noqa: E402
from flashattn.compat import fa2, fa3  # noqa: E402

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


def arguments(
    row: Row, case: CacheCase, caches: tuple[torch.Tensor, torch.Tensor]
) -> dict[str, object]:
    """Returns the arguments of the call, all by keyword."""
    causal, window = MASKS[row["mask"]]
    found = {
        "q": packed(case.q, row["queries"]),
        "k_cache": caches[0],
        "v_cache": caches[1],
        "cache_seqlens": case.lengths[0] if row["lengths"] == "int" else int32(*case.lengths),
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
    return {key: as_tensor(value) for key, value in found.items()}


def packed(parts: list[np.ndarray], how: str) -> torch.Tensor:
    return tensor(np.concatenate(parts) if how == "ragged" else np.stack(parts))


def ends_of(parts: list[np.ndarray]) -> torch.Tensor:
    return int32(0, *np.cumsum([len(part) for part in parts]).tolist())


def as_tensor(value: object) -> object:
    if isinstance(value, list):
        return int32(*value)
    return tensor(value) if isinstance(value, np.ndarray) else value


def flat(out: torch.Tensor, lse: torch.Tensor, queries: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns O and LSE as those of a ragged batch."""
    if queries == "ragged":
        return out, lse
    return out.flatten(0, 1), lse.transpose(0, 1).flatten(1, 2)


@pytest.mark.parametrize("seed", range(len(CASES)), ids=[name(row) for row in CASES])
def test_cache(seed: int) -> None:
    row = CASES[seed]
    case = make_case(row, np.random.default_rng(seed))
    caches = tensor(case.k_cache), tensor(case.v_cache)
    function = (fa2 if row["api"] == "fa2" else fa3).flash_attn_with_kvcache
    found = function(**arguments(row, case, caches))
    assert len(found) == (2 if row["api"] == "fa2" else 4)
    after = [to_array(cache) for cache in caches]
    expected_k, expected_v = case.caches_after()
    assert (after[1] == expected_v).all()
    assert_same_cache(after[0], expected_k, expected_k != case.k_cache, row["dtype"])
    inputs, ends = case.ragged(*after)
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


# ---- Single cases ----


@pytest.fixture
def cache() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(5)
    return tuple(tensor(normal(rng, (3, 16, 2, 8), "float32")) for _ in range(2))


@pytest.fixture
def new() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(6)
    return tuple(tensor(normal(rng, (3, 2, 2, 8), "float32")) for _ in range(2))


Q = torch.ones(3, 2, 4, 8)


def test_a_whole_cache_by_default(cache: tuple) -> None:
    for function in (fa2.flash_attn_with_kvcache, fa3.flash_attn_with_kvcache):
        o = function(Q, *cache)
        assert torch.equal(o, fa2.flash_attn_func(Q, *cache))
        assert torch.equal(o, function(Q, *cache, cache_batch_idx=int32(0, 1, 2)))


def test_caches_beside_each_other_in_one_tensor(cache: tuple, new: tuple) -> None:
    both = torch.stack(cache, dim=2)  # [entries, size, 2, n_heads_kv, d_head]
    arguments = {"cache_seqlens": int32(3, 14, 0), "causal": True}
    leftpad = int32(1, 2, 0)
    o = fa2.flash_attn_with_kvcache(Q, *both.unbind(2), *new, cache_leftpad=leftpad, **arguments)
    same = fa2.flash_attn_with_kvcache(Q, *cache, *new, cache_leftpad=leftpad, **arguments)
    assert torch.equal(o, same) and torch.equal(both, torch.stack(cache, dim=2))


def test_leftpad_needs_tokens_that_are_as_far_apart(cache: tuple) -> None:
    part = [x[:, :8] for x in cache]  # entries are farther apart than their size
    assert fa2.flash_attn_with_kvcache(Q, *part, cache_seqlens=5).shape == Q.shape
    with pytest.raises(NotImplementedError, match="cache_leftpad is given with a k_cache"):
        fa2.flash_attn_with_kvcache(Q, *part, cache_seqlens=5, cache_leftpad=int32(1, 0, 0))


def test_leftpad_of_a_whole_cache(cache: tuple) -> None:
    pad = int32(4, 0, 16)
    o, lse = fa2.flash_attn_with_kvcache(Q, *cache, cache_leftpad=pad, return_softmax_lse=True)
    assert torch.equal(o[:1], fa2.flash_attn_func(Q[:1], *(x[:1, 4:] for x in cache)))
    assert (o[2] == 0).all() and (lse[2] == torch.inf).all()


def test_sequences_that_share_a_row_of_the_table(cache: tuple) -> None:
    table = int32(2, 0).expand(3, 2)
    o = fa3.flash_attn_with_kvcache(Q, *cache, cache_seqlens=20, page_table=table)
    assert torch.equal(o[0], o[1]) and torch.equal(o[0], o[2])


def test_new_tokens_of_padding_are_not_written(cache: tuple, new: tuple) -> None:
    before = [x.clone() for x in cache]
    k, v = (x.flatten(0, 1) for x in new)  # 6 tokens, of which sequences have 3
    for ends, written in (((0, 1, 1, 3), 3), ((0, 0, 0, 0), 0)):
        fa3.flash_attn_with_kvcache(
            Q, *cache, k, v, cache_seqlens=int32(4, 5, 6), cu_seqlens_k_new=int32(*ends)
        )
        changed = (cache[0] != before[0]).any(-1).any(-1).nonzero()
        assert len(changed) == written
        if written:
            assert changed.tolist() == [[0, 4], [2, 6], [2, 7]]
            assert torch.equal(cache[0][2, 6:8], k[1:3]) and torch.equal(cache[1][2, 6:8], v[1:3])
        for x, old in zip(cache, before):
            x.copy_(old)


def test_an_e4m3_cache_takes_new_tokens(cache: tuple, new: tuple) -> None:
    e4m3 = torch.float8_e4m3fn
    cache, new = ([x.to(e4m3) for x in pair] for pair in (cache, new))
    scale = torch.full((3, 2), 0.5)
    arguments = {"k_descale": scale, "v_descale": scale, "q_descale": 2 * scale}
    o = fa3.flash_attn_with_kvcache(
        Q.to(e4m3), *cache, *new, cache_seqlens=7, causal=True, **arguments
    )
    assert o.dtype == torch.bfloat16
    assert torch.equal(cache[0][:, 7:9].view(torch.uint8), new[0].view(torch.uint8))
    cut = [x[:, :9] for x in cache]
    assert torch.equal(o, fa3.flash_attn_func(Q.to(e4m3), *cut, causal=True, **arguments))


def test_new_tokens_without_room_change_nothing(cache: tuple, new: tuple) -> None:
    before = [x.clone() for x in cache]
    with pytest.raises(ValueError, match=r"cache_seqlens\[1\] is 15, and k has 2 new tokens"):
        fa2.flash_attn_with_kvcache(Q, *cache, *new, cache_seqlens=int32(3, 15, 0))
    table = int32(0, 1, -1, 2, 1, 0).view(3, 2)
    with pytest.raises(ValueError, match=r"cache_seqlens\[1\] is 1, and k has 2 new tokens"):
        fa3.flash_attn_with_kvcache(Q, *cache, *new, cache_seqlens=1, page_table=table)
    assert all(torch.equal(x, old) for x, old in zip(cache, before))


def test_rotary_embedding_needs_what_it_turns(cache: tuple, new: tuple) -> None:
    turns = torch.ones(16, 4)
    call = fa2.flash_attn_with_kvcache
    with pytest.raises(ValueError, match="rotary_cos is given without k and v"):
        call(Q, *cache, rotary_cos=turns, rotary_sin=turns, cache_seqlens=1)
    with pytest.raises(ValueError, match="rotary_cos is given without rotary_sin"):
        call(Q, *cache, *new, rotary_cos=turns, cache_seqlens=1)
    with pytest.raises(ValueError, match="rotary_cos has 15 positions"):
        call(Q, *cache, *new, turns[:15], turns[:15], 1)
    with pytest.raises(ValueError, match="rotary_dim is 10, and d_head only 8"):
        call(Q, *cache, *new, torch.ones(16, 5), torch.ones(16, 5), 1)
    e4m3 = [x.to(torch.float8_e4m3fn) for x in (*cache, *new)]
    with pytest.raises(NotImplementedError, match="rotary_cos is given, and k is torch.float8"):
        call(Q, *e4m3, turns, turns, 1)


def test_wrong_arguments_are_named(cache: tuple, new: tuple) -> None:
    k_cache, v_cache = cache
    k, v = new
    call = fa3.flash_attn_with_kvcache
    for arguments, message in (
        ({"k": k, "cache_seqlens": 1}, "k is given without v"),
        ({"k": k, "v": v}, "without cache_seqlens"),
        ({"k": k.half(), "v": v, "cache_seqlens": 1}, "k is torch.float16, and k_cache"),
        ({"k": k, "v": v[:, :, :1], "cache_seqlens": 1}, r"v has heads and d_head \(1, 8\)"),
        ({"k": k, "v": v[:, :1], "cache_seqlens": 1}, "k has 6 tokens, and v 3"),
        ({"cu_seqlens_k_new": int32(0, 1)}, "cu_seqlens_k_new is given without k"),
    ):
        with pytest.raises(ValueError, match=message):
            call(Q, k_cache, v_cache, **arguments)
    with pytest.raises(ValueError, match="v_cache is not contiguous along its innermost axis"):
        call(Q, k_cache, v_cache.transpose(2, 3).contiguous().transpose(2, 3))
    with pytest.raises(ValueError, match="k_cache has 3 axes"):
        call(Q, k_cache[0], v_cache)
    with pytest.raises(ValueError, match="cache_batch_idx is given with block_table"):
        rows, table = int32(0, 1, 2), int32(0, 1, 2).view(3, 1)
        fa2.flash_attn_with_kvcache(Q, *cache, cache_batch_idx=rows, block_table=table)
