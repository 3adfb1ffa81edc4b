"""A package `sglang` with the names that flashattn.sglang imports, for machines without SGLang, and
stand-ins for its pools. tests/engines/test_sglang.py runs SGLang itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

PACKAGE = "flashattn.sglang"


class AttentionType(Enum):
    DECODER = "decoder"
    DECODER_BIDIRECTIONAL = "decoder_bidirectional"
    ENCODER_ONLY = "encoder_only"


class AttentionArch(IntEnum):
    MLA = 1
    MHA = 2


class ForwardMode(IntEnum):
    EXTEND = 1
    DECODE = 2
    IDLE = 4
    TARGET_VERIFY = 5
    DRAFT_EXTEND_V2 = 6
    DLLM_EXTEND = 9

    def is_decode(self) -> bool:
        return self == ForwardMode.DECODE

    def is_decode_or_idle(self) -> bool:
        return self in (ForwardMode.DECODE, ForwardMode.IDLE)

    def is_target_verify(self) -> bool:
        return self == ForwardMode.TARGET_VERIFY

    def is_draft_extend_v2(self) -> bool:
        return self == ForwardMode.DRAFT_EXTEND_V2

    def is_dllm_extend(self) -> bool:
        return self == ForwardMode.DLLM_EXTEND


class SharedReadEnds(Enum):
    IN_REPLAY = 2
    POST_REPLAY = 3
    UNKNOWN = 4


class AttentionBackend:
    def shared_read_ends(self, fm: ForwardMode) -> SharedReadEnds:
        return SharedReadEnds.IN_REPLAY if fm.is_decode() else SharedReadEnds.UNKNOWN


@dataclass
class KVWriteLoc:
    loc: Tensor
    swa_loc: Tensor | None = None

    @classmethod
    def for_layer(cls, forward_batch: Any, layer: Any, *, swa_loc: Any = None) -> KVWriteLoc:
        if layer.is_cross_attention:
            return cls(forward_batch.encoder_out_cache_loc, swa_loc)
        return cls(forward_batch.out_cache_loc, swa_loc)


class Pool:
    """MHATokenToKVPool of one layer: K and V [slots, heads, elements], or with heads before the
    tokens of a page (SGLANG_USE_HND_KVCACHE)."""

    def __init__(
        self, slots: int, heads: int, widths: tuple[int, int], dtype: Any, hnd_page: int = 0
    ) -> None:
        self.dtype, self.hnd_page = dtype, hnd_page
        self.store = torch.uint8 if dtype == torch.float8_e4m3fn else dtype
        shape = (slots // hnd_page, heads, hnd_page) if hnd_page else (slots, heads)
        self.kv = [torch.zeros((*shape, d), dtype=self.store) for d in widths]

    def get_kv_buffer(self, layer_id: int) -> tuple[Tensor, ...]:
        return tuple(x.view(self.dtype) for x in self.kv)

    def set_kv_buffer(
        self, layer: Any, where: KVWriteLoc, k: Tensor, v: Tensor, k_scale: Any, v_scale: Any
    ) -> None:
        self.write(where.loc, k, v, k_scale, v_scale)

    def write(self, slots: Tensor, k: Tensor, v: Tensor, k_scale: Any, v_scale: Any) -> None:
        for cache, x, scale in zip(self.kv, (k, v), (k_scale, v_scale)):
            if x.dtype != self.dtype and scale is not None:
                x = x / scale
            x = x.to(self.dtype).view(self.store)
            if self.hnd_page:
                cache[slots // self.hnd_page, :, slots % self.hnd_page] = x
            else:
                cache[slots] = x


class SWAKVPool:
    """Layer 0 sees all keys. Layer 1 has windows, and keeps fewer slots in a pool of its own."""

    swa_layer_nums = 1

    def __init__(self, slots: int, *sizes: Any) -> None:
        self.pools = Pool(slots, *sizes), Pool(slots, *sizes)
        self.layers_mapping = {0: (0, False), 1: (0, True)}
        self.full_to_swa = torch.zeros(slots, dtype=torch.int64)

    def translate_loc_from_full_to_swa(self, slots: Tensor) -> Tensor:
        return self.full_to_swa[slots]

    def get_kv_buffer(self, layer_id: int) -> tuple[Tensor, ...]:
        return self.pools[layer_id].get_kv_buffer(0)

    def set_kv_buffer(self, layer: Any, where: KVWriteLoc, *rest: Any) -> None:
        slots = where.swa_loc if layer.layer_id else where.loc
        self.pools[layer.layer_id].write(slots, *rest)


@dataclass
class Context:
    """What sglang.srt.runtime_context has, and what was registered."""

    parallel: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(attn_cp_size=1, dcp_enabled=False)
    )
    spec: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(
            speculative_eagle_topk=None, speculative_num_draft_tokens=None
        )
    )
    deterministic: bool = False
    backends: dict[str, Any] = field(default_factory=dict)
    choices: list[str] = field(default_factory=lambda: ["triton"])
    deterministic_choices: list[str] = field(default_factory=lambda: ["triton"])

    def exec(self) -> SimpleNamespace:
        chosen = SimpleNamespace(enable_deterministic_inference=self.deterministic)
        return SimpleNamespace(deterministic=chosen)

    def register(self, name: str) -> Any:
        return lambda make: self.backends.setdefault(name, make)


def _modules(context: Context) -> dict[str, ModuleType]:
    contents: dict[str, dict[str, Any]] = {
        "sglang": {},
        "sglang.srt": {},
        "sglang.srt.arg_groups": {},
        "sglang.srt.arg_groups.choices": {
            "ATTENTION_BACKEND_CHOICES": context.choices,
            "DETERMINISTIC_ATTENTION_BACKEND_CHOICES": context.deterministic_choices,
        },
        "sglang.srt.configs": {},
        "sglang.srt.configs.model_config": {"AttentionArch": AttentionArch},
        "sglang.srt.layers": {},
        "sglang.srt.layers.attention": {},
        "sglang.srt.layers.attention.attention_registry": {
            "register_attention_backend": context.register,
        },
        "sglang.srt.layers.attention.base_attn_backend": {
            "AttentionBackend": AttentionBackend,
            "SharedReadEnds": SharedReadEnds,
        },
        "sglang.srt.layers.radix_attention": {"AttentionType": AttentionType},
        "sglang.srt.mem_cache": {},
        "sglang.srt.mem_cache.memory_pool": {"KVWriteLoc": KVWriteLoc},
        "sglang.srt.mem_cache.swa_memory_pool": {"SWAKVPool": SWAKVPool},
        "sglang.srt.runtime_context": {
            "get_exec": context.exec,
            "get_parallel": lambda: context.parallel,
            "get_spec": lambda: context.spec,
        },
    }
    modules = {name: ModuleType(name) for name in contents}
    for name, members in contents.items():
        vars(modules[name]).update(members)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, modules[name])
    return modules


def _forget() -> dict[str, ModuleType]:
    """Takes SGLang, and the modules that have imported its names, out of Python; returns them."""
    own = [x for x in sys.modules if x.split(".")[0] == "sglang" or x.startswith(f"{PACKAGE}._")]
    for name in own:
        if name.startswith(PACKAGE):
            vars(sys.modules[PACKAGE]).pop(name.rpartition(".")[2], None)
    return {name: sys.modules.pop(name) for name in own}


@contextmanager
def stub() -> Iterator[Context]:
    """Puts the package in place, and yields what a test may change of it."""
    context = Context()
    hidden = _forget()
    sys.modules.update(_modules(context))
    try:
        yield context
    finally:
        _forget()
        sys.modules.update(hidden)
