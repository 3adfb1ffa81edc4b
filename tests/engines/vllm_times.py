"""Times a layer's attention over vLLM's paged cache, and over latent tokens: vLLM's own CPU kernel
and this library's, in turns. Prints the median processor time of a call by one thread, in the
environment of tests/engines/test_vllm.py:

    build/engines/vllm/bin/python tests/engines/vllm_times.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import flashattn
import torch
from flashattn.torch_ops import flash_attn_varlen_func, flash_kv_append
from vllm import _custom_ops as ops
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
from vllm.v1.attention.backends.mla.prefill.cpu_sdpa import CPUSDPAMLAPrefillBackend

BLOCK_SIZE = 32
REPEATS = 15
LATENT_BLOCK_SIZE = 16  # of vLLM's kernel
LATENT_SCALE = 192**-0.5


class Case(NamedTuple):
    n_heads: int
    n_heads_kv: int
    d_head: int
    queries: tuple[int, ...]
    keys: tuple[int, ...]


MODELS = ((9, 3, 64), (32, 8, 128))
BATCHES = (((1,), (4096,)), ((1,) * 8, (1024,) * 8), ((512,), (512,)), ((256,), (2048,)))
CASES = [Case(*model, *batch) for model in MODELS for batch in BATCHES]
LATENT_CASES = [Case(16, 1, 576, *batch) for batch in BATCHES[:3]]


class Step:
    """Tensors of a step, with both caches filled."""

    def __init__(self, case: Case, dtype: torch.dtype, cache_dtype: str = "auto") -> None:
        self.case, self.cache_dtype = case, cache_dtype
        is_e4m3 = cache_dtype == "fp8_e4m3"
        self.scales = {"k_descale": 1.0, "v_descale": 1.0} if is_e4m3 else {}
        widths = [-(-n // BLOCK_SIZE) for n in case.keys]
        n_blocks, d = sum(widths), case.d_head
        self.table = torch.zeros(len(widths), max(widths), dtype=torch.int32)
        slots, begin = [], 0
        for b, (width, n) in enumerate(zip(widths, case.keys)):
            self.table[b, :width] = torch.arange(begin, begin + width)
            slots.append(begin * BLOCK_SIZE + torch.arange(n))
            begin += width
        starts = [0, *torch.tensor(case.queries).cumsum(0).tolist()]
        self.starts = torch.tensor(starts, dtype=torch.int32)
        self.lengths = torch.tensor(case.keys, dtype=torch.int32)
        self.q = torch.randn(starts[-1], case.n_heads, d).to(dtype)
        tokens = sum(case.keys)
        self.kv = [torch.randn(tokens, case.n_heads_kv, d).to(dtype) for _ in range(2)]
        shape = (n_blocks, case.n_heads_kv, BLOCK_SIZE, 2 * d)
        self.isa = _get_attn_isa(dtype, BLOCK_SIZE, d, cache_dtype)
        of_cache = torch.uint8 if is_e4m3 else dtype
        rows = torch.zeros(shape, dtype=of_cache).view(*shape[:2], 2 * BLOCK_SIZE, d)
        self.of_vllm = rows.chunk(2, dim=2)
        own = torch.zeros(shape, dtype=of_cache)
        own = own.view(torch.float8_e4m3fn) if is_e4m3 else own
        self.own = own.transpose(1, 2).split(d, -1)
        ops.cpu_attn_reshape_and_cache(
            *self.kv, *self.of_vllm, torch.cat(slots), self.isa,
            k_scale=1.0, v_scale=1.0, kv_cache_dtype=cache_dtype,
        )  # fmt: skip
        flash_kv_append(*self.kv, *self.own, slot_mapping=torch.cat(slots), **self.scales)

    def by_vllm(self) -> Callable[[], torch.Tensor]:
        case, o = self.case, torch.empty_like(self.q)
        shared = {"dynamic_causal": None, "kv_cache_dtype": self.cache_dtype, "causal": True}
        schedule = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(case.keys), num_heads=case.n_heads, num_kv_heads=case.n_heads_kv,
            head_dim=case.d_head, seq_lens=self.lengths, dtype=self.q.dtype,
            query_start_loc=self.starts, sliding_window_size=-1, isa=self.isa,
            enable_kv_split=True, **shared,
        )  # fmt: skip

        def call() -> torch.Tensor:
            ops.cpu_attention_with_kv_cache(
                query=self.q, key_cache=self.of_vllm[0], value_cache=self.of_vllm[1], output=o,
                query_start_loc=self.starts, seq_lens=self.lengths, scale=case.d_head**-0.5,
                alibi_slopes=None, sliding_window=-1, block_table=self.table, softcap=0,
                scheduler_metadata=schedule, s_aux=None, k_scale=1.0, v_scale=1.0, **shared,
            )  # fmt: skip
            return o

        return call

    def by_library(self) -> Callable[[], torch.Tensor]:
        case, o = self.case, torch.empty_like(self.q)
        return lambda: flash_attn_varlen_func(
            self.q,
            *self.own,
            cu_seqlens_q=self.starts,
            max_seqlen_q=max(case.queries),
            max_seqlen_k=max(case.keys),
            seqused_k=self.lengths,
            page_table=self.table,
            causal=True,
            out=o,
            **self.scales,
        )


class LatentStep:
    """Tensors of a step over latent tokens, of requests that all have as many queries and keys: one
    query each, over the cache, or as many as there are keys, expanded."""

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        self.case, self.dtype = case, dtype
        n, m = len(case.queries), case.queries[0]
        self.starts = torch.arange(n + 1, dtype=torch.int32) * m
        self.lengths = torch.tensor(case.keys, dtype=torch.int32)
        width = case.keys[0] // LATENT_BLOCK_SIZE
        self.table = torch.randperm(n * width, dtype=torch.int32).view(n, width)
        self.cache = torch.randn(n * width, LATENT_BLOCK_SIZE, 576).to(dtype)
        d, d_v = (576, 512) if m == 1 else (192, 128)
        self.q = torch.randn(n * m, case.n_heads, d).to(dtype)
        self.kv = [torch.randn(n * m, case.n_heads, x).to(dtype) for x in (d, d_v)]

    def by_vllm(self) -> Callable[[], torch.Tensor]:
        if self.case.queries[0] == 1:
            o = torch.empty(len(self.q), self.case.n_heads, 512, dtype=self.dtype)

            def decode() -> torch.Tensor:
                ops.mla_decode_kvcache_cpu(
                    o, self.q, self.cache, LATENT_SCALE, self.table, self.lengths
                )
                return o

            return decode
        prefill = CPUSDPAMLAPrefillBackend.__new__(CPUSDPAMLAPrefillBackend)
        prefill.scale = LATENT_SCALE
        return lambda: prefill._ragged_sdpa(self.q, *self.kv, self.starts, self.starts, True, False)

    def by_library(self) -> Callable[[], torch.Tensor]:
        queries = {
            "cu_seqlens_q": self.starts,
            "max_seqlen_q": self.case.queries[0],
            "max_seqlen_k": self.case.keys[0],
            "softmax_scale": LATENT_SCALE,
            "causal": True,
        }
        if self.case.queries[0] > 1:
            keys = {"cu_seqlens_k": self.starts}
            return lambda: flash_attn_varlen_func(self.q, *self.kv, **queries, **keys)
        pages = self.cache.unsqueeze(2)
        keys = {"seqused_k": self.lengths, "page_table": self.table}
        return lambda: flash_attn_varlen_func(self.q, pages, pages[..., :512], **queries, **keys)


def medians(*calls: Callable[[], torch.Tensor]) -> Iterator[float]:
    """Yields the median milliseconds of each, which take turns, after a round that is not timed."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(REPEATS + 1):
        for call, of_call in zip(calls, times):
            begin = time.process_time()
            call()
            of_call.append(time.process_time() - begin)
    yield from (1e3 * statistics.median(of_call[1:]) for of_call in times)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    flashattn.set_num_threads(1)
    print("dtype, heads, d, queries x keys: vLLM's ms, the library's, their ratio; difference of O")
    for dtype in (torch.float32, torch.bfloat16):
        steps = [(case, Step) for case in CASES] + [(case, LatentStep) for case in LATENT_CASES]
        for case, of in steps:
            step = of(case, dtype)
            calls = step.by_vllm(), step.by_library()
            difference = float((calls[0]().float() - calls[1]().float()).abs().max())
            own, found = medians(*calls)
            print(
                f"{str(dtype)[6:]}, {case.n_heads}/{case.n_heads_kv}, {case.d_head}, "
                f"{len(case.keys)} x {case.queries[0]} x {case.keys[0]}: "
                f"{own:.2f}, {found:.2f}, {own / found:.2f}; {difference:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
