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
