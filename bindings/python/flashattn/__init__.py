"""This package computes FlashAttention by libflashattn: exact attention without the matrix of
scores in memory.

    import numpy as np
    from flashattn import flash_attn_func

    q = np.random.randn(1, 512, 8, 64).astype(np.float32)   # [batch, seqlen_q, n_heads, d_head]
    k = np.random.randn(1, 512, 2, 64).astype(np.float32)   # [batch, seqlen_k, n_heads_kv, d_head]
    v = np.random.randn(1, 512, 2, 64).astype(np.float32)
    o = flash_attn_func(q, k, v, causal=True)

Arrays may be numpy's, torch tensors (CPU and CUDA), or anything with DLPack or an array interface;
torch itself is not needed. The package brings the program `flashattn`, which is also `python -m
flashattn`; `flashattn --help` lists its commands.
"""

from __future__ import annotations

from ._append import flash_kv_append
from ._attention import (
    Selection,
    Support,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_combine,
    query_support,
    select_config,
)
from ._backward import Gradients, flash_attn_backward, measure_backward
from ._block_mask import BlockMask
from ._quantise import Quantised, flash_attn_fp8, quantise
from .config import (
    Arch,
    Config,
    DType,
    Feature,
    Kernel,
    KernelResources,
    Op,
    kernel_resources,
    kernels,
    lookup_kernel,
)
from .device import (
    Device,
    DeviceInfo,
    Isa,
    cuda_devices,
    device_info,
    num_threads,
    set_num_threads,
    version,
)
from .errors import (
    FlashAttnError,
    FlashAttnInvalidConfigError,
    FlashAttnKernelUnavailableError,
    FlashAttnLookupError,
    FlashAttnMemoryError,
    FlashAttnNotImplementedError,
    FlashAttnValueError,
)
from .tuning import TUNING_HEADER, measure, set_tuning, tuning_line


def __getattr__(name: str) -> str:
    """Gives `__version__`, which is that of the loaded library: version()."""
    if name == "__version__":
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Arch",
    "BlockMask",
    "Config",
    "DType",
    "Device",
    "DeviceInfo",
    "Feature",
    "FlashAttnError",
    "FlashAttnInvalidConfigError",
    "FlashAttnKernelUnavailableError",
    "FlashAttnLookupError",
    "FlashAttnMemoryError",
    "FlashAttnNotImplementedError",
    "FlashAttnValueError",
    "Gradients",
    "Isa",
    "Kernel",
    "KernelResources",
    "Op",
    "Quantised",
    "Selection",
    "Support",
    "TUNING_HEADER",
    "cuda_devices",
    "device_info",
    "flash_attn_backward",
    "flash_attn_fp8",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_combine",
    "flash_kv_append",
    "kernel_resources",
    "kernels",
    "lookup_kernel",
    "measure",
    "measure_backward",
    "num_threads",
    "quantise",
    "query_support",
    "select_config",
    "set_num_threads",
    "set_tuning",
    "tuning_line",
    "version",
]
