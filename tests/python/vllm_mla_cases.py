"""Steps of vLLM over latent tokens (MLA), for tests of flashattn.vllm: computed by the backend on a
stand-in for vLLM, and by the float64 oracle."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import vllm_mla_stub
from flashattn import latent, oracle
from vllm_stub import AttentionType, Common

SCALE = 192**-0.5
K_SCALE = 0.25
LAYER = SimpleNamespace(_k_scale_float=K_SCALE)
BYTES = {"fp8": 576, "fp8_e4m3": 576, "fp8_ds_mla": latent.TOKEN_BYTES}
IMPLS = "FlashAttnMLAImpl", "FlashAttnMLASparseImpl"
BUILDERS = "FlashAttnMLAMetadataBuilder", "FlashAttnMLASparseMetadataBuilder"
DIMS = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}


@dataclass
class Batch:
    """Requests that have `cached` tokens in the cache already, and `new` ones in the step, with
    room for `padding` tokens behind them. Blocks are `gap` tokens apart. Tensors are on torch's
    default device."""

    cached: tuple[int, ...]
    new: tuple[int, ...]
    block_size: int = 16
    n_heads: int = 16
    padding: int = 0
    gap: int = 0
    causal: bool = True
    cache_dtype: str = "auto"
    dtype: Any = torch.float32
    seed: int = 0

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        self.lengths = [a + b for a, b in zip(self.cached, self.new)]
        self.n_tokens = sum(self.new)
        widest = max(-(-n // self.block_size) for n in self.lengths)
        self.n_blocks = widest * len(self.new) + 3
        blocks = random.permutation(self.n_blocks)[: widest * len(self.new)]
        self.table = torch.tensor(blocks.reshape(len(self.new), widest), dtype=torch.int32)
        self.tokens = [self._numbers(random, n, 576) for n in self.lengths]
        self.q = self._numbers(random, self.n_tokens + self.padding, self.n_heads, 576)

    def _numbers(self, random: Any, *shape: int) -> torch.Tensor:
        return torch.tensor(random.standard_normal(shape), dtype=self.dtype)

    def slots(self, b: int, begin: int, end: int) -> list[int]:
        size = self.block_size
        return [int(self.table[b, i // size]) * size + i % size for i in range(begin, end)]

    def cache(self) -> torch.Tensor:
        """Returns an empty cache [blocks, tokens, 576], or of bytes."""
        is_plain = self.cache_dtype not in BYTES
        columns, dtype = BYTES.get(self.cache_dtype, 576), self.dtype if is_plain else torch.uint8
        memory = torch.zeros(self.n_blocks, self.block_size + self.gap, columns, dtype=dtype)
        return memory[:, : self.block_size]

    def common(self) -> Common:
        starts = np.concatenate([[0], np.cumsum(self.new)])
        slots = [
            s
            for b, (c, n) in enumerate(zip(self.cached, self.new))
            for s in self.slots(b, c, c + n)
        ]
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

    def new_tokens(self) -> torch.Tensor:
        parts = [x[c:] for x, c in zip(self.tokens, self.cached)]
        return torch.cat([*parts, torch.full((self.padding, 576), float("nan"), dtype=self.dtype)])

    def kept(self, tokens: torch.Tensor) -> np.ndarray:
        """Returns what the cache keeps of tokens, in float64."""
        x = tokens.float().cpu()
        if self.cache_dtype == "fp8_ds_mla":
            return latent.decode(latent.encode(x.numpy()))
        if self.cache_dtype.startswith("fp8"):
            codes = (x / K_SCALE).clamp(-448, 448).to(torch.float8_e4m3fn)
            return codes.double().numpy() * K_SCALE
        return x.double().numpy()

    def expected(self) -> np.ndarray:
        """Returns O [tokens, n_heads, 512] in float64."""
        begin, found = 0, []
        for tokens, n in zip(self.tokens, self.new):
            q = self.q[begin : begin + n].double().cpu().numpy()[None]
            k = self.kept(tokens)[None, :, None]
            options = {"causal": self.causal, "softmax_scale": SCALE}
            found.append(oracle.attention(q, k, k[..., :512], **options)[0][0])
            begin += n
        return np.concatenate(found)


@dataclass
class Choice:
    """Up to `most` tokens of the cache for each query of a batch, of those that a causal mask
    shows, in any order, with -1 among them."""

    b: Batch
    most: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        rows = np.full((self.b.n_tokens + self.b.padding, self.most), -1, np.int32)
        visible = [c + i + 1 for c, n in zip(self.b.cached, self.b.new) for i in range(n)]
        for row, n in zip(rows, visible):
            count = min(random.integers(0, self.most + 1), n)
            places = random.permutation(self.most)[:count]
            row[places] = random.permutation(n)[:count]
        self.rows = torch.tensor(rows)

    def expected(self) -> np.ndarray:
        """Returns O [tokens, n_heads, 512] in float64."""
        found, i = [], 0
        for tokens, n in zip(self.b.tokens, self.b.new):
            kept = self.b.kept(tokens)
            for row in self.rows[i : i + n].cpu().numpy():
                q = self.b.q[i : i + 1].double().cpu().numpy()[None]
                k = kept[row[row >= 0]][None, :, None]
                found.append(oracle.attention(q, k, k[..., :512], softmax_scale=SCALE)[0][0])
                i += 1
        return np.concatenate(found)


def check_choice(backend: ModuleType, choice: Choice, group: Any = None) -> None:
    """Tokens of a step attend to tokens that were chosen for each."""
    b, cache = choice.b, choice.b.cache()
    impl = make_impl(backend, b, topk_indices_buffer=choice.rows, index_group=group)
    fill(impl, b, cache)
    update(impl, b, b.new_tokens(), cache, b.common().slot_mapping)
    metadata = make_builder(backend, None, b.block_size).build(0, b.common())
    q = tuple(x[: b.n_tokens] for x in b.q.split([512, 64], dim=-1))
    o, lse = impl.forward_mqa(q, as_forward_has_it(b, cache), metadata, LAYER)
    assert lse is None and o.dtype == b.dtype
    tolerance = 1e-5 if b.dtype == torch.float32 else 2e-2
    np.testing.assert_allclose(o.double().cpu().numpy(), choice.expected(), atol=tolerance)


def make_impl(backend: ModuleType, b: Batch, **given: Any) -> Any:
    """Returns an implementation as vLLM makes one, with arguments changed."""
    of_module = [x for x in vars(backend).values() if getattr(x, "__name__", "") in IMPLS]
    arguments = {
        "num_heads": b.n_heads,
        "head_size": 576,
        "scale": SCALE,
        "num_kv_heads": 1,
        "alibi_slopes": None,
        "sliding_window": None,
        "kv_cache_dtype": b.cache_dtype,
        "logits_soft_cap": None,
        "attn_type": AttentionType.DECODER,
        "kv_sharing_target_layer_name": None,
        **DIMS,
    }
    return of_module[0](**{**arguments, **given})


def make_builder(backend: ModuleType, config: Any, block_size: int = 64) -> Any:
    of_module = [x for x in vars(backend).values() if getattr(x, "__name__", "") in BUILDERS]
    spec = SimpleNamespace(block_size=block_size)
    return of_module[0](spec, [], config, torch.get_default_device())


def update(impl: Any, b: Batch, tokens: torch.Tensor, cache: Any, slots: torch.Tensor) -> None:
    """Writes tokens as vLLM's layer does; 0.33 says with the last argument that the scale is 1."""
    parts = tokens[:, :512], tokens[:, None, 512:]
    skip_scale = () if b.seed % 2 else (False,)
    scale = torch.tensor(K_SCALE)
    impl.do_kv_cache_update(*parts, cache, slots, b.cache_dtype, scale, *skip_scale)


