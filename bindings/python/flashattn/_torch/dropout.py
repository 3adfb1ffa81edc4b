"""This module passes dropout of attention weights, and draws its state from torch's generators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _numbers
from . import placement, structs
from .arguments import Unsound
from .frame import ForwardFrame

_TYPES = (torch.int64, torch.uint64)
_LEAST, _MOST = -(2**63), 2**63 - 1


def _probability(dropout_p: float) -> float:
    """Raises TypeError for what is no number."""
    is_number = isinstance(dropout_p, (float, int))
    return dropout_p if is_number else _numbers.real("dropout_p", dropout_p)


def is_given(dropout_p: float, rng_state: Tensor | None) -> bool:
    """Says whether a call names a state, which need not be one, or dropout."""
    return rng_state is not None or _probability(dropout_p) != 0


def rng_state_of(dropout_p: float, rng_state: Tensor | None, q: Any) -> Tensor | None:
    """Returns the state of a call: the given one, or if weights are dropped a new one, of torch's
    generator of q's device. A graph that is captured with it draws another one each time, and
    recomputation by torch.utils.checkpoint the same one."""
    if rng_state is not None or not isinstance(q, Tensor):
        return rng_state
    if _probability(dropout_p) == 0:
        return None
    return torch.randint(_LEAST, _MOST, (2,), dtype=torch.int64, device=q.device)


def member(frame: ForwardFrame, last: tuple, index: int) -> int:
    """Packs flash_dropout_t into the frame, and returns its address; 0 for a call that drops
    nothing. last: dropout_p and rng_state, or fewer. Raises Unsound for a state that does not do,
    even if nothing is dropped."""
    dropout_p, rng_state = last or (0, None)
    p = _probability(dropout_p)
    if p == 0 and rng_state is None:
        return 0
    if (
        not isinstance(rng_state, Tensor)
        or rng_state.dtype not in _TYPES
        or rng_state.shape != (2,)
        or not rng_state.is_contiguous()
        or not placement.is_at(rng_state, index)
    ):
        raise Unsound
    if p == 0:
        return 0
    address = rng_state.data_ptr()
    structs.DROPOUT.pack_into(frame.dropout, 0, structs.DROPOUT.size, p, 0, 0, address, address + 8)
    return frame.dropout_address
