"""This package computes the attention of vLLM by libflashattn, as an attention backend of vLLM's
own registry. vLLM finds register() by an entry point of the wheel, in each of its processes.

    FLASHATTN_VLLM=1 vllm serve MODEL                  on the CPU
    vllm serve MODEL --attention-backend CUSTOM        on a GPU

On the CPU vLLM has one backend, which takes the place of what was asked for: there the variable
says whether this one replaces it. docs/guides/vllm.md says which models are served, and what is
refused. Importing this package imports neither torch nor vLLM.
"""

from __future__ import annotations

import os
import warnings

VARIABLE = "FLASHATTN_VLLM"
BACKEND = "flashattn.vllm._backend.FlashAttnBackend"
MLA_BACKEND = "flashattn.vllm._mla_backend.FlashAttnMLABackend"
MLA_PREFILL = "flashattn.vllm._mla_prefill.FlashAttnMLAPrefill"
CUSTOM = "flashattn.vllm._custom.Backend"  # the one of these that a layer needs


def is_wanted_on_cpu() -> bool:
    """Says whether FLASHATTN_VLLM is 1. Raises ValueError unless it is 0 or 1, or not set."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE} is {value!r}: not 0 or 1")
    return value == "1"


def register() -> None:
    """Puts the backends into vLLM's registries: on the CPU in the place of vLLM's own where
    FLASHATTN_VLLM is 1, on CUDA devices as CUSTOM. Elsewhere, and in a second call, it changes
    nothing.

    vLLM calls this wherever the wheel is installed, and an exception ends vLLM. So a vLLM whose
    registry or backends are not known here gets a warning that says why, and raises ImportError
    only where FLASHATTN_VLLM is 1. Raises ValueError for another value of FLASHATTN_VLLM.
    """
    from . import _registry

    wanted = is_wanted_on_cpu()
    try:
        _registry.register(wanted)
    except ImportError as error:
        if wanted:
            raise
        warnings.warn(f"flashattn is not a backend here: {error}", RuntimeWarning, stacklevel=2)