def as_forward_has_it(b: Batch, cache: torch.Tensor) -> torch.Tensor:
    """vLLM's layer looks at caches of e4m3 as such before it calls forward_mqa."""
    is_e4m3 = b.cache_dtype in ("fp8", "fp8_e4m3")
    return cache.view(torch.float8_e4m3fn) if is_e4m3 else cache


def fill(impl: Any, b: Batch, cache: torch.Tensor) -> None:
    """Writes what is in the cache before the step."""
    slots = [s for i, c in enumerate(b.cached) for s in b.slots(i, 0, c)]
    before = torch.cat([x[:c] for x, c in zip(b.tokens, b.cached)])
    update(impl, b, before, cache, torch.tensor(slots, dtype=torch.int64))


def run_step(backend: ModuleType, b: Batch, impl: Any, cache: torch.Tensor) -> np.ndarray:
    """Fills the cache with what is there already, and decodes the step."""
    fill(impl, b, cache)
    config = vllm_mla_stub.vllm_config(speculative_config__num_speculative_tokens=max(b.new) - 1)
    metadata = make_builder(backend, config).build(0, b.common())
    update(impl, b, b.new_tokens(), cache, b.common().slot_mapping)
    assert metadata.num_decode_tokens == b.n_tokens
    q = b.q.split([512, 64], dim=-1)
    o, lse = impl.forward_mqa(q, as_forward_has_it(b, cache), metadata, LAYER)
    assert lse is None and o.dtype == b.dtype and (o[b.n_tokens :] == 0).all()
    return o[: b.n_tokens].double().cpu().numpy()


