"""`bench-decode`: GPU time of few queries over long caches, contiguous and in pages, beside
FlashAttention-3 and torch's cuDNN where they are installed.

Before each launch 256 MiB are written, so that no cache holds K, V or a kernel's instructions, as
between the layers of a model.
"""

from __future__ import annotations

import argparse
import importlib
from dataclasses import dataclass
from typing import Any, Callable

from .._attention import flash_attn_func
from ..config import DType
from ..device import Device, device_info
from . import bench_cuda, problem
from .problem import BadInput

_FLUSH_BYTES = 256 << 20
_SPIN_CYCLES = 400_000  # for each launch to enqueue, and what is written before it
_DEFAULT = "1x1024,1x8192,1x32768,4x8192,16x1024,16x8192,64x2048,64x8192,256x1024"

Call = Callable[[], Any]


@dataclass(frozen=True)
class Cache:
    """A batch of sequences with as many keys each."""

    batch: int
    keys: int

    def __str__(self) -> str:
        return f"{self.batch} x {self.keys}"


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "bench-decode",
        help="time decoding on a GPU",
        description="Median microseconds of one call, and GB/s of reading K and V once. 'known': "
        "all keys of a contiguous cache; 'lengths': as many, but only the device knows; 'page N': "
        "in pages of N tokens in random order. Peers take turns with the library's kernels: "
        "FlashAttention-3 (FA3) if flash_attn_interface can be imported, cuDNN through torch.",
    )
    parser.add_argument(
        "--caches", type=_caches, default=_DEFAULT, metavar="BxN,BxN,...", help="batch x keys"
    )
    parser.add_argument("--queries", type=int, default=1, help="of each sequence, causal")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--heads-kv", type=int, default=8)
    parser.add_argument("--d-head", type=int, default=128)
    parser.add_argument("--dtype", choices=("FP16", "BF16"), default="BF16")
    parser.add_argument("--page-size", type=_numbers, default="64,16,1", metavar="N,N,...")
    parser.add_argument("--batch-invariant", action="store_true")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--no-peers", action="store_true")
    parser.set_defaults(run=run)


def _caches(text: str) -> list[Cache]:
    return [Cache(*map(int, word.split("x"))) for word in text.split(",")]


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def run(args: argparse.Namespace) -> int:
    console = problem.extra("rich.console").Console()
    name = device_info(Device.CUDA_CURRENT).name
    sizes = (args.queries, args.heads, args.heads_kv, args.d_head, args.runs, *args.page_size)
    if min(sizes) < 1 or any(min(cache.batch, cache.keys) < 1 for cache in args.caches):
        raise BadInput("batch, keys, queries, heads, d_head, page sizes and runs are at least 1")
    heading = f"{args.queries} queries, heads {args.heads}/{args.heads_kv}, d_head {args.d_head}"
    table = problem.extra("rich.table").Table(title=f"{heading}, {args.dtype}, {name}")
    for column in ("batch x keys", "cache", "us", "GB/s", "FA3 us", "cuDNN us", "x best peer"):
        table.add_column(column, justify="right")
    for cache in args.caches:
        for row in _rows(cache, args):
            table.add_row(*row)
    console.print(table)
    return 0


def _rows(cache: Cache, args: argparse.Namespace) -> list[tuple[str, ...]]:
    calls = _calls(cache, args)
    seconds = dict(zip(calls, _median_seconds(list(calls.values()), args.runs)))
    n_bytes = 2 * cache.batch * cache.keys * args.heads_kv * args.d_head * 2
    rows = []
    for kind in dict.fromkeys(kind for kind, _ in calls):
        own = seconds[kind, "own"]
        peers = {name: seconds[kind, name] for name in ("FA3", "cuDNN") if (kind, name) in seconds}
        times = [f"{peers[name] * 1e6:.1f}" if name in peers else "" for name in ("FA3", "cuDNN")]
        share = f"{min(peers.values()) / own:.3f}" if peers else ""
        speed = f"{n_bytes / own / 1e9:.0f}"
        rows.append((str(cache), kind, f"{own * 1e6:.1f}", speed, *times, share))
    return rows


def _calls(cache: Cache, args: argparse.Namespace) -> dict[tuple[str, str], Call]:
    """What is timed: (kind of cache, whose) -> call."""
    torch = problem.extra("torch")
    q, k, v = _inputs(cache, args)
    used = torch.full((cache.batch,), cache.keys, dtype=torch.int32, device="cuda")
    calls = {("known", "own"): _own(q, k, v, args)}
    calls["lengths", "own"] = _own(q, k, v, args, seqused_k=used)
    if not args.no_peers:
        calls.update(_peers(q, k, v, used, args))
    for page_size in args.page_size:
        if cache.keys % page_size == 0:
            calls.update(_paged(q, k, v, used, page_size, args))
    return calls


def _inputs(cache: Cache, args: argparse.Namespace) -> list[Any]:
    torch = problem.extra("torch")
    element = getattr(torch, problem.NUMPY_NAME[DType[args.dtype]])
    shapes = [(args.queries, args.heads), (cache.keys, args.heads_kv), (cache.keys, args.heads_kv)]
    empty = [
        torch.empty(cache.batch, *shape, args.d_head, device="cuda", dtype=element)
        for shape in shapes
    ]
    return [x.normal_() for x in empty]


def _own(q: Any, k: Any, v: Any, args: argparse.Namespace, **where: Any) -> Call:
    out = q.new_empty(q.shape)
    options = {"causal": args.queries > 1, "batch_invariant": args.batch_invariant, **where}
    return lambda: flash_attn_func(q, k, v, out=out, **options)


def _paged(
    q: Any, k: Any, v: Any, used: Any, page_size: int, args: argparse.Namespace
) -> dict[tuple[str, str], Call]:
    torch, kind = problem.extra("torch"), f"page {page_size}"
    pages = [x.view(-1, page_size, *x.shape[2:]) for x in (k, v)]
    ids = torch.randperm(len(pages[0]), device="cuda").int().view(len(q), -1)
    calls = {(kind, "own"): _own(q, *pages, args, seqused_k=used, page_table=ids)}
    if not args.no_peers:
        calls.update(_fa3(kind, q, *pages, cache_seqlens=used, page_table=ids))
    return calls


def _peers(
    q: Any, k: Any, v: Any, used: Any, args: argparse.Namespace
) -> dict[tuple[str, str], Call]:
    calls = _fa3("lengths", q, k, v, cache_seqlens=used)
    options = {"causal": False, "softmax_scale": None}
    cudnn = bench_cuda.sdpa_call(q, k, v, "CUDNN_ATTENTION", options)
    if args.queries == 1 and bench_cuda.can_run(cudnn):
        calls["known", "cuDNN"] = cudnn
    return calls


def _fa3(kind: str, q: Any, k: Any, v: Any, **where: Any) -> dict[tuple[str, str], Call]:
    """Nothing where it is not installed or does not take the problem."""
    try:
        function = importlib.import_module("flash_attn_interface").flash_attn_with_kvcache
    except ImportError:
        return {}

    def call() -> None:
        function(q, k, v, causal=True, **where)

    return {(kind, "FA3"): call} if bench_cuda.can_run(call) else {}


def _median_seconds(calls: list[Call], runs: int) -> list[float]:
    torch = problem.extra("torch")
    memory = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    return bench_cuda.median_seconds(calls, runs, _SPIN_CYCLES, before=memory.zero_)
