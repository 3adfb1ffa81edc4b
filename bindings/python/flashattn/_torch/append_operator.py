"""This module registers the operator flashattn::kv_append, which writes to its arguments k_cache,
v_cache, seqused_k_out and q_out, and returns nothing."""

from __future__ import annotations

from typing import Any

import torch

from . import derivatives, direct
from .append import append
from .registration import LIBRARY, TAGS, note_written
from .schemas import ARGUMENTS_OF_APPEND, NAMES_OF_APPEND, tensors_of

LIBRARY.define(f"kv_append({ARGUMENTS_OF_APPEND}) -> ()", tags=TAGS)
OPERATOR = torch.ops.flashattn.kv_append.default
TENSORS = tensors_of(ARGUMENTS_OF_APPEND)
_ARGUMENTS = OPERATOR._schema.arguments
_DEFAULTS = tuple(argument.default_value for argument in _ARGUMENTS)
_WRITTEN = [i for i, x in enumerate(_ARGUMENTS) if x.alias_info and x.alias_info.is_write]
_Q, _Q_OUT = map(NAMES_OF_APPEND.index, ("q", "q_out"))


def kv_append(*arguments: Any) -> None:
    """Calls append() with an operator's arguments, of which torch leaves out the last ones that
    have their defaults. q needs q_out, which may be q."""
    call = arguments + _DEFAULTS[len(arguments) :]
    if call[_Q] is not None and call[_Q_OUT] is None:
        raise ValueError("q is given without q_out: it may be q")
    append(call)
    note_written(*[call[i] for i in _WRITTEN])


def _without_data(*arguments: Any) -> None:
    derivatives.refuse(NAMES_OF_APPEND, arguments)


def _underived(keys: torch._C.DispatchKeySet, *arguments: Any) -> None:
    """Runs before the kernel where torch would record derivatives: see registration.py."""
    if direct.is_possible_with(*arguments[:4], *arguments[_Q : _Q_OUT + 1]):
        return kv_append(*arguments)  # which refuses gradients too
    derivatives.refuse(NAMES_OF_APPEND, arguments)
    return OPERATOR.redispatch(keys & torch._C._after_autograd_keyset, *arguments)


for _key in ("CPU", "CUDA"):
    LIBRARY.impl("kv_append", kv_append, _key)
LIBRARY.impl("kv_append", _underived, "Autograd", with_keyset=True)
torch.library.register_fake("flashattn::kv_append", _without_data, lib=LIBRARY)
