"""This module registers the names under which transformers finds the functions of this package.

transformers takes a name that contains "flash" for a kernel of its hub, and loads its functions
when a model asks for the name. While such a name is registered, the function that loads them,
modeling_flash_attention_utils._lazy_imports, is replaced by one that knows this package, and the
method PreTrainedModel.get_correct_attn_implementation by one that refuses such a name to models
that are marked not to support FlashAttention, as transformers does for its own names. Other names
need the public interfaces alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers import modeling_flash_attention_utils as loading

from ..compat import fa2
from ._attention import attention
from ._masks import mask_of

_LOADER = "_lazy_imports"
_CHECK = "get_correct_attn_implementation"
_names: set[str] = set()


def register(name: str) -> None:
    if name in _names:
        return
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"name is {name!r}: it may have letters, digits, '_', '-' and '.' only")
    if name == "eager" or name in AttentionInterface() or name in AttentionMaskInterface():
        raise ValueError(f"name is {name!r}, which transformers knows already: choose another")
    if "flash" in name:
        _replace(name)
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask_of)
    _names.add(name)


def unregister(name: str) -> None:
    if name not in _names:
        return
    _names.remove(name)
    for interface in (AttentionInterface, AttentionMaskInterface):
        interface._global_mapping.pop(name, None)
    if loading._loaded_implementation == name:
        loading._loaded_implementation = None
    if not any("flash" in other for other in _names):
        for owner, function in ((loading, _LOADER), (PreTrainedModel, _CHECK)):
            original = getattr(getattr(owner, function, None), "original", None)
            if original is not None:
                setattr(owner, function, original)


def _replace(name: str) -> None:
    """Replaces the functions of transformers that decide about names with "flash"."""
    loader, check = getattr(loading, _LOADER, None), getattr(PreTrainedModel, _CHECK, None)
    if loader is None or check is None:
        raise NotImplementedError(
            f"name is {name!r}: this release of transformers loads names that contain 'flash' in a "
            "way that flashattn.hf does not know; register another name, 'libfa' for one"
        )
    if not hasattr(loader, "original"):
        setattr(loading, _LOADER, _Loader(loader))
        setattr(PreTrainedModel, _CHECK, _refusing(check))


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method `original`, which says whether a model may use the name of an attention,
    with a condition more."""

    def check(model: PreTrainedModel, name: str | None, *args: Any, **kwargs: Any) -> Any:
        if name in _names and "flash" in name and not model._supports_flash_attn:
            raise NotImplementedError(
                f"{type(model).__name__} is marked not to support FlashAttention in transformers "
                f"(_supports_flash_attn is False), and the name {name!r} contains 'flash': "
                "register another name, 'libfa' for one"
            )
        return original(model, name, *args, **kwargs)

    check.original = original  # type: ignore[attr-defined]
    return check


class _Loader:
    """Returns FlashAttention-2's functions for the names of this package, and asks `original` for
    all others."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original

    def __call__(self, implementation: str | None, *args: Any, **kwargs: Any) -> Any:
        if implementation not in _names:
            return self.original(implementation, *args, **kwargs)
        return (
            fa2.flash_attn_func,
            fa2.flash_attn_varlen_func,
            fa2.flash_attn_with_kvcache,
            loading._pad_input,
            loading._unpad_input,
        )
