"""flashattn.compat: flash_attn_with_kvcache of FlashAttention-2 and -3. Each case of
compat_cache_cases.py checks the whole cache after the call, and O and LSE against the oracle.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from compat_cache_cases import CASES, check_case, name  # noqa: E402
from compat_support import int32, normal, tensor  # noqa: E402
from flashattn.compat import fa2, fa3  # noqa: E402


@pytest.mark.parametrize("seed", range(len(CASES)), ids=map(name, CASES))
def test_cache(seed: int) -> None:
    check_case(CASES[seed], seed)


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


def test_a_cache_whose_v_has_a_d_head_of_its_own(cache: tuple, new: tuple) -> None:
    k_cache, v_cache = cache[0], cache[1][..., :5]
    lengths = int32(3, 14, 1)
    o = fa3.flash_attn_with_kvcache(Q, k_cache, v_cache, cache_seqlens=lengths)
    whole = fa3.flash_attn_with_kvcache(Q, *cache, cache_seqlens=lengths)
    assert torch.equal(o, whole[..., :5])
    narrow = k_cache.clone(), v_cache.clone()
    o = fa3.flash_attn_with_kvcache(
        Q, *narrow, new[0], new[1][..., :5], cache_seqlens=lengths, causal=True
    )
    whole = fa3.flash_attn_with_kvcache(Q, *cache, *new, cache_seqlens=lengths, causal=True)
    assert torch.equal(o, whole[..., :5])
    assert torch.equal(narrow[0], cache[0]) and torch.equal(narrow[1], cache[1][..., :5])
    with pytest.raises(ValueError, match=r"v has heads and d_head \(2, 8\), and v_cache \(2, 5\)"):
        fa3.flash_attn_with_kvcache(Q, *narrow, *new, cache_seqlens=lengths)
    with pytest.raises(NotImplementedError, match="v has a d_head of 5, and k of 8"):
        fa2.flash_attn_with_kvcache(Q, *narrow, *new, cache_seqlens=lengths)


@pytest.fixture
def latent() -> tuple[torch.Tensor, ...]:
    """Returns a cache of latent attention, and q and qv."""
    generator = torch.Generator().manual_seed(3)
    shapes = ((3, 40, 1, 48), (3, 2, 8, 16), (3, 2, 8, 32))
    cache, q, qv = (torch.randn(shape, generator=generator) for shape in shapes)
    return cache, q, qv


@pytest.mark.parametrize("page_size", [None, 8])
def test_a_cache_of_latent_attention(latent: tuple, page_size: int | None) -> None:
    cache, q, qv = latent
    k = cache.repeat_interleave(8, dim=2)
    expected = fa3.flash_attn_with_kvcache(
        torch.cat([qv, q], -1), k, k[..., :32].clone(), cache_seqlens=int32(40, 7, 23), causal=True
    )
    options = {"cache_seqlens": int32(40, 7, 23), "causal": True, "qv": qv}
    if page_size:
        cache = cache.view(-1, page_size, 1, 48)
        options["page_table"] = torch.arange(15, dtype=torch.int32).view(3, 5)
    o = fa3.flash_attn_with_kvcache(q, cache[..., 32:], cache[..., :32], **options)
    assert o.shape == (3, 2, 8, 32)
    np.testing.assert_allclose(o.numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)


def test_latent_attention_needs_one_cache(latent: tuple) -> None:
    cache, q, qv = latent
    k, v = cache[..., 32:], cache[..., :32]
    for others in ((k.clone(), v), (k, v.clone()), (cache[..., :16], cache[..., 16:])):
        with pytest.raises(NotImplementedError, match="qv is given, and v_cache and k_cache are"):
            fa3.flash_attn_with_kvcache(q, *others, qv=qv)
    with pytest.raises(NotImplementedError, match="qv is given together with rotary_cos"):
        fa3.flash_attn_with_kvcache(q, k, v, qv=qv, rotary_cos=torch.ones(40, 4))
    with pytest.raises(ValueError, match=r"qv is torch.float32 \(3, 2, 8, 31\)"):
        fa3.flash_attn_with_kvcache(q, k, v, qv=qv[..., :31])


def test_caches_beside_each_other_in_one_tensor(cache: tuple, new: tuple) -> None:
    both = torch.stack(cache, dim=2)  # [entries, size, 2, n_heads_kv, d_head]
    arguments = {"cache_seqlens": int32(3, 14, 0), "causal": True}
    leftpad = int32(1, 2, 0)
    o = fa2.flash_attn_with_kvcache(Q, *both.unbind(2), *new, cache_leftpad=leftpad, **arguments)
    same = fa2.flash_attn_with_kvcache(Q, *cache, *new, cache_leftpad=leftpad, **arguments)
    assert torch.equal(o, same) and torch.equal(both, torch.stack(cache, dim=2))


def test_caches_that_page_tables_alone_keep_apart(new: tuple) -> None:
    """As transformers' continuous batching has them: pages of K and V by turns, in one tensor."""
    e4m3, scale = torch.float8_e4m3fn, torch.full((3, 2), 0.25)
    for dtype, options in (
        (torch.float32, {}),
        (e4m3, {"k_descale": scale, "v_descale": 2 * scale}),
    ):
        pages = torch.randn(12, 4, 2, 8).to(dtype)
        k_cache, v_cache = pages[:-1], pages[1:]
        apart = [x.clone() for x in (k_cache, v_cache)]
        table = int32(4, 2, 8, 0, 10, 6).view(3, 2)
        arguments = {
            "cache_seqlens": int32(3, 6, 0),
            "page_table": table,
            "causal": True,
            **options,
        }
        o = fa3.flash_attn_with_kvcache(Q, k_cache, v_cache, *new, **arguments)
        assert torch.equal(o, fa3.flash_attn_with_kvcache(Q, *apart, *new, **arguments))
        for x, y in zip((k_cache[::2], v_cache[::2]), apart):
            assert torch.equal(x.float(), y[::2].float())


