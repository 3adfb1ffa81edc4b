"""Asks vLLM's CUDA platform, as of a GPU of compute capability 9.0 that need not be here, for the
backend CUSTOM of several kinds of layers. Prints what it takes, or why not, as JSON.

python tests/engines/vllm_choice.py
"""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

import torch

# What vLLM has compiled for CUDA devices. It is imported, and not called.
COMPILED = (
    "vllm._C_stable_libtorch",
    "vllm.vllm_flash_attn",
    "vllm.vllm_flash_attn.flash_attn_interface",
)
LAYERS = {
    "K and V": {"head_size": 128},
    "latent": {"use_mla": True},
    "latent, e4m3": {"use_mla": True, "kv_cache_dtype": "fp8_ds_mla"},
    "latent, not causal": {"use_mla": True, "use_non_causal": True},
    "chosen": {"use_mla": True, "use_sparse": True, "kv_cache_dtype": "fp8_ds_mla"},
    "chosen, not causal": {"use_mla": True, "use_sparse": True, "use_non_causal": True},
    "latent, e5m2": {"use_mla": True, "kv_cache_dtype": "fp8_e5m2"},
    "latent, 512": {"use_mla": True, "head_size": 512},
    "latent, window": {"use_mla": True, "has_sliding_window": True},
    "latent, fp32": {"use_mla": True, "dtype": torch.float32},
    "latent, fp16 and e4m3": {
        "use_mla": True,
        "dtype": torch.float16,
        "kv_cache_dtype": "fp8_ds_mla",
    },
    "latent, DCP": {"use_mla": True, "use_dcp": True},
    "latent, PCP": {"use_mla": True, "use_pcp": True},
}


def stand_in(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = []
    module.__getattr__ = lambda member: None
    return module


def main() -> None:
    sys.modules.update({name: stand_in(name) for name in COMPILED})
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class Hopper(NonNvmlCudaPlatform):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(9, 0)

    vllm.platforms.current_platform = Hopper()
    import flashattn.vllm
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

    flashattn.vllm.register()
    plain: dict[str, Any] = {
        "head_size": 576,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": "auto",
        "block_size": None,
    }
    found = {"prefill": MLAPrefillBackendEnum.CUSTOM.get_class().get_name()}
    for name, changed in LAYERS.items():
        config = AttentionSelectorConfig(**{**plain, **changed})
        try:
            path = Hopper.get_attn_backend_cls(AttentionBackendEnum.CUSTOM, config)
        except ValueError as error:
            found[name] = str(error).partition("Reason: ")[2]
        else:
            found[name] = resolve_obj_by_qualname(path).get_impl_cls().__name__
    print(json.dumps(found))


if __name__ == "__main__":
    main()
