"""This module enters SGLang's registry of attention backends."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any


def _found_version() -> str:
    try:
        return f"sglang {version('sglang')}"
    except PackageNotFoundError:
        return "this SGLang"


def _new_backend(runner: Any) -> Any:
    """Makes the backend of a model. SGLang calls this with its ModelRunner."""
    from ._backend import FlashAttnBackend

    return FlashAttnBackend(runner)


def register(name: str) -> None:
    """Registers the backend by this name."""
    try:
        from sglang.srt.arg_groups import choices
        from sglang.srt.layers.attention import attention_registry as registry

        lists = (
            choices.ATTENTION_BACKEND_CHOICES,
            choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES,
        )
        add = registry.register_attention_backend(name)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"{_found_version()} has no registry of attention backends that is known here: {error}"
        ) from error
    add(_new_backend)
    for names in lists:
        if name not in names:
            names.append(name)
