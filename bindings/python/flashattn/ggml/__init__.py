"""llama.cpp computes its attention by this library, in a ggml that stays as it is: a plug-in enters
ggml's CPU backend, and takes the flash attention operation.

    python -m flashattn ggml install        # once for each version of llama-cpp-python

    import flashattn.ggml
    import llama_cpp

    flashattn.ggml.enable()                 # before the first model is loaded
    model = llama_cpp.Llama("model.gguf", flash_attn=True)

Without flash_attn=True llama-cpp-python computes attention without that operation, and the plug-in
sees none of it. llama.cpp's own programs load a plug-in that the environment variable
GGML_BACKEND_PATH names; install() returns its path.
"""

from __future__ import annotations

from ._install import install
from ._load import Counts, counts, enable

__all__ = ["Counts", "counts", "enable", "install"]