def test_leftpad_of_pages_needs_tokens_that_are_as_far_apart(cache: tuple) -> None:
    part = [x[:, :8] for x in cache]  # entries are farther apart than their size
    options = {"cache_seqlens": 5, "cache_leftpad": int32(1, 0, 2)}
    o = fa2.flash_attn_with_kvcache(Q, *part, **options)
    assert torch.equal(o, fa2.flash_attn_with_kvcache(Q, *cache, **options))
    table = int32(0, 1, 2).view(3, 1)
    with pytest.raises(NotImplementedError, match="cache_leftpad is given with pages"):
        fa2.flash_attn_with_kvcache(Q, *part, block_table=table, **options)


@pytest.mark.parametrize("entries", [None, (2, 0, 1)], ids=["dense", "slots"])
def test_leftpad_of_a_cache_is_that_of_pages(cache: tuple, entries: tuple | None) -> None:
    options = {"cache_seqlens": int32(13, 0, 16), "cache_leftpad": int32(4, 2, 15), "causal": True}
    rows = None if entries is None else int32(*entries)
    o = fa2.flash_attn_with_kvcache(Q, *cache, cache_batch_idx=rows, **options)
    table = int32(*(entries or range(3))).view(3, 1)
    in_pages = fa2.flash_attn_with_kvcache(Q, *cache, block_table=table, **options)
    assert torch.equal(o, in_pages)


