"""Calls that leave multiprocessors of the device to others: whatever number a call may use, every
row computes the same attention, and rows that do not cut sequences the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import flashattn
import pytest
import torch
from flashattn import Arch, Kernel, torch_ops
from flashattn.compat import fa3
from gpu_problems import runnable_rows

ALL = torch.cuda.get_device_properties("cuda").multi_processor_count
NUMBERS = (1, 7, ALL // 2, ALL - 16, ALL, ALL + 1, 2**31 - 1)
UNCUT = (Arch.SM80, Arch.SM90)  # families in which a block computes a tile whole


def _random(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)


def _padded(batch: int, seqlen_q: int, seqlen_k: int, d_head: int) -> Callable:
    q = _random(batch, seqlen_q, 8, d_head, seed=1)
    k, v = (_random(batch, seqlen_k, 2, d_head, seed=seed) for seed in (2, 3))
    return partial(flashattn.flash_attn_func, q, k, v, causal=True, return_lse=True)


def _ragged(*lengths: tuple[int, int]) -> Callable:
    """Makes a call of sequences with these numbers of queries and keys, over a cache."""
    used_q, used_k = (torch.tensor(x, dtype=torch.int32, device="cuda") for x in zip(*lengths))
    zero = used_q.new_zeros(1)
    cu_seqlens_q = torch.cat([zero, used_q.cumsum(0, dtype=torch.int32)])
    q = _random(int(used_q.sum()), 8, 128, seed=4)
    k, v = (_random(len(lengths), int(used_k.max()), 2, 128, seed=seed) for seed in (5, 6))
    return partial(
        flashattn.flash_attn_varlen_func, q, k, v, cu_seqlens_q=cu_seqlens_q, seqused_k=used_k,
        max_seqlen_q=int(used_q.max()), causal=True, return_lse=True,
    )  # fmt: skip


CALLS = {
    "prefill": partial(_padded, 3, 700, 700, 128),
    "narrow": partial(_padded, 3, 700, 700, 64),
    "many_tiles": partial(_padded, 40, 1024, 1024, 128),
    "decode": partial(_padded, 2, 1, 9000, 128),
    "few_queries": partial(_padded, 2, 5, 3000, 64),
    "decode_of_a_batch": partial(_padded, 200, 1, 500, 128),
    "mixed": partial(_ragged, (1, 9000), (1, 30), (400, 900), (1, 700), (17, 17)),
    "ragged_decode": partial(_ragged, (1, 9000), (1, 30), (1, 1), (1, 700)),
}


def _served(call: Callable) -> Iterator[tuple[Kernel, tuple[torch.Tensor, torch.Tensor]]]:
    """Yields the rows that serve a call, and what they compute with the whole device."""
    for row in runnable_rows():
        try:
            yield row, call(config=row.config)
        except NotImplementedError:
            continue


@pytest.mark.parametrize("name", CALLS)
def test_any_number_computes_the_same(name: str) -> None:
    call = CALLS[name]()
    n_rows = 0
    for row, (o, lse) in _served(call):
        n_rows += 1
        for n in NUMBERS:
            of_n, lse_of_n = call(config=row.config, n_multiprocessors=n)
            if row.config.arch in UNCUT or n >= ALL:
                assert torch.equal(of_n, o) and torch.equal(lse_of_n, lse), (row, n)
            torch.testing.assert_close(of_n.float(), o.float(), rtol=0, atol=0.04)
            torch.testing.assert_close(lse_of_n, lse, rtol=0, atol=1e-4)
    assert n_rows > 0


@pytest.mark.parametrize("name", CALLS)
def test_selection_and_workspace_follow_the_number(name: str) -> None:
    call = CALLS[name]()
    o, _ = call()
    for n in NUMBERS:
        torch.testing.assert_close(
            call(n_multiprocessors=n)[0].float(), o.float(), rtol=0, atol=0.04
        )


def test_the_operators_take_the_number() -> None:
    q, k, v = (_random(2, 300, 4, 64, seed=seed) for seed in range(3))
    expected = torch_ops.flash_attn_func(q, k, v)

    @torch.compile(fullgraph=True)
    def compiled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch_ops.flash_attn_func(q, k, v, n_multiprocessors=ALL - 16)

    for found in (torch_ops.flash_attn_func(q, k, v, n_multiprocessors=5), compiled(q, k, v)):
        torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=0.04)


def test_sm_margin_leaves_multiprocessors() -> None:
    q, k, v = (_random(2, 300, 4, 64, seed=seed) for seed in range(3))
    expected = fa3.flash_attn_func(q, k, v, causal=True)
    for margin in (0, 16, ALL, 10 * ALL):
        found = fa3.flash_attn_func(q, k, v, causal=True, sm_margin=margin)
        torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=0.04)


def test_refusals() -> None:
    call = CALLS["narrow"]()
    with pytest.raises(ValueError, match="n_multiprocessors is -1"):
        call(n_multiprocessors=-1)


def test_a_graph_keeps_the_number() -> None:
    q, k, v = (_random(4, 256, 4, 128, seed=seed) for seed in range(3))
    expected = torch_ops.flash_attn_func(q, k, v)
    out = torch.empty_like(q)
    torch_ops.flash_attn_func(q, k, v, n_multiprocessors=9, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch_ops.flash_attn_func(q, k, v, n_multiprocessors=9, out=out)
    out.zero_()
    graph.replay()
    torch.testing.assert_close(out.float(), expected.float(), rtol=0, atol=0.04)