def check_step(backend: ModuleType, b: Batch) -> None:
    found = run_step(backend, b, make_impl(backend, b), b.cache())
    tolerance = 1e-5 if b.dtype == torch.float32 else 2e-2
    np.testing.assert_allclose(found, b.expected(), atol=tolerance)


def check_prefill(module: ModuleType, b: Batch, dims: tuple[int, int] = (192, 128)) -> None:
    """New tokens of prompts, and these to chunks of what is cached, merged as vLLM merges them."""
    d_head, d_head_v = dims
    random = np.random.default_rng(b.seed)
    shape = (b.n_heads, d_head - 64 + d_head_v)
    up = torch.tensor(random.standard_normal((512, *shape)) / 512**0.5, dtype=b.dtype)
    q = b._numbers(random, b.n_tokens, b.n_heads, d_head)

    def expanded(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nope, v = torch.einsum("tc,chd->thd", tokens[:, :512], up).split(
            [d_head - 64, d_head_v], dim=-1
        )
        return torch.cat([nope, tokens[:, None, 512:].expand(-1, b.n_heads, -1)], -1), v

    prefill = module.FlashAttnMLAPrefill(SCALE)
    starts = b.common().query_start_loc
    prefill.prepare_metadata(SimpleNamespace(query_start_loc=starts, max_query_len=max(b.new)))
    k, v = expanded(b.new_tokens())
    o, lse = prefill.run_prefill_new_tokens(q=q, k=k, v=v, return_softmax_lse=True)
    into = torch.empty_like(o)
    alone = prefill.run_prefill_new_tokens(q=q, k=k, v=v, return_softmax_lse=False, out=into)
    assert alone is into and torch.equal(alone, o)
    chunk = SimpleNamespace(
        query_start_loc=starts,
        max_query_len=max(b.new),
        cu_seq_lens=torch.tensor([0, *np.cumsum(b.cached)], dtype=torch.int32),
        max_seq_len=max(b.cached),
    )
    before = torch.cat([x[:c] for x, c in zip(b.tokens, b.cached)])
    k, v = expanded(before)
    of_context, lse_of_context = prefill.run_prefill_context_chunk(chunk=chunk, q=q, k=k, v=v)
    weight = torch.sigmoid(lse - lse_of_context).T[..., None]
    found = weight * o.double() + (1 - weight) * of_context.double()
    for i, n in enumerate(b.new):
        begin = sum(b.new[:i])
        k, v = (x.double().cpu().numpy()[None] for x in expanded(b.tokens[i]))
        arrays = q[begin : begin + n].double().cpu().numpy()[None], k, v
        expected = oracle.attention(*arrays, causal=True, softmax_scale=SCALE)[0][0]
        tolerance = 1e-5 if b.dtype == torch.float32 else 2e-2
        ours = found[begin : begin + n].cpu().numpy()
        np.testing.assert_allclose(ours, expected, atol=tolerance)