@pytest.mark.parametrize("chunk", [5, 0, -1])
def test_a_cache_in_chunks(cache: tuple, chunk: int) -> None:
    lengths = int32(13, 6, 16)
    o = fa3.flash_attn_with_kvcache(
        Q, *cache, cache_seqlens=lengths, causal=True, attention_chunk=chunk
    )
    keys = (lengths - 1) // 5 * 5 if chunk > 0 else int32(0, 0, 0)
    for b, (begin, end) in enumerate(zip(keys.tolist(), lengths.tolist())):
        part = [x[b : b + 1, begin:end] for x in cache]
        last = fa3.flash_attn_func(Q[b : b + 1, -1:], *part)
        torch.testing.assert_close(o[b : b + 1, -1:], last)


def test_leftpad_of_a_whole_cache(cache: tuple) -> None:
    pad = int32(4, 0, 16)
    o, lse = fa2.flash_attn_with_kvcache(Q, *cache, cache_leftpad=pad, return_softmax_lse=True)
    assert torch.equal(o[:1], fa2.flash_attn_func(Q[:1], *(x[:1, 4:] for x in cache)))
    assert (o[2] == 0).all() and (lse[2] == torch.inf).all()


def test_sequences_that_share_a_row_of_the_table(cache: tuple) -> None:
    table = int32(2, 0).expand(3, 2)
    o = fa3.flash_attn_with_kvcache(Q, *cache, cache_seqlens=20, page_table=table)
    assert torch.equal(o[0], o[1]) and torch.equal(o[0], o[2])


def test_tables_that_are_part_of_larger_ones(cache: tuple) -> None:
    table = int32(2, 0, 9, 1, 2, 9, 0, 1, 9).view(3, 3)
    parts = table[:, :2], table[:, :2].t().contiguous().t()  # the second is copied
    found = [
        fa2.flash_attn_with_kvcache(Q, *cache, cache_seqlens=20, block_table=part) for part in parts
    ]
    whole = fa2.flash_attn_with_kvcache(Q, *cache, cache_seqlens=20, block_table=table)
    assert all(torch.equal(o, whole) for o in found)


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


def test_new_tokens_become_e4m3(cache: tuple, new: tuple) -> None:
    """flash-attn has no such call: new tokens are there of the cache's type."""
    e4m3 = torch.float8_e4m3fn
    scales = torch.tensor([[0.5, 2.0], [1.0, 0.25], [4.0, 1.0]]), torch.full((3, 2), 0.5)
    options = {"k_descale": scales[0], "v_descale": scales[1], "causal": True}
    expected = [x.to(e4m3) for x in cache]
    for x, token, scale in zip(expected, new, scales):
        x[:, 7:9] = (token / scale[:, None, :, None]).clamp(-448, 448).to(e4m3)
    for q, more in ((Q, {}), (Q.to(e4m3), {"q_descale": 2 * scales[1]})):
        found = [x.to(e4m3) for x in cache]
        o = fa3.flash_attn_with_kvcache(q, *found, *new, cache_seqlens=7, **options, **more)
        for x, y in zip(found, expected):
            assert torch.equal(x.view(torch.uint8), y.view(torch.uint8))
        cut = [x[:, :9] for x in expected]
        assert torch.equal(o, fa3.flash_attn_func(q, *cut, **options, **more))
    with pytest.raises(ValueError, match="v is torch.float16, and v_cache torch.float8_e4m3fn"):
        fa3.flash_attn_with_kvcache(Q, *found, new[0], new[1].half(), cache_seqlens=7)


