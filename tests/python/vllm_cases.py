"""Steps of vLLM for tests of flashattn.vllm: requests whose tokens are in a cache already or come
in the step, computed by the backend on a stand-in for vLLM, and by the float64 oracle."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from flashattn import oracle
from vllm_stub import Common

LAYER = SimpleNamespace(_k_scale_float=0.5, _v_scale_float=0.25)


@dataclass
class Batch:
    """Requests that have `cached` tokens in the cache already, and `new` ones in the step, with
    room for `padding` tokens behind them. Tensors are on torch's default device."""

    cached: tuple[int, ...]
    new: tuple[int, ...]
    block_size: int = 16
    n_heads: int = 4
    n_heads_kv: int = 2
    d_head: int = 32
    padding: int = 0
    layout: str = "LBHNC"  # of the cache's memory: blocks, heads, tokens, K and V
    causal: bool = True
    dtype: Any = torch.float32
    seed: int = 0

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        self.lengths = self.key_lengths()
        self.n_tokens = sum(self.new)
        widest = max(-(-max(self.lengths) // self.block_size), 1)
        self.n_blocks = widest * len(self.new) + 3
        blocks = random.permutation(self.n_blocks)[: widest * len(self.new)]
        self.table = torch.tensor(blocks.reshape(len(self.new), widest), dtype=torch.int32)
        shape = (max(self.lengths), self.n_heads_kv, self.d_head)
        self.k, self.v = (
            [
                torch.tensor(random.standard_normal(shape), dtype=self.dtype)[:n]
                for n in self.lengths
            ]
            for _ in range(2)
        )
        shape = (self.n_tokens + self.padding, self.n_heads * self.d_head)
        self.q = torch.tensor(random.standard_normal(shape), dtype=self.dtype)

    def key_lengths(self) -> list[int]:
        return [a + b for a, b in zip(self.cached, self.new)]

    def parts(self, before: bool) -> list[tuple[int, int]]:
        """Returns the tokens of each request that are in the cache already, or those of the step,
        as their begin and end."""
        return [(0, c) if before else (c, n) for c, n in zip(self.cached, self.lengths)]

    def slots(self, before: bool) -> list[int]:
        size = self.block_size
        return [
            int(self.table[b, i // size]) * size + i % size
            for b, part in enumerate(self.parts(before))
            for i in range(*part)
        ]

    def cache(self, dtype: Any = None) -> Any:
        """Returns an empty cache [blocks, heads, tokens, 2 * d_head] with its memory in the order
        of the layout."""
        axes = {"B": 0, "H": 1, "N": 2, "C": 3}
        sizes = (self.n_blocks, self.n_heads_kv, self.block_size, 2 * self.d_head)
        order = [axes[c] for c in self.layout[1:]]
        memory = torch.zeros([sizes[a] for a in order], dtype=dtype or self.dtype)
        return memory.permute(*np.argsort(order).tolist())

    def common(self) -> Common:
        starts = np.concatenate([[0], np.cumsum(self.new)])
        slots = self.slots(before=False)
        return Common(
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor(self.lengths, dtype=torch.int32),
            num_actual_tokens=self.n_tokens,
            max_query_len=max(self.new),
            max_seq_len=max(self.lengths) + 5,  # a bound
            block_table_tensor=self.table,
            slot_mapping=torch.tensor(slots + [-1] * self.padding, dtype=torch.int64),
            causal=self.causal,
        )

    def tokens(self, of: list[Any], before: bool) -> Any:
        """Returns the tokens that are in the cache already, or those of the step."""
        parts = [x[slice(*part)] for x, part in zip(of, self.parts(before))]
        padding = torch.full((0 if before else self.padding, *of[0].shape[1:]), float("nan"))
        return torch.cat([*parts, padding.to(self.dtype)])

    def expected(
        self, keys: tuple[list[Any], list[Any]] | None = None, **options: Any
    ) -> np.ndarray:
        """Returns O [tokens, n_heads, d_head] in float64."""
        k, v = keys or (self.k, self.v)
        begin, found = 0, []
        for b, n in enumerate(self.new):
            q = self.q[begin : begin + n].view(1, n, self.n_heads, self.d_head)
            arrays = [x.double().cpu().numpy() for x in (q, k[b][None], v[b][None])]
            found.append(oracle.attention(*arrays, causal=self.causal, **options)[0][0])
            begin += n
        return np.concatenate(found)


@dataclass
class CrossBatch(Batch):
    """Requests of a decoder with `new` tokens in the step, which see the `cached` tokens of their
    encoder; `begins` says of which requests these come in the step, and not before."""

    begins: tuple[bool, ...] = ()
    causal: bool = False

    def key_lengths(self) -> list[int]:
        return list(self.cached)

    def parts(self, before: bool) -> list[tuple[int, int]]:
        return [(0, n if begins != before else 0) for n, begins in zip(self.cached, self.begins)]


def make_impl(backend: ModuleType, b: Batch, **given: Any) -> Any:
    return backend.FlashAttnImpl(b.n_heads, b.d_head, b.d_head**-0.5, b.n_heads_kv, **given)


def fill(impl: Any, b: Batch, cache: Any, layer: Any = LAYER) -> None:
    """Writes the tokens that are in the cache already."""
    slots = torch.tensor(b.slots(before=True), dtype=torch.int64)
    impl.do_kv_cache_update(layer, b.tokens(b.k, True), b.tokens(b.v, True), cache, slots)


def run_step(
    backend: ModuleType,
    b: Batch,
    impl: Any,
    cache: Any,
    layer: Any = LAYER,
    output: Any = None,
) -> np.ndarray:
    """Fills the cache with what is there already, and computes the step. Where no token of K and V
    comes in the step, vLLM gives none."""
    fill(impl, b, cache, layer)
    builder = backend.FlashAttnMetadataBuilder(None, [], None, b.q.device)
    metadata = builder.build(0, b.common())
    key = value = None
    if len(metadata.slot_mapping) > 0:
        key, value = b.tokens(b.k, False), b.tokens(b.v, False)
        impl.do_kv_cache_update(layer, key, value, cache, metadata.slot_mapping)
    output = torch.full_like(b.q, 7.0) if output is None else output
    assert impl.forward(layer, b.q, key, value, cache, metadata, output) is output
    assert (output[b.n_tokens :] == 7.0).all()
    return output[: b.n_tokens].view(-1, b.n_heads, b.d_head).double().cpu().numpy()


def check_step(backend: ModuleType, b: Batch, given: dict[str, Any], **options: Any) -> None:
    found = run_step(backend, b, make_impl(backend, b, **given), b.cache())
    tolerance = 1e-5 if b.dtype == torch.float32 else 2e-2
    np.testing.assert_allclose(found, b.expected(**options), atol=tolerance)
