"""What these tests need of the machine."""

from __future__ import annotations

import flashattn


def missing() -> str | None:
    """Returns why the GPU tests cannot run here; None if they can."""
    if not any(kernel.config.arch >= flashattn.Arch.SM80 for kernel in flashattn.kernels()):
        return "GPU tests need a library with CUDA kernels (FLASH_CUDA=ON)"
    try:
        flashattn.device_info(flashattn.Device.CUDA_CURRENT)
    except flashattn.FlashAttnError as error:
        return f"GPU tests need a CUDA device: {error}"
    try:
        import torch
    except ImportError:
        return "GPU tests need torch"
    return None if torch.cuda.is_available() else "GPU tests need a torch with CUDA"
