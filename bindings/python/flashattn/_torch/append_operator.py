"""This module registers the operator flashattn::kv_append, which writes to its arguments k_cache,
v_cache, seqused_k_out and q_out, and returns nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import derivatives, direct
from .append import append
from .arguments import pages_of, queries_of, scales_of
from .registration import LIBRARY, TAGS, note_written
from .schemas import PAGES, names_of, tensors_of

_TOKENS = "Tensor k_new, Tensor? v_new, Tensor(a!) k_cache, Tensor(b!)? v_cache"
# The other arguments, in groups: see arguments.py.
_PLACES = "Tensor? seqused_k=None, Tensor(c!)? seqused_k_out=None, Tensor? slot_mapping=None"
_SCALES = "Tensor? k_descale=None, Tensor? v_descale=None"
_QUERIES = "Tensor? q=None, Tensor(d!)? q_out=None, Tensor? cu_seqlens_q=None"
_ROTARY = (
    "Tensor? rotary_cos=None, Tensor? rotary_sin=None, bool rotary_interleaved=False, "
    "Tensor? rotary_positions=None, Tensor? rotary_start=None, bool rotary_q_at_start=False"
)
ARGUMENTS = (
    f"{_TOKENS}, {_PLACES}, Tensor? cu_seqlens_new=None, {PAGES}, {_SCALES}, {_QUERIES}, {_ROTARY}"
)
LIBRARY.define(f"kv_append({ARGUMENTS}) -> ()", tags=TAGS)
OPERATOR = torch.ops.flashattn.kv_append.default
_NAMES = names_of(ARGUMENTS)
TENSORS = tensors_of(ARGUMENTS)
_DEFAULTS = tuple(argument.default_value for argument in OPERATOR._schema.arguments[4:])
_AT_Q = _NAMES.index("q")


def kv_append(
    k_new: Tensor, v_new: Tensor | None, k_cache: Tensor, v_cache: Tensor | None, *options: Any
) -> None:
    """Calls append() with an operator's arguments, of which torch leaves out the last ones that
    have their defaults. q needs q_out, which may be q."""
    options += _DEFAULTS[len(options) :]
    places, cu_seqlens_new, pages, scales = options[:3], options[3], options[4:8], options[8:10]
    queries, rotary = options[10:13], options[13:]
    q, q_out, _ = queries
    if q is not None and q_out is None:
        raise ValueError("q is given without q_out: it may be q")
    append(
        k_new,
        v_new,
        k_cache,
        v_cache,
        cu_seqlens_new,
        places,
        pages_of(*pages),
        scales_of(*scales),
        queries_of(*queries),
        None if rotary[0] is rotary[1] is None else rotary,
    )
    note_written(k_cache, v_cache, places[1], q_out)


def _without_data(*arguments: Any) -> None:
    derivatives.refuse(_NAMES, arguments)


def _underived(keys: torch._C.DispatchKeySet, *arguments: Any) -> None:
    """Runs before the kernel where torch would record derivatives: see registration.py."""
    if direct.is_possible_with(*arguments[:4], *arguments[_AT_Q : _AT_Q + 2]):
        return kv_append(*arguments)  # which refuses gradients too
    derivatives.refuse(_NAMES, arguments)
    return OPERATOR.redispatch(keys & torch._C._after_autograd_keyset, *arguments)


for _key in ("CPU", "CUDA"):
    LIBRARY.impl("kv_append", kv_append, _key)
LIBRARY.impl("kv_append", _underived, "Autograd", with_keyset=True)
torch.library.register_fake("flashattn::kv_append", _without_data, lib=LIBRARY)
