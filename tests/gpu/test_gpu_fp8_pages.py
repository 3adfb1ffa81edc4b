"""Rows that multiply Q, K and V of e4m3 as such read keys in pages, of ragged batches too: what
engines ask for whose caches and queries are of e4m3. They keep what docs/numerics.md says of
products in FP8."""

from __future__ import annotations

from dataclasses import replace

import flashattn
import numpy as np
import pytest
import torch
from flashattn import DType, Feature
from gpu_problems import device_pages, paged_options, run
from memory import E4M3
from paging import KINDS, PagedProblem
from problems import AttentionProblem
from test_gpu_fp8_products import PAGED, assert_keeps

every_row = pytest.mark.parametrize("config", PAGED, ids=str)
pytestmark = pytest.mark.skipif(not PAGED, reason="no row reads pages")


def _problem(*sizes: int, **options: object) -> AttentionProblem:
    types = {"dtype": E4M3, "q_dtype": E4M3, "o_dtype": "bfloat16"}
    return AttentionProblem(*sizes, **types, **options)


# A batch of an engine: a sequence that is decoded, chunks of prompts, a draft, and one that waits.
BATCH = _problem(
    5, 200, 900, 8, 2, causal=True,
    cu_seqlens_q=(0, 1, 71, 71, 271, 276), seqused_k=(900, 333, 0, 512, 40),
    q_descale=((0.5, 2.0), (1.0, 0.25), (1.0, 1.0), (2.0, 1.0), (0.75, 1.5)),
    k_descale=((2.0, 1.0), (0.5, 0.25), (1.0, 1.0), (1.0, 0.5), (2.0, 0.5)),
    v_descale=((1.0, 3.0), (-2.0, 0.5), (1.0, 1.0), (0.5, 0.25), (1.0, 4.0)),
)  # fmt: skip
OTHERS = {
    "full": replace(BATCH, causal=False),
    "window": replace(BATCH, causal=False, window_size=(100, 30)),
    "softcap": replace(BATCH, softcap=4.0),
    "sinks": replace(BATCH, sinks=tuple(np.linspace(-2, 2, 8))),
    "scales of tokens": replace(BATCH, q_descale=None, q_token_scales=3),
    "growing": replace(BATCH, values="growing"),
    "chunks": replace(BATCH, attention_chunk=100),
    "padded": _problem(3, 70, 600, 8, 2, causal=True, seqused_k=(600, 1, 129)),
    "one query": _problem(4, 1, 1500, 8, 2, causal=True, seqused_k=(1500, 7, 0, 640)),
}  # fmt: skip
ENGINES = {"batch": BATCH, "one query": OTHERS["one query"], "padded": OTHERS["padded"]}


def check(q: PagedProblem, config: flashattn.Config | None) -> None:
    pages, where = device_pages(q)
    outputs = run(replace(q.p, seqused_k=None), pages, config, **where)
    assert_keeps(*outputs, q.dense, config)


def _of_row(p: AttentionProblem, config: flashattn.Config) -> AttentionProblem:
    return replace(p, d_head=config.d_head)


@every_row
@pytest.mark.parametrize("page_size", [1, 5, 16, 64, 256])
def test_a_ragged_batch_in_pages_of_any_size(page_size: int, config: flashattn.Config) -> None:
    check(PagedProblem(_of_row(BATCH, config), page_size), config)


@every_row
@pytest.mark.parametrize("page_size", [1, 64])
@pytest.mark.parametrize("name", OTHERS)
def test_what_else_a_batch_may_have(name: str, page_size: int, config: flashattn.Config) -> None:
    if OTHERS[name].softcap == 0 or config.features & Feature.SOFTCAP:
        check(PagedProblem(_of_row(OTHERS[name], config), page_size), config)


@every_row
@pytest.mark.parametrize("kind", KINDS)
def test_pages_are_found_in_every_way(kind: str, config: flashattn.Config) -> None:
    check(PagedProblem(_of_row(BATCH, config), 16, kind), config)


@pytest.mark.parametrize("d_head", [64, 96, 128])
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("name", ENGINES)
def test_selection_serves_what_engines_ask_for(name: str, page_size: int, d_head: int) -> None:
    check(PagedProblem(replace(ENGINES[name], d_head=d_head), page_size), None)


@pytest.mark.parametrize("seqlen_q, seqlen_k", [(600, 3000), (2048, 2048)])
def test_a_prompt_is_read_from_pages(seqlen_q: int, seqlen_k: int) -> None:
    p = _problem(1, seqlen_q, seqlen_k, 4, 1, 128, causal=True)
    q = PagedProblem(p, 64)
    tensors, where = device_pages(q)
    chosen = flashattn.select_config(*tensors, **paged_options(q, where)).config
    assert chosen.operand_dtype == DType.E4M3
    check(q, None)


@every_row
def test_a_captured_call_serves_other_lengths(config: flashattn.Config) -> None:
    q = PagedProblem(_of_row(BATCH, config), 64)
    tensors, where = device_pages(q)
    out = torch.empty((*tensors[0].shape[:-1], config.d_head), dtype=torch.bfloat16, device="cuda")
    options = {**paged_options(q, where), "config": config, "out": out}
    flashattn.flash_attn_varlen_func(*tensors, **options)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flashattn.flash_attn_varlen_func(*tensors, **options)
    where["seqused_k"] //= 3
    graph.replay()
    captured = out.clone()
    flashattn.flash_attn_varlen_func(*tensors, **options)
    assert torch.equal(captured.view(torch.int16), out.view(torch.int16))
