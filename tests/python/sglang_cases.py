"""Steps of SGLang for tests of flashattn.sglang: requests whose tokens are in a cache already or
come in the step, computed by the backend on stand-ins for SGLang's objects, and by the float64
oracle."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from flashattn import oracle
from sglang_stub import (
    AttentionArch,
    AttentionType,
    Context,
    ForwardMode,
    KVWriteLoc,
    Pool,
    SWAKVPool,
)

K_SCALE, V_SCALE = 0.5, 0.25


@dataclass
class Batch:
    """Requests that have `cached` tokens in the cache already, and `new` ones in the step. With
    of_encoder a request has as many tokens of an encoder before its own. Tensors are on torch's
    default device."""

    cached: tuple[int, ...]
    new: tuple[int, ...]
    mode: str = "EXTEND"
    page_size: int = 1
    n_heads: int = 4
    n_heads_kv: int = 2
    d_head: int = 32
    d_head_v: int = 32
    of_encoder: tuple[int, ...] | None = None
    width: int = 0  # of req_to_token; 0: what the requests need
    dtype: Any = torch.float32
    cache_dtype: Any = None
    windowed: bool = False  # two pools: of layers with windows, and of others
    hnd: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        self.lengths = [a + b for a, b in zip(self.cached, self.new)]
        self.encoded = self.of_encoder or (0,) * len(self.new)
        n, size = len(self.new), self.page_size
        held = [e + x for e, x in zip(self.encoded, self.lengths)]
        self.width = max(self.width, *held)
        widest = -(-self.width // size)
        self.n_slots = (widest * n + 4) * size
        pages = 1 + random.permutation(widest * n + 2)[: widest * n].reshape(n, widest)
        slots = pages[:, :, None] * size + np.arange(size)
        self.rows = torch.tensor(1 + random.permutation(n + 2)[:n], dtype=torch.int64)
        self.req_to_token = torch.zeros(n + 3, self.width, dtype=torch.int32)
        taken = slots.reshape(n, -1)[:, : self.width]
        self.req_to_token[self.rows] = torch.tensor(taken, dtype=torch.int32)
        self.full_to_swa = torch.tensor(self._other_pages(random), dtype=torch.int64)
        self.k, self.v = (
            [self._normal(random, m, self.n_heads_kv, d) for m in held]
            for d in (self.d_head, self.d_head_v)
        )
        self.q = self._normal(random, sum(self.new), self.n_heads * self.d_head)

    def _normal(self, random: Any, *shape: int) -> Any:
        return torch.tensor(random.standard_normal(shape), dtype=self.dtype)

    def _other_pages(self, random: Any) -> np.ndarray:
        """Returns where each slot is in the pool of layers with windows; page 0 stays."""
        n = self.n_slots // self.page_size
        pages = np.concatenate([[0], 1 + random.permutation(n - 1)])
        return (pages[:, None] * self.page_size + np.arange(self.page_size)).reshape(-1)

    def pool(self) -> Any:
        widths = self.d_head, self.d_head_v
        sizes = (self.n_heads_kv, widths, self.cache_dtype or self.dtype)
        sizes += (self.page_size if self.hnd else 0,)
        if not self.windowed:
            return Pool(self.n_slots, *sizes)
        pool = SWAKVPool(self.n_slots, *sizes)
        pool.full_to_swa.copy_(self.full_to_swa)
        return pool

    def slots(self, begins: list[int], ends: list[int]) -> Any:
        rows = zip(self.rows.tolist(), begins, ends)
        return torch.cat([self.req_to_token[r, a:b] for r, a, b in rows]).long()

    def begins(self) -> list[int]:
        """Returns where the new tokens of each request are among what its row holds."""
        return [e + c for e, c in zip(self.encoded, self.cached)]

    def ends(self) -> list[int]:
        return [len(x) for x in self.k]

    def forward_batch(self) -> Any:
        mode, n = ForwardMode[self.mode], len(self.new)
        counted = self.cached if mode.is_target_verify() else self.lengths
        lens = torch.tensor(counted, dtype=torch.int64)
        encoder = None if self.of_encoder is None else torch.tensor(self.of_encoder)
        extends = not (mode.is_decode() or mode.is_target_verify())
        return SimpleNamespace(
            forward_mode=mode,
            batch_size=n,
            req_pool_indices=self.rows,
            seq_lens=lens,
            seq_lens_cpu=lens.cpu(),
            out_cache_loc=self.slots(self.begins(), self.ends()),
            encoder_lens=encoder,
            encoder_out_cache_loc=self.slots([0] * n, list(self.encoded)),
            extend_seq_lens=torch.tensor(self.new) if extends else None,
            extend_seq_lens_cpu=list(self.new) if extends else None,
            extend_num_tokens=sum(self.new) if extends else None,
            spec_info=None,
        )

    def runner(self, pool: Any, **changed: Any) -> Any:
        model = {
            "attention_arch": AttentionArch.MHA,
            "head_dim": self.d_head,
            "is_encoder_decoder": self.of_encoder is not None,
            "is_local_attention_model": False,
        }
        config = SimpleNamespace(**{**model, **changed.pop("model_config", {})})
        return SimpleNamespace(
            **{
                "model_config": config,
                "req_to_token_pool": SimpleNamespace(req_to_token=self.req_to_token),
                "token_to_kv_pool": pool,
                "page_size": self.page_size,
                "device": self.q.device,
                "dtype": self.dtype,
                "kv_cache_dtype": self.cache_dtype or self.dtype,
                "kv_cache_dtype_str": "fp8_e4m3" if self.cache_dtype else "auto",
                "sliding_window_size": None,
                **changed,
            }
        )

    def layer(self, **changed: Any) -> Any:
        return SimpleNamespace(
            **{
                "layer_id": 0,
                "tp_q_head_num": self.n_heads,
                "tp_k_head_num": self.n_heads_kv,
                "qk_head_dim": self.d_head,
                "v_head_dim": self.d_head_v,
                "scaling": self.d_head**-0.5,
                "logit_cap": 0.0,
                "logit_capping_method": "tanh",
                "pos_encoding_mode": "NONE",
                "sliding_window_size": -1,
                "is_cross_attention": False,
                "use_irope": False,
                "attn_type": AttentionType.DECODER,
                "k_scale": None,
                "v_scale": None,
                **changed,
            }
        )

    def part(self, of: list[Any], begins: list[int], ends: list[int]) -> Any:
        return torch.cat([x[a:b] for x, a, b in zip(of, begins, ends)])

    def expected(
        self, cross: bool = False, rounded: bool = False, causal: bool = True, **options: Any
    ) -> np.ndarray:
        """Returns O [tokens, n_heads, d_head_v] in float64."""
        at, found = 0, []
        for b, n in enumerate(self.new):
            begin, end = (0, self.encoded[b]) if cross else (self.encoded[b], None)
            k, v = self.k[b][begin:end], self.v[b][begin:end]
            if rounded:
                k, v = to_e4m3(k, K_SCALE), to_e4m3(v, V_SCALE)
            q = self.q[at : at + n].view(1, n, self.n_heads, self.d_head)
            arrays = [x.double().cpu().numpy() for x in (q, k[None], v[None])]
            found.append(oracle.attention(*arrays, causal=causal and not cross, **options)[0][0])
            at += n
        return np.concatenate(found)


def to_e4m3(x: Any, scale: float) -> Any:
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def scaled() -> dict[str, Any]:
    """Returns the scales of a layer, as a quantised model has them."""
    return {"k_scale": torch.tensor(K_SCALE), "v_scale": torch.tensor(V_SCALE)}


class Step:
    """A backend, made for a batch, with what is in the cache already."""

    def __init__(
        self, module: ModuleType, context: Context, b: Batch, layer: Any, **changed: Any
    ) -> None:
        self.b, self.layer, self.pool = b, layer, b.pool()
        if b.mode == "TARGET_VERIFY":
            context.spec.speculative_eagle_topk = 1
            context.spec.speculative_num_draft_tokens = b.new[0]
        self.backend = module.FlashAttnBackend(b.runner(self.pool, **changed))
        self.batch = b.forward_batch()
        self.fill(b)

    def fill(self, b: Batch) -> None:
        """Writes what is in the cache before the step: cached tokens, those of an encoder too."""
        begins, ends = [0] * len(b.new), b.begins()
        self.write(b.slots(begins, ends), b.part(b.k, begins, ends), b.part(b.v, begins, ends))

    def write(self, slots: Any, k: Any, v: Any) -> None:
        swa = self.b.full_to_swa[slots]
        scales = self.layer.k_scale, self.layer.v_scale
        self.pool.set_kv_buffer(self.layer, KVWriteLoc(slots, swa), k, v, *scales)

    def new(self) -> tuple[Any, Any]:
        b = self.b
        return tuple(b.part(x, b.begins(), b.ends()) for x in (b.k, b.v))

    def forward(self, k: Any, v: Any, **options: Any) -> Any:
        if self.batch.forward_mode.is_decode():
            call = self.backend.forward_decode
        else:
            call = self.backend.forward_extend
        return call(self.b.q, k, v, self.layer, self.batch, **options)

    def arrays(self, o: Any) -> np.ndarray:
        return o.view(-1, self.b.n_heads, self.b.d_head_v).double().cpu().numpy()


class FixedStep:
    """A step whose tensors stay where they are, as those of a CUDA graph do, and which takes other
    requests, as many of them."""

    def __init__(
        self, module: ModuleType, context: Context, b: Batch, layer: Any, **changed: Any
    ) -> None:
        self.step = Step(module, context, b, layer, **changed)
        self.k, self.v = self.step.new()
        self.step.backend.init_forward_metadata_out_graph(self.step.batch, in_capture=True)

    def run(self) -> Any:
        """Computes O. A CUDA graph captures this."""
        self.step.backend.init_forward_metadata_in_graph(self.step.batch)
        return self.step.forward(self.k, self.v)

    def load(self, other: Batch) -> None:
        step, b, batch = self.step, self.step.b, other.forward_batch()
        for name in ("req_to_token", "rows", "full_to_swa", "q"):
            getattr(b, name).copy_(getattr(other, name))
        for name in ("seq_lens", "out_cache_loc"):
            getattr(step.batch, name).copy_(getattr(batch, name))
        if b.windowed:
            step.pool.full_to_swa.copy_(other.full_to_swa)
        for to, of in ((self.k, other.k), (self.v, other.v)):
            to.copy_(other.part(of, other.begins(), other.ends()))
        step.fill(other)
        step.backend.init_forward_metadata_out_graph(step.batch)


GRAPHS = {
    "tokens": ({"mode": "DECODE"}, (1, 1, 1, 1)),
    "drafts": ({"mode": "TARGET_VERIFY"}, (4, 4, 4, 4)),
    "pages of 16": ({"mode": "DECODE", "page_size": 16}, (1, 1, 1, 1)),
    "windows": ({"mode": "DECODE", "windowed": True}, (1, 1, 1, 1)),
    "windows in pages of 16": (
        {"mode": "TARGET_VERIFY", "windowed": True, "page_size": 16},
        (3, 3, 3, 3),
    ),
}


def check_other_lengths(
    module: ModuleType, context: Context, graph: str, capture: Any, longest: int, **size: Any
) -> None:
    """Computes a step by what capture() made of a first one, for other lengths. capture takes the
    function that computes the step, and returns a function that does so again."""
    options, new = GRAPHS[graph]
    size = {**size, **options, "width": longest + 20}
    largest = Batch((longest,) * 4, new, **size)
    window, is_e4m3 = 20 if largest.windowed else -1, largest.cache_dtype is not None
    scales = scaled() if is_e4m3 else {}
    layer_id = int(largest.windowed)
    layer = largest.layer(layer_id=layer_id, sliding_window_size=window, **scales)
    fixed = FixedStep(module, context, largest, layer)
    replay = capture(fixed.run)
    third = longest // 3
    for seed, cached in enumerate(((longest, 7, 0, third), (0, 0, 0, 0), (1, third, 64, 20))):
        b = Batch(cached, new, seed=seed, **size)
        fixed.load(b)
        sides = (window, 0) if window >= 0 else (-1, -1)
        tolerance = 1e-5 if b.dtype == torch.float32 else 3e-2
        expected = b.expected(rounded=is_e4m3, window_size=sides)
        np.testing.assert_allclose(fixed.step.arrays(replay()), expected, atol=tolerance)


def check_step(
    module: ModuleType,
    context: Context,
    b: Batch,
    given: dict[str, Any] | None = None,
    sinks: Any = None,
    tolerance: float | None = None,
    runner: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Computes the step with the bounds of its own lengths, and with those of a CUDA graph."""
    step = Step(module, context, b, b.layer(**(given or {})), **(runner or {}))
    if sinks is not None:
        options["sinks"] = sinks.double().cpu().numpy()
    expected = b.expected(step.layer.is_cross_attention, **options)
    tolerance = tolerance or (1e-5 if b.dtype == torch.float32 else 2e-2)
    for prepare in (
        step.backend.init_forward_metadata,
        step.backend.init_forward_metadata_in_graph,
    ):
        prepare(step.batch)
        k, v = (None, None) if step.layer.is_cross_attention else step.new()
        found = step.forward(k, v, **({} if sinks is None else {"sinks": sinks}))
        assert found.shape == (len(b.q), b.n_heads * b.d_head_v)
        np.testing.assert_allclose(step.arrays(found), expected, atol=tolerance)
