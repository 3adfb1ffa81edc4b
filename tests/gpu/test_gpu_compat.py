"""flashattn.compat on a CUDA device: flash_attn_with_kvcache over the cases of the CPU's test, on
the caller's stream, without waiting for the device, and in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from compat_cache_cases import CASES, check_case, name
from flashattn.compat import fa2, fa3
from pairwise import Row


def _is_served(row: Row) -> bool:
    """Kernels on CUDA devices are of 16 bits, and read pages in chunks of 16 bytes."""
    in_pages = row["where"] not in ("dense", "larger")
    return row["dtype"] != "float32" and not (in_pages and row["d_head"] % 8)


SERVED = {name(row): seed for seed, row in enumerate(CASES) if _is_served(row)}


@pytest.mark.parametrize("seed", SERVED.values(), ids=SERVED)
def test_cache(seed: int) -> None:
    check_case(CASES[seed], seed, "cuda")


@contextmanager
def no_waiting() -> Iterator[None]:
    """torch raises an error where it would wait for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Decode:
    """A decode step in pages, with new tokens and rotary embedding."""

    def __init__(self) -> None:
        generator = torch.Generator("cuda").manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)

        self.q, self.k, self.v = random(3, 1, 8, 64), random(3, 1, 2, 64), random(3, 1, 2, 64)
        self.caches = random(24, 16, 2, 64), random(24, 16, 2, 64)
        self.table = torch.randperm(24, device="cuda").to(torch.int32).view(3, 8)
        self.lengths = torch.tensor([5, 100, 64], dtype=torch.int32, device="cuda")
        self.turns = random(128, 32), random(128, 32)

    def step(self, caches: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return fa2.flash_attn_with_kvcache(
            self.q, *caches, self.k, self.v, *self.turns, self.lengths, None, None, self.table,
            causal=True,
        )  # fmt: skip

    def copies(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.caches[0].clone(), self.caches[1].clone()


def _of_e4m3(*shape: int) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return x.to(torch.float8_e4m3fn)


def _relative(o: torch.Tensor, expected: torch.Tensor) -> float:
    return float((o.cpu().float() - expected).norm() / expected.norm())


E4M3_OPTIONS = [{}, {"causal": True}, {"window_size": (30, 0)}, {"softcap": 5.0}]


@pytest.mark.parametrize("options", E4M3_OPTIONS, ids=str)
@pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
def test_q_of_e4m3(d_head: int, options: dict) -> None:
    """A kernel that multiplies e4m3 rounds P to it; others have the result of the CPU, in bf16."""
    q, k, v = _of_e4m3(2, 300, 4, d_head), _of_e4m3(2, 400, 2, d_head), _of_e4m3(2, 400, 2, d_head)
    scales = [torch.rand(2, 1).add(0.5).expand(2, 2) for _ in "qkv"]
    named = dict(zip(("q_descale", "k_descale", "v_descale"), scales))
    on_device = {name: x.cuda() for name, x in named.items()}
    expected = fa3.flash_attn_func(q, k, v, **named, **options).float()
    qkv = q.cuda(), k.cuda(), v.cuda()
    o = fa3.flash_attn_func(*qkv, **on_device, **options)
    assert o.dtype == torch.bfloat16 and _relative(o, expected) < 0.04
    ends = [torch.tensor([0, n, 2 * n], dtype=torch.int32, device="cuda") for n in (300, 400)]
    flat = [x.flatten(0, 1) for x in qkv]
    ragged = fa3.flash_attn_varlen_func(*flat, *ends, 300, 400, **on_device, **options)
    assert _relative(ragged.view_as(o), expected) < 0.04
    cache = fa3.flash_attn_with_kvcache(
        qkv[0], *qkv[1:], cache_seqlens=400, **on_device, **options
    )
    assert _relative(cache, expected) < 0.04


@pytest.mark.parametrize("page_size", [1, 16, 50])
@pytest.mark.parametrize("seqlen_q", [1, 5, 70, 300])
@pytest.mark.parametrize("options", E4M3_OPTIONS, ids=str)
def test_q_of_e4m3_over_pages(options: dict, seqlen_q: int, page_size: int) -> None:
    """So vLLM calls FlashAttention-3 with caches of e4m3, padded and ragged."""
    q, k, v = _of_e4m3(3, seqlen_q, 8, 128), _of_e4m3(3, 400, 2, 128), _of_e4m3(3, 400, 2, 128)
    scales = [torch.rand(3, 2, generator=torch.Generator().manual_seed(i)) + 0.5 for i in range(3)]
    named = dict(zip(("q_descale", "k_descale", "v_descale"), scales))
    on_device = {name: x.cuda() for name, x in named.items()}
    used = torch.tensor([400, 300, 333], dtype=torch.int32)
    expected = fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=used, **named, **options).float()
    n_pages = 3 * 400 // page_size
    table = torch.randperm(n_pages, generator=torch.Generator().manual_seed(7))
    pools = []
    for x in (k, v):
        pool = torch.empty(n_pages, page_size, 2, 128, dtype=torch.uint8)
        pool[table] = x.view(torch.uint8).view(n_pages, page_size, 2, 128)
        pools.append(pool.view(x.dtype).cuda())
    where = {
        "page_table": table.view(3, -1).to(torch.int32).cuda(), "cache_seqlens": used.cuda(),
        **on_device, **options,
    }  # fmt: skip
    o = fa3.flash_attn_with_kvcache(q.cuda(), *pools, **where)
    assert o.dtype == torch.bfloat16 and _relative(o, expected) < 0.04
    ends = torch.arange(4, dtype=torch.int32, device="cuda") * seqlen_q
    ragged = fa3.flash_attn_with_kvcache(
        q.cuda().flatten(0, 1), *pools, cu_seqlens_q=ends, max_seqlen_q=seqlen_q, **where
    )
    assert _relative(ragged.view_as(o), expected) < 0.04


@pytest.mark.parametrize("interleaved", [False, True])
def test_new_tokens_of_e4m3_turn(interleaved: bool) -> None:
    """The cache has the bits of the CPU's."""
    q, k, v = _of_e4m3(3, 5, 8, 128), _of_e4m3(3, 5, 2, 128), _of_e4m3(3, 5, 2, 128)
    angles = torch.arange(64 * 64.0).reshape(64, 64)
    given = {"cache_seqlens": torch.tensor([7, 0, 30], dtype=torch.int32), "causal": True}
    scale = torch.full((3, 2), 0.5)
    found = {}
    for device in ("cpu", "cuda"):
        caches = [_of_e4m3(3, 64, 2, 128).to(device) for _ in "kv"]
        x, k_new, v_new = (t.to(device) for t in (q, k, v))
        o = fa3.flash_attn_with_kvcache(
            x, *caches, k_new, v_new, rotary_cos=angles.cos().to(device),
            rotary_sin=angles.sin().to(device), rotary_interleaved=interleaved,
            q_descale=scale.to(device), k_descale=scale.to(device), v_descale=scale.to(device),
            **{n: y.to(device) if isinstance(y, torch.Tensor) else y for n, y in given.items()},
        )  # fmt: skip
        found[device] = [o.cpu(), *(cache.cpu() for cache in caches)]
    for a, b in zip(found["cpu"][1:], found["cuda"][1:]):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    assert _relative(found["cuda"][0], found["cpu"][0].float()) < 0.01


def test_a_decode_step_does_not_wait() -> None:
    decode = Decode()
    caches = decode.copies()
    decode.step(caches)  # loads the kernels
    with no_waiting():
        decode.step(caches)


def test_ragged_queries_do_not_wait() -> None:
    decode = Decode()
    ends = torch.arange(4, dtype=torch.int32, device="cuda")
    given = {
        "page_table": decode.table,
        "cache_seqlens": decode.lengths,
        "cu_seqlens_q": ends,
        "cu_seqlens_k_new": ends,
        "max_seqlen_q": 1,
        "causal": True,
    }
    tensors = decode.q[:, 0], *decode.copies(), decode.k[:, 0], decode.v[:, 0]
    expected = fa3.flash_attn_with_kvcache(*tensors, **given)
    with no_waiting():
        o = fa3.flash_attn_with_kvcache(*tensors, **given)
    assert torch.equal(o, expected)


def test_a_decode_step_in_a_graph() -> None:
    decode = Decode()
    caches = decode.copies()
    expected = [decode.step(caches).clone()]  # also prepares the kernels
    decode.lengths += 1
    expected.append(decode.step(caches).clone())
    decode.lengths -= 1
    captured = decode.copies()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = decode.step(captured)
    for step in expected:
        graph.replay()
        assert torch.equal(o, step)
        decode.lengths += 1
    assert all(torch.equal(x, y) for x, y in zip(caches, captured))


def test_prefill_and_merging_in_a_graph() -> None:
    q, k, v = torch.randn(3, 2, 64, 4, 64, device="cuda").to(torch.bfloat16)

    def prefill() -> tuple[torch.Tensor, torch.Tensor]:
        parts = [
            fa3.flash_attn_func(q, k[:, keys], v[:, keys], return_attn_probs=True)
            for keys in (slice(40), slice(40, 64))
        ]
        o, lse = (torch.stack(x) for x in zip(*parts))
        return fa3.flash_attn_combine(o, lse.transpose(-1, -2))

    expected = prefill()  # also prepares the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = prefill()
    graph.replay()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_new_tokens_without_room_are_dropped() -> None:
    decode = Decode()
    caches = decode.copies()
    for starts in ((128, 128, 128), (128, 90, 9000), (-1, 128, 128)):
        decode.lengths.copy_(torch.tensor(starts, dtype=torch.int32))
        decode.step(caches)
        changed = torch.stack([x != y for x, y in zip(caches, decode.caches)])
        places = changed.any(-1).any(-1).nonzero().tolist()
        page = decode.table[1, 90 // 16].item()
        assert places == ([[0, page, 90 % 16], [1, page, 90 % 16]] if 90 in starts else [])
        for x, y in zip(caches, decode.caches):
            x.copy_(y)


def test_a_cache_of_latent_attention() -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda").bfloat16()

    cache, q, qv = random(24, 64, 1, 576), random(3, 2, 16, 64), random(3, 2, 16, 512)
    table = torch.randperm(24, device="cuda").to(torch.int32).view(3, 8)
    lengths = torch.tensor([5, 512, 300], dtype=torch.int32, device="cuda")
    with no_waiting():
        o = fa3.flash_attn_with_kvcache(
            q, cache[..., 512:], cache[..., :512], qv=qv, cache_seqlens=lengths, page_table=table,
            causal=True,
        )  # fmt: skip
    keys = cache[table.long()].view(3, 512, 576).float()
    scores = torch.einsum("bihd,bjd->bhij", torch.cat([qv, q], -1).float(), keys) / 576**0.5
    last = lengths.view(3, 1, 1, 1) - 2 + torch.arange(2, device="cuda").view(2, 1)
    scores.masked_fill_(torch.arange(512, device="cuda") > last, float("-inf"))
    expected = torch.einsum("bhij,bjd->bihd", scores.softmax(-1), keys[..., :512])
    torch.testing.assert_close(o.float(), expected, rtol=2e-2, atol=2e-2)