def test_new_tokens_without_room_change_nothing(cache: tuple, new: tuple) -> None:
    before = [x.clone() for x in cache]
    with pytest.raises(ValueError, match="new token 1 of sequence 1 would be its key 16"):
        fa2.flash_attn_with_kvcache(Q, *cache, *new, cache_seqlens=int32(3, 15, 0))
    with pytest.raises(ValueError, match=r"cache_seqlens\[2\] is -1: negative"):
        fa2.flash_attn_with_kvcache(Q, *cache, *new, cache_seqlens=int32(3, 5, -1))
    table = int32(0, 1, -1, 2, 1, 0).view(3, 2)
    with pytest.raises(ValueError, match="page_table: new token 0 of sequence 1"):
        fa3.flash_attn_with_kvcache(Q, *cache, *new, cache_seqlens=1, page_table=table)
    table = int32(0, 1, 2).view(3, 1)
    parts = table.expand(3, 3)[:, :1], torch.cat([table, int32(1, 2, 0).view(3, 1)], 1)[:, :1]
    for part in parts:  # what lies beside the table is not a part of it
        with pytest.raises(ValueError, match="would be its key 16: the cache holds 16 keys"):
            fa3.flash_attn_with_kvcache(Q, *cache, *new, cache_seqlens=15, page_table=part)
    rows = int32(0, 1, 3)
    with pytest.raises(ValueError, match=r"cache_batch_idx.* sequence 2"):
        fa3.flash_attn_with_kvcache(Q, *cache, *new, cache_seqlens=1, cache_batch_idx=rows)
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


def test_tokens_of_e4m3_turn(cache: tuple, new: tuple) -> None:
    """As the same codes of bfloat16 do, which are rounded to e4m3 then."""
    angles = torch.arange(64.0).reshape(16, 4)
    turns = angles.cos(), angles.sin()
    codes = [x.to(torch.float8_e4m3fn) for x in (Q, *cache, *new)]
    k_cache, v_cache = codes[1].clone(), codes[2].clone()
    o = fa3.flash_attn_with_kvcache(
        codes[0], k_cache, v_cache, *codes[3:], rotary_cos=turns[0], rotary_sin=turns[1],
        cache_seqlens=1, causal=True,
    )  # fmt: skip
    wide_k, wide_v = codes[1].clone(), codes[2].clone()
    turned = fa3.flash_attn_with_kvcache(
        codes[0].float().bfloat16(), wide_k, wide_v, *(x.float() for x in codes[3:]),
        rotary_cos=turns[0], rotary_sin=turns[1], cache_seqlens=1, causal=True,
    )  # fmt: skip
    for found, expected in ((k_cache, wide_k), (v_cache, wide_v)):
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    assert o.dtype == torch.bfloat16 and not torch.equal(k_cache.float(), codes[1].float())
    assert (o - turned).norm() < 0.1 * turned.norm()


def test_wrong_arguments_are_named(cache: tuple, new: tuple) -> None:
    k_cache, v_cache = cache
    k, v = new
    call = fa3.flash_attn_with_kvcache
    for arguments, message in (
        ({"k": k, "cache_seqlens": 1}, "k is given without v"),
        ({"k": k, "v": v}, "without cache_seqlens"),
        ({"k": k.half(), "v": v, "cache_seqlens": 1}, "k is torch.float16, and k_cache"),
        ({"k": k, "v": v[:, :, :1], "cache_seqlens": 1}, r"v has heads and d_head \(1, 8\)"),
        ({"k": k, "v": v[:, :1], "cache_seqlens": 1}, r"k has shape \(3, 2, 2, 8\), and v \(3, 1"),
        ({"k": k[:2], "v": v[:2], "cache_seqlens": 1}, r"\(2, 2, 2, 8\), and q a batch of 3"),
        ({"cu_seqlens_k_new": int32(0, 1)}, "cu_seqlens_k_new is given without k"),
        (
            {"k": k[0], "v": v[0], "cache_seqlens": 1, "cu_seqlens_k_new": int32(0, 1)},
            r"cu_seqlens_k_new is torch.int32 \(2,\), not torch.int32 \(4,\)",
        ),
        ({"cache_seqlens": torch.zeros(3, dtype=torch.int64)}, "cache_seqlens is torch.int64"),
        ({"cache_leftpad": int32(1)}, r"cache_leftpad is torch.int32 \(1,\)"),
        ({"cache_batch_idx": int32(1)}, "cache_batch_idx is torch.int32"),
        ({"page_table": int32(1)}, r"page_table is torch.int32 \(1,\)"),
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
