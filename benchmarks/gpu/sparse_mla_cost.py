"""Prints what sparse latent attention costs: each query has 2,048 tokens of its own, chosen among
65,536, as a row of a page table of pages of one token; 576 columns, of which V is the first 512, in
bf16 or latent tokens of 656 bytes.

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/gpu/sparse_mla_cost.py

Times are those of calls in a CUDA graph, one after the other, the best of three replays: without
FLASH_FLAG_PAGE_HOLES, with it and no hole, with a quarter of the tokens holes at random, and with
the second half of each row holes. What is read and multiplied is counted without holes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from flashattn import flash_attn_func, latent

N_TOKENS, N_CHOSEN, N_REPLAYS = 1 << 16, 2048, 3
COLUMNS = f"{'type':8}{'queries':>8}{'heads':>7}{'plain':>9}{'flag':>9}{'quarter':>9}{'half':>9}"


def microseconds(call: Callable[[], object], repeats: int) -> float:
    for _ in range(2):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    best = float("inf")
    for _ in range(N_REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end))
    return 1e3 * best / repeats


def make_cache(is_latent: bool) -> tuple[torch.Tensor, torch.Tensor, dict[str, str]]:
    """Returns K, V and what says of which type they are."""
    numbers = torch.randn(N_TOKENS, 1, 1, latent.COLUMNS, device="cuda")
    if not is_latent:
        k = numbers.bfloat16()
        return k, k[..., : latent.CODES], {}
    codes = numbers[..., : latent.CODES].to(torch.float8_e4m3fn).view(torch.uint8)
    scales = torch.ones(N_TOKENS, 1, 1, 4, device="cuda").view(torch.uint8)
    rest = numbers[..., latent.CODES :].bfloat16().contiguous().view(torch.uint8)
    k = torch.cat([codes, scales, rest], dim=-1)
    return k, k, {"kv_dtype": "latent_e4m3"}


def tables(n: int) -> list[tuple[torch.Tensor, bool]]:
    """Returns the tables of n queries, and whether they may have holes."""
    chosen = torch.randint(N_TOKENS, (n, N_CHOSEN), dtype=torch.int32, device="cuda")
    quarter = torch.where(torch.rand(n, N_CHOSEN, device="cuda") < 0.25, -1, chosen)
    half = chosen.clone()
    half[:, N_CHOSEN // 2 :] = -1
    return [(chosen, False), (chosen, True), (quarter, True), (half, True)]


def print_line(is_latent: bool, n: int, n_heads: int) -> None:
    k, v, of_type = make_cache(is_latent)
    q = torch.randn(n, 1, n_heads, latent.COLUMNS, device="cuda").bfloat16()
    lengths = torch.full((n,), N_CHOSEN, dtype=torch.int32, device="cuda")

    def attend(table: torch.Tensor, holes: bool) -> None:
        flash_attn_func(q, k, v, seqused_k=lengths, page_table=table, page_holes=holes, **of_type)

    repeats = 20 if n < 1000 else 2
    times = [microseconds(partial(attend, *table), repeats) for table in tables(n)]
    n_bytes = n * N_CHOSEN * k.shape[-1] * k.element_size()
    operations = 2 * n * n_heads * N_CHOSEN * (latent.COLUMNS + latent.CODES)
    cells = "".join(f"{time:9.1f}" for time in times)
    rates = f"{n_bytes / times[1] / 1e6:7.2f}{operations / times[1] / 1e6:9.0f}"
    name = "latent" if is_latent else "bf16"
    print(f"{name:8}{n:8}{n_heads:7}{cells}{rates}", flush=True)


def main() -> None:
    torch.manual_seed(0)
    print(torch.cuda.get_device_name())
    print(f"{COLUMNS}{'TB/s':>7}{'TFLOP/s':>9}")
    for is_latent in (False, True):
        for n in (1, 64, 4096):
            for n_heads in (16, 64, 128):
                print_line(is_latent, n, n_heads)


if __name__ == "__main__":
    main()
