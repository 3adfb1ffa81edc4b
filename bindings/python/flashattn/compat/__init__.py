"""This package has the functions of flash-attn with their own signatures, computed by libflashattn.

    from flashattn.compat.fa2 import flash_attn_func        # FlashAttention-2: package flash_attn
    from flashattn.compat.fa3 import flash_attn_func        # FlashAttention-3: flash_attn_interface

A program that imports flash_attn or flash_attn_interface itself runs unchanged after install():

    import flashattn.compat
    flashattn.compat.install()
    from flash_attn import flash_attn_func

The functions take torch tensors, on CPUs and CUDA devices. What the library cannot compute is
refused by NotImplementedError with the name of the argument; docs/compat.md lists it.
"""

from __future__ import annotations

from ._finder import install, uninstall

__all__ = ["install", "uninstall"]
