"""This package computes the attention of Hugging Face transformers by libflashattn.

    import flashattn.hf
    from transformers import AutoModelForCausalLM

    flashattn.hf.register()
    model = AutoModelForCausalLM.from_pretrained(PATH, attn_implementation="flashattn")

It serves inference and training. docs/transformers.md says which masks, caches and models are
served, and what is refused. register() imports torch and transformers; importing this package does
not.
"""

from __future__ import annotations

DEFAULT_NAME = "flashattn"


def register(name: str = DEFAULT_NAME) -> None:
    """Lets models be loaded with attn_implementation=name, and switched by
    model.set_attn_implementation(name). A second call with the same name changes nothing.

    name   letters, digits, "_", "-" and ".". Continuous batching needs one that contains "flash"

    Raises ValueError for a name that is taken or has other characters, ImportError without torch or
    transformers, and NotImplementedError for a name with "flash" where this release of transformers
    loads such names in a way that is not known here.
    """
    from . import _registry

    _registry.register(name)


def unregister(name: str = DEFAULT_NAME) -> None:
    """Undoes register(name). Models that use the name must be switched to another one first. Does
    nothing where the name is not registered."""
    from . import _registry

    _registry.unregister(name)


__all__ = ["register", "unregister"]
