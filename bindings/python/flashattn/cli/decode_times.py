"""What `bench-decode` times for a batch: every kind of cache by this library and by its peers, in
turns with the ways of only reading as much."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from . import bench_cuda, mixes, read_floor, serving_calls
from .ragged import RaggedBatch
from .serving_calls import Caches, Call, Heads, Problem

OWN, _FA3 = "own", "FA3"
PEERS = (_FA3, "cuDNN", "FA2")
_TORCH = {"cuDNN": "CUDNN_ATTENTION", "FA2": "FLASH_ATTENTION"}
_DECODES, _CHUNKS, _APART = " decodes", " chunks", " apart"


@dataclass(frozen=True)
class Row:
    """Seconds of one kind of cache, by whose kernels; "own" is missing where none serves."""

    batch: RaggedBatch
    heads: Heads
    cache: str
    n_bytes: int  # of K and V
    seconds: dict[str, float]
    floor: float | None
    best_peer: float | None


def rows(batch: RaggedBatch, heads: Heads, args: argparse.Namespace) -> list[Row]:
    caches = Caches(batch, heads, args.page_size, args)
    calls = _calls(caches, args)
    floors = read_floor.calls(caches.kv, caches.n_bytes)
    times = bench_cuda.cold_median_seconds([*calls.values(), *floors], args.runs)
    seconds = dict(zip(calls, times))
    floor = min(times[len(calls) :], default=None)
    rows = []
    for cache in dict.fromkeys(cache for cache, _ in calls):
        of_cache = {whose: s for (kind, whose), s in seconds.items() if kind == cache}
        share = _share_of_keys(batch, cache)
        best = _best_peer(seconds, cache)
        n_bytes = round(caches.n_bytes * share)
        rows.append(
            Row(batch, heads, cache, n_bytes, of_cache, floor if share == 1 else None, best)
        )
    return rows


def _share_of_keys(batch: RaggedBatch, cache: str) -> float:
    """The share of the batch's keys that the part has which a kind of cache names."""
    few, many = mixes.few_and_many(batch)
    part = few if cache.endswith(_DECODES) else many if cache.endswith(_CHUNKS) else None
    if part is None:
        return 1
    return sum(batch.lengths_k[b] for b in part) / sum(batch.lengths_k)


def _best_peer(seconds: dict[tuple[str, str], float], cache: str) -> float | None:
    """The best time of the peers that compute the same, in one call or in two."""
    alike = cache.removesuffix(_APART)
    peers = [
        s
        for (kind, whose), s in seconds.items()
        if kind in (alike, alike + _APART) and whose != OWN
    ]
    return min(peers, default=None)


def _calls(caches: Caches, args: argparse.Namespace) -> dict[tuple[str, str], Call]:
    """(kind of cache, whose) -> call, for those that serve."""
    calls: dict[tuple[str, str], Call | None] = {}
    for cache, p in _problems(caches, args):
        calls[cache, OWN] = serving_calls.own(p, batch_invariant=args.batch_invariant)
        if args.no_peers:
            continue
        if p.used is None:
            calls.update({(cache, name): call for name, call in _torch_calls(p).items()})
        else:
            calls[cache, _FA3] = serving_calls.fa3(p)
        calls.update(_apart(calls, cache))
    return {key: call for key, call in calls.items() if call is not None}


def _problems(caches: Caches, args: argparse.Namespace) -> Iterator[tuple[str, Problem]]:
    batch = caches.batch
    if mixes.is_uniform(batch):
        yield "known", caches.known()
    yield "lengths", caches.with_lengths()
    for size in args.page_size:
        p = caches.in_pages(size)
        yield f"page {size}", p
        if mixes.is_mixed(batch):
            few, many = mixes.few_and_many(batch)
            yield f"page {size}{_DECODES}", p.part(few)
            yield f"page {size}{_CHUNKS}", p.part(many)


def _apart(calls: dict[tuple[str, str], Call | None], cache: str) -> dict[tuple[str, str], Call]:
    """Both parts of a mixed batch, one after the other, when the second of them is there."""
    of_all, found = cache.removesuffix(_CHUNKS), {}
    for whose in (OWN, _FA3) if cache.endswith(_CHUNKS) else ():
        parts = [calls.get((of_all + part, whose)) for part in (_DECODES, _CHUNKS)]
        if all(parts):
            found[of_all + _APART, whose] = _one_after_the_other(parts)
    return found


def _one_after_the_other(parts: list[Call]) -> Call:
    def call() -> None:
        for part in parts:
            part()

    return call


def _torch_calls(p: Problem) -> dict[str, Call]:
    """torch aligns a causal mask top-left, so that only one query is the same problem."""
    if p.queries[0] != 1 or p.scales:
        return {}
    q, _ = p.q_and_lengths()
    options = {"causal": False, "softmax_scale": None}
    calls = {
        name: bench_cuda.sdpa_call(q, p.k, p.v, backend, options)
        for name, backend in _TORCH.items()
    }
    return {name: call for name, call in calls.items() if bench_cuda.can_run(call)}
