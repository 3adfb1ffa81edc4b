"""This module registers the names under which transformers finds the functions of this package.

transformers takes a name that contains "flash" for a kernel of its hub, and loads its functions
when a model asks for the name. While such a name is registered, the function that loads them,
modeling_flash_attention_utils._lazy_imports, is replaced by one that knows this package. While any
name is registered, the method PreTrainedModel.get_correct_attn_implementation is replaced by one
that refuses the names to models that are marked not to support what they need, as transformers does
for its own names.
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
    _replace_check(name)
    if "flash" in name:
        _replace_loader(name)
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask_of)
    _names.add(name)


def names() -> frozenset[str]:
    """Returns the names that are registered."""
    return frozenset(_names)


def unregister(name: str) -> None:
    if name not in _names:
        return
    _names.remove(name)
    for interface in (AttentionInterface, AttentionMaskInterface):
        interface._global_mapping.pop(name, None)
    if loading._loaded_implementation == name:
        loading._loaded_implementation = None
    if not any("flash" in other for other in _names):
        _restore(loading, _LOADER)
    if not _names:
        _restore(PreTrainedModel, _CHECK)


def _restore(owner: Any, function: str) -> None:
    original = getattr(getattr(owner, function, None), "original", None)
    if original is not None:
        setattr(owner, function, original)


def _replace_loader(name: str) -> None:
    loader = getattr(loading, _LOADER, None)
    if loader is None:
        raise NotImplementedError(
            f"name is {name!r}: this release of transformers loads names that contain 'flash' in a "
            "way that flashattn.hf does not know; register another name, 'libfa' for one"
        )
    if not hasattr(loader, "original"):
        setattr(loading, _LOADER, _Loader(loader))


def _replace_check(name: str) -> None:
    check = getattr(PreTrainedModel, _CHECK, None)
    if check is None:
        raise NotImplementedError(
            f"name is {name!r}: this release of transformers checks what a model supports in a way "
            "that flashattn.hf does not know"
        )
    if not hasattr(check, "original"):
        setattr(PreTrainedModel, _CHECK, _refusing(check))


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method `original`, which says whether a model may use the name of an attention,
    with the condition for names of this package."""

    def check(model: PreTrainedModel, name: str | None, *args: Any, **kwargs: Any) -> Any:
        if name in _names:
            _refuse_what_is_marked(model, name)
        return original(model, name, *args, **kwargs)

    check.original = original  # type: ignore[attr-defined]
    return check


def _refuse_what_is_marked(model: PreTrainedModel, name: str) -> None:
    """Refuses a name to a model that does not hand its masks over. Without FlashAttention a model
    must support the masks of bool that names without "flash" get, as "sdpa" does."""
    if model._supports_flash_attn:
        if "flash" in name and not model._can_set_attn_implementation():
            raise NotImplementedError(
                f"{type(model).__name__} has classes of its own for FlashAttention, which call the "
                "package flash-attn: use another attn_implementation"
            )
        return
    marked = f"{type(model).__name__} is marked not to support FlashAttention in transformers"
    if "flash" in name:
        raise NotImplementedError(
            f"{marked} (_supports_flash_attn is False), and the name {name!r} contains 'flash': "
            "register another name, 'libfa' for one"
        )
    if not model._supports_sdpa:
        raise NotImplementedError(
            f"{marked}, nor torch's attention (_supports_flash_attn and _supports_sdpa are False): "
            "use attn_implementation='eager'"
        )


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
