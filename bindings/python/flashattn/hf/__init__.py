"""Attention of Hugging Face transformers, computed by libflashattn.

    import flashattn.hf
    from transformers import AutoModelForCausalLM

    flashattn.hf.register()
    model = AutoModelForCausalLM.from_pretrained(PATH, attn_implementation="flashattn")

Inference only: there is no backward pass. docs/transformers.md says which masks, caches and models
are served, and what is refused.
"""

from __future__ import annotations

from ._registry import register, unregister

__all__ = ["register", "unregister"]
