"""Calls on caches in CUDA memory, of this library and of FlashAttention-3, whose module is
flash_attn_interface."""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any, Callable

from .._attention import flash_attn_func, flash_attn_varlen_func, query_support
from ..config import DType
from . import bench_cuda, extras, memory, pages, problem
from .problem import BadInput
from .ragged import RaggedBatch

Call = Callable[[], Any]


@dataclass(frozen=True)
class Heads:
    n_heads: int
    n_heads_kv: int

    def __str__(self) -> str:
        return f"{self.n_heads}/{self.n_heads_kv}"


def parse_heads(text: str) -> list[Heads]:
    """Parses text such as 32/8,64/8. Raises BadInput."""
    return [_parse_heads(word) for word in text.split(",")]


def _parse_heads(word: str) -> Heads:
    first, slash, second = word.partition("/")
    try:
        heads = Heads(int(first), int(second if slash else first))
    except ValueError:
        raise BadInput(f"--heads: {word!r} is not HEADS/HEADS_KV, as in 32/8") from None
    if heads.n_heads_kv < 1 or heads.n_heads < 1 or heads.n_heads % heads.n_heads_kv:
        raise BadInput(f"--heads {word}: at least 1, and HEADS a multiple of HEADS_KV")
    return heads


@dataclass(frozen=True)
class Problem:
    """Queries over caches, causal where there are several of a sequence."""

    queries: list[int]  # of each sequence
    q: Any  # [tokens, n_heads, d_head]
    k: Any  # [batch, keys, n_heads_kv, d_head], or pages
    v: Any
    scales: tuple[Any, Any] | None  # of k and v of e4m3, [batch, n_heads_kv]
    used: Any = None  # [batch]; None: all keys
    table: Any = None  # of pages

    @property
    def is_padded(self) -> bool:
        return len(set(self.queries)) == 1

    def q_and_lengths(self) -> tuple[Any, dict[str, Any]]:
        """q as a call takes it, and the keywords of a ragged one."""
        if self.is_padded:
            return self.q.view(len(self.queries), self.queries[0], *self.q.shape[1:]), {}
        ends = [0, *itertools.accumulate(self.queries)]
        lengths = extras.load("torch").tensor(ends, dtype=self.used.dtype, device=self.q.device)
        return self.q, {"cu_seqlens_q": lengths, "max_seqlen_q": max(self.queries)}

    def part(self, sequences: list[int]) -> Problem:
        """Some of the sequences; their keys stay where they are, in pages."""
        of_each = self.q.split(self.queries)
        scales = self.scales and tuple(scale[sequences].contiguous() for scale in self.scales)
        return replace(
            self,
            queries=[self.queries[b] for b in sequences],
            q=extras.load("torch").cat([of_each[b] for b in sequences]),
            scales=scales,
            used=self.used[sequences].contiguous(),
            table=self.table[sequences].contiguous(),
        )


def own(p: Problem, **options: Any) -> Call | None:
    """A call of this library; None: it has no kernel for the problem."""
    q, lengths = p.q_and_lengths()
    options["causal"] = not p.is_padded or p.queries[0] > 1
    if p.scales:
        options.update(k_descale=p.scales[0], v_descale=p.scales[1])
    if p.used is not None:
        options["seqused_k"] = p.used
    if p.table is not None:
        options["page_table"] = p.table
    if not query_support(q, p.k, p.v, **options, **lengths):
        return None
    function = flash_attn_varlen_func if lengths else flash_attn_func
    out = q.new_empty(q.shape, dtype=bench_cuda.type_of_o(q))
    return lambda: function(q, p.k, p.v, out=out, **options, **lengths)


def fa3(p: Problem) -> Call | None:
    """A call of FlashAttention-3; None where it is not installed or does not take the problem. K
    and V of e4m3 it takes beside a Q of e4m3 alone."""
    try:
        function = importlib.import_module("flash_attn_interface").flash_attn_with_kvcache
    except ImportError:
        return None
    q, lengths = p.q_and_lengths()
    options = {"causal": True, "cache_seqlens": p.used, "page_table": p.table, **lengths}
    if p.scales:
        q = q.to(p.k.dtype)
        k_scale, v_scale = p.scales
        options.update(q_descale=k_scale.new_ones(k_scale.shape))
        options.update(k_descale=k_scale, v_descale=v_scale)

    def call() -> None:
        function(q, p.k, p.v, **options)

    return call if bench_cuda.can_run(call) else None


class Caches:
    """Random Q, K and V of a batch: caches with room for whole pages of every size, K and V in one
    tensor."""

    def __init__(
        self, batch: RaggedBatch, heads: Heads, page_sizes: list[int], args: argparse.Namespace
    ) -> None:
        torch = extras.load("torch")
        torch.manual_seed(0)
        self.batch = batch
        dtype = DType[args.dtype]
        longest = max(batch.lengths_k)
        capacity = max(pages.count(longest, size) * size for size in (1, *page_sizes))
        shape = (2, len(batch.lengths_k), capacity, heads.n_heads_kv, args.d_head)
        n_bytes = math.prod(shape) * memory.item_sizes(dtype)[1]
        memory.require(n_bytes, f"K and V of {batch.name}, with room for whole pages,", "cuda")
        of_q = problem.q_name(dtype, args, beside_e4m3="bfloat16")
        drawn = getattr(torch, problem.o_name(of_q))
        self.kv = torch.empty(shape, device="cuda", dtype=getattr(torch, problem.NUMPY_NAME[dtype]))
        for b in range(shape[1]):
            self.kv[:, b] = torch.randn(2, *shape[2:], device="cuda", dtype=drawn)
        tokens = sum(batch.lengths_q)
        q = torch.randn(tokens, heads.n_heads, args.d_head, device="cuda", dtype=drawn)
        self.q = q.to(getattr(torch, of_q))
        self.used = torch.tensor(batch.lengths_k, dtype=torch.int32, device="cuda")
        self.scales = None
        if dtype == DType.E4M3:
            of_scale = (2, shape[1], heads.n_heads_kv)
            self.scales = tuple(torch.empty(of_scale, device="cuda").uniform_(0.5, 2))

    @property
    def n_bytes(self) -> int:
        """The bytes of K and V that the batch has."""
        _, _, _, n_heads_kv, d_head = self.kv.shape
        elements = 2 * sum(self.batch.lengths_k) * n_heads_kv * d_head
        return elements * self.kv.element_size()

    def known(self) -> Problem:
        """Contiguous, and all keys in use: of a batch with one length."""
        k, v = self.kv[:, :, : self.batch.lengths_k[0]]
        return Problem(self.batch.lengths_q, self.q, k, v, self.scales)

    def with_lengths(self) -> Problem:
        """Contiguous, with lengths that only the device knows."""
        return Problem(self.batch.lengths_q, self.q, *self.kv, self.scales, self.used)

    def in_pages(self, page_size: int) -> Problem:
        """In pages that lie in random order all over the same memory."""
        torch = extras.load("torch")
        n_pages = self.kv[0].shape[:2].numel() // page_size
        k, v = (
            x.flatten(0, 1)[: n_pages * page_size].unflatten(0, (n_pages, page_size))
            for x in self.kv
        )
        counts = [pages.count(keys, page_size) for keys in self.batch.lengths_k]
        ids = torch.randperm(n_pages, device="cuda")[: sum(counts)].int()
        table = torch.zeros(len(counts), max(counts), device="cuda", dtype=torch.int32)
        for row, own_ids in zip(table, ids.split(counts)):
            row[: len(own_ids)] = own_ids
        return Problem(self.batch.lengths_q, self.q, k, v, self.scales, self.used, table)
