"""Keys that begin behind the start of their sequence's place (leftpad_k), on every CUDA row that
has lengths, against the float64 oracle. The padding holds NaN."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from device_memory import lengths
from flashattn import Feature, torch_ops
from gpu_problems import (
    TYPES,
    assert_every_row_is_reached,
    check,
    check_in_pages,
    configs_for,
    configs_for_pages,
    device_inputs,
    device_options,
    device_pages,
    host_inputs,
    run,
    same_bits,
    typed,
)
from paging import PagedProblem
from problems import AttentionProblem, fill_unused

BASE = AttentionProblem(3, 150, 300, 4, 2, 64, causal=True, leftpad_k=(0, 7, 170))
PROBLEMS = {
    "block": BASE,
    "in_use": replace(BASE, seqused_k=(300, 200, 171)),
    "full": replace(BASE, causal=False),
    "window": replace(BASE, window_size=(70, 9), causal=False),
    "chunks": replace(BASE, attention_chunk=64),
    "no_key": replace(BASE, seqused_k=(300, 6, 0), leftpad_k=(300, 7, 2**31 - 1)),
    "row": replace(BASE, seqlen_q=1),
    "few_rows": replace(BASE, seqlen_q=5),
    "split": replace(BASE, seqlen_q=2, seqlen_k=9000, leftpad_k=(65, 8999, 4000)),
    "ragged": replace(
        BASE, batch=5, seqlen_k=400, cu_seqlens_q=(0, 1, 1, 131, 135, 285),
        cu_seqlens_k=(0, 200, 300, 600, 650, 1050), leftpad_k=(199, 0, 31, 50, 129),
    ),
    "ragged_queries": replace(
        BASE, cu_seqlens_q=(0, 1, 131, 135), seqused_k=(300, 290, 64), leftpad_k=(40, 0, 63)
    ),
}  # fmt: skip
every_type = pytest.mark.parametrize(("dtype", "d_head"), TYPES)
every_problem = pytest.mark.parametrize("name", PROBLEMS)


def _poisoned(p: AttentionProblem) -> list[np.ndarray]:
    """Returns q, k and v with NaN in the padding."""
    q, k, v = host_inputs(p)
    for b, pad in enumerate(p.leftpad_k):
        if p.cu_seqlens_k is None:
            at = (b, slice(0, pad))
        else:
            begin, end = p.cu_seqlens_k[b : b + 2]
            at = slice(begin, min(begin + pad, end))
        k[at] = v[at] = np.nan
    return [q, k, v]


@every_type
@every_problem
def test_row_agrees_with_the_oracle(name: str, dtype: str, d_head: int) -> None:
    p = typed(PROBLEMS[name], dtype, d_head)
    inputs = _poisoned(p)
    configs = configs_for(p)
    assert configs
    for config in configs:
        check(p, config, inputs)


def test_every_row_with_lengths_is_tested() -> None:
    problems = [PROBLEMS[name] for name in ("full", "few_rows", "ragged_queries")]
    both_orders = [replace(p, causal=causal) for p in problems for causal in (False, True)]
    assert_every_row_is_reached(both_orders, Feature.VARLEN)


@every_type
@pytest.mark.parametrize("name", ["in_use", "row", "few_rows", "no_key", "split", "ragged_queries"])
def test_slots_have_padding_too(name: str, dtype: str, d_head: int) -> None:
    q = PagedProblem(typed(PROBLEMS[name], dtype, d_head), 1, "slots")
    poisoned, where = device_pages(q, _poisoned(q.dense))
    configs = configs_for_pages(q)
    assert configs
    for config in configs:
        outputs = check_in_pages(q, config)
        o, lse = run(replace(q.p, seqused_k=None), poisoned, config, **where)
        fill_unused(q.dense, o, lse)
        assert same_bits((o, lse), outputs), config


@pytest.mark.parametrize("seqlen_q", [1, 150])
def test_negative_padding_is_none(seqlen_q: int) -> None:
    p = replace(BASE, seqlen_q=seqlen_q, dtype="bfloat16", d_head=128)
    for config in configs_for(p):
        options = {**device_options(p), "leftpad_k": lengths((0, -7, -(2**31)))}
        found = run(p, config=config, **options)
        assert same_bits(found, run(replace(p, leftpad_k=(0, 0, 0)), config=config))


def test_a_graph_sees_the_padding_of_its_replay() -> None:
    p = replace(BASE, seqlen_q=1, dtype="bfloat16", d_head=128)
    q, k, v = device_inputs(p)
    options = {"causal": True, "leftpad_k": lengths(p.leftpad_k)}
    out = torch_ops.flash_attn_func(q, k, v, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch_ops.flash_attn_func(q, k, v, out=out, **options)
    options["leftpad_k"].copy_(lengths((100, 0, 3)))
    graph.replay()
    assert torch.equal(out, torch_ops.flash_attn_func(q, k, v, **options))


def test_a_long_cache_is_padded_by_many_tokens() -> None:
    p = replace(BASE, batch=1, seqlen_q=4, seqlen_k=70_000, n_heads=2, leftpad_k=(69_000,))
    p = replace(p, dtype="bfloat16", d_head=128)
    for config in configs_for(p):
        check(p, config, _poisoned(p))
