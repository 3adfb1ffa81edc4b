"""Times a layer's attention over SGLang's pool: SGLang's backend torch_native and this library's,
in turns, with the layer, the pools and the batches of SGLang. Prints the median processor time of a
call by one thread, in the environment of tests/engines/test_sglang.py:

    SGLANG_USE_CPU_ENGINE=1 PYTHONPATH=tests/engines/sglang_stand_in:bindings/python \\
        build/engines/sglang/bin/python tests/engines/sglang_times.py MODEL

MODEL is a folder of any model that tests/engines/sglang_models.py makes: SGLang wants one.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import flashattn
import torch
from flashattn.sglang._backend import FlashAttnBackend
from sglang.srt.configs.model_config import AttentionArch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.runtime_context import publish
from sglang.srt.server_args import ServerArgs

REPEATS = 15


class Case(NamedTuple):
    n_heads: int
    n_heads_kv: int
    d_head: int
    queries: tuple[int, ...]
    keys: tuple[int, ...]


MODELS = ((9, 3, 64), (32, 8, 128))
BATCHES = (((1,), (4096,)), ((1,) * 8, (1024,) * 8), ((512,), (512,)), ((256,), (2048,)))
CASES = [Case(*model, *batch) for model in MODELS for batch in BATCHES]


class Step:
    """A step with SGLang's objects, whose cache is full of random numbers. cache_dtype is that of Q
    if it is None."""

    def __init__(
        self, case: Case, dtype: torch.dtype, cache_dtype: torch.dtype | None = None
    ) -> None:
        self.case = case
        n, total = len(case.keys), sum(case.keys)
        of_cache = cache_dtype or dtype
        pool = {"size": total, "page_size": 1, "dtype": of_cache, "device": "cpu"}
        pool |= {"head_num": case.n_heads_kv, "head_dim": case.d_head, "layer_num": 1}
        self.pool = MHATokenToKVPool(**pool, enable_memory_saver=False)
        self.rows = ReqToTokenPool(n, max(case.keys), "cpu", False)
        for cache in self.pool.get_kv_buffer(0):
            cache.copy_(torch.randn(cache.shape))
        slots = torch.randperm(total).add(1).split(case.keys)
        for row, of_row in enumerate(slots):
            self.rows.req_to_token[row, : len(of_row)] = of_row
        self.q = torch.randn(sum(case.queries), case.n_heads * case.d_head).to(dtype)
        self.layer = RadixAttention(
            case.n_heads, case.d_head, case.d_head**-0.5, case.n_heads_kv, layer_id=0
        )
        self.decodes = max(case.queries) == 1
        lengths, queries = torch.tensor(case.keys), torch.tensor(case.queries)
        self.batch = ForwardBatch(
            forward_mode=ForwardMode.DECODE if self.decodes else ForwardMode.EXTEND,
            batch_size=n,
            input_ids=torch.zeros(sum(case.queries), dtype=torch.int64),
            req_pool_indices=torch.arange(n),
            seq_lens=lengths,
            seq_lens_cpu=lengths,
            seq_lens_sum=total,
            out_cache_loc=torch.zeros(sum(case.queries), dtype=torch.int64),
            extend_seq_lens=queries,
            extend_seq_lens_cpu=list(case.queries),
            extend_prefix_lens=lengths - queries,
        )
        model = SimpleNamespace(
            attention_arch=AttentionArch.MHA,
            head_dim=case.d_head,
            is_encoder_decoder=False,
            is_local_attention_model=False,
        )
        self.runner = SimpleNamespace(
            model_config=model,
            req_to_token_pool=self.rows,
            token_to_kv_pool=self.pool,
            page_size=1,
            device="cpu",
            dtype=dtype,
            kv_cache_dtype=of_cache,
            kv_cache_dtype_str="fp8_e4m3" if cache_dtype else "auto",
            sliding_window_size=None,
        )

    def by(self, kind: Any) -> Callable[[], torch.Tensor]:
        backend = kind(self.runner)
        backend.init_forward_metadata(self.batch)
        forward = backend.forward_decode if self.decodes else backend.forward_extend
        return lambda: forward(self.q, None, None, self.layer, self.batch, save_kv_cache=False)


def medians(*calls: Callable[[], torch.Tensor]) -> Iterator[float]:
    """Yields the median milliseconds of each, which take turns, after a round that is not timed."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(REPEATS + 1):
        for call, of_call in zip(calls, times):
            begin = time.process_time()
            call()
            of_call.append(time.process_time() - begin)
    yield from (1e3 * statistics.median(of_call[1:]) for of_call in times)


def begin(model: str) -> None:
    """Lets SGLang's objects find the settings of a server."""
    publish(ServerArgs(model_path=model, device="cpu"), role="scheduler")


def main() -> None:
    begin(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    flashattn.set_num_threads(1)
    print("dtype, heads, d, queries x keys: torch_native's ms, the library's, ratio; difference")
    for dtype in (torch.float32, torch.bfloat16):
        for case in CASES:
            step = Step(case, dtype)
            calls = step.by(TorchNativeAttnBackend), step.by(FlashAttnBackend)
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
