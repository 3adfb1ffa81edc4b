"""This module makes the mask of a model, once for all of its layers, in the form that attention()
takes.

The causal mask and the window are not part of it: attention() has them as arguments. What is left
is which tokens are padding, how much of a static cache is filled, where packed sequences begin, and
how long chunks are. A mask that is more than that becomes a 4-D one, attn_mask of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import getclosurevars
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import masking_utils

from ._packing import SequenceIds
from ._padding import ChunkMask, KeyMask


def mask_of(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Tensor | None:
    """Makes a model's mask, as a mask function of transformers' AttentionMaskInterface.

    q_length, kv_length   numbers of queries and of keys that attention() will get
    q_offset, kv_offset   positions of the first of them
    mask_function         the pattern, as transformers' masking_utils composes it
    attention_mask        [batch, seqlen]: which positions from 0 on are tokens
    use_vmap              the pattern has parts that do not come from transformers

    Returns None where attention() needs no mask, a KeyMask, a ChunkMask, SequenceIds, or for other
    patterns a bool mask [batch, 1, q_length, kv_length].
    """
    if isinstance(attention_mask, KeyMask):
        return attention_mask  # generate() makes the mask of a static cache before the model does
    pattern = None if use_vmap else _Pattern.of(mask_function)
    n_keys = kv_length
    if pattern is not None and pattern.is_causal:
        n_keys = int(q_offset) + q_length - kv_offset
    if pattern is not None and n_keys <= kv_length:
        has_chunks = kv_offset + n_keys > pattern.chunk
        if pattern.sequence_ids is not None:
            if attention_mask is None and not has_chunks:
                return pattern.sequence_ids.as_subclass(SequenceIds)
        elif attention_mask is None and not has_chunks and n_keys == kv_length:
            return None
        else:
            tokens = _tokens(attention_mask, batch_size, kv_offset, n_keys, device)
            if not has_chunks:
                return None if n_keys == kv_length and tokens.all() else tokens.as_subclass(KeyMask)
            chunks = _chunk_mask(tokens, pattern, q_length, kv_offset)
            if chunks is not None:
                return chunks
    return masking_utils.sdpa_mask(
        batch_size,
        q_length,
        kv_length,
        q_offset,
        kv_offset,
        mask_function,
        attention_mask,
        allow_is_causal_skip=False,
        use_vmap=use_vmap,
        device=device,
    )


def _tokens(
    attention_mask: Tensor | None,
    batch_size: int,
    kv_offset: int,
    n_keys: int,
    device: torch.device | str,
) -> Tensor:
    """Returns bool [batch, n_keys]: which keys are tokens."""
    if attention_mask is None:
        return torch.ones((batch_size, n_keys), dtype=torch.bool, device=device)
    missing = kv_offset + n_keys - attention_mask.shape[1]
    return pad(attention_mask, (0, max(missing, 0)))[:, kv_offset : kv_offset + n_keys]


def _chunk_mask(
    tokens: Tensor, pattern: _Pattern, q_length: int, kv_offset: int
) -> ChunkMask | None:
    """Returns the mask of the last q_length tokens as queries; None where it would not be that of
    the pattern.

    A cache drops keys in the middle of a chunk. The rest of that chunk is left out here, so that a
    chunk begins with the first key.
    """
    if not pattern.is_causal:
        return None
    n_keys = tokens.shape[1]
    first = pattern.left_padding - kv_offset
    rest = torch.where(first < 0, first % pattern.chunk, 0)
    if (rest > n_keys - q_length).any():
        return None  # a query sees the rest
    places = torch.arange(n_keys, device=tokens.device)
    found = ChunkMask.of(tokens.bool() & (places >= rest[:, None]), pattern.chunk)
    return None if found.padding.has_gaps else found


class _Pattern:
    """Holds what a mask function of transformers consists of.

    is_causal      keys after a query are masked
    chunk          queries see the keys of their chunk, of so many positions, alone
    left_padding   [batch]: the position at which the first chunk of a sequence begins
    sequence_ids   [batch, seqlen]: queries see the keys of the same id
    """

    def __init__(self) -> None:
        self.is_causal = False
        self.chunk: int | float = float("inf")
        self.left_padding: Tensor | None = None
        self.sequence_ids: Tensor | None = None

    @classmethod
    def of(cls, mask_function: Callable[..., Any]) -> _Pattern | None:
        """Returns the pattern of a mask function; None where a part of it is not known here."""
        pattern = cls()
        is_remapped = False
        for part, maker, variables in _parts(mask_function):
            if part is masking_utils.causal_mask_function:
                pattern.is_causal = True
            elif maker == "chunked_overlay":
                pattern.chunk = variables["chunk_size"]
                pattern.left_padding = variables["left_padding"]
            elif maker == "packed_sequence_mask_function":
                pattern.sequence_ids = variables["packed_sequence_mask"]
            elif maker == "remap_positions_for_packed_sequence":
                is_remapped = True
            elif part is not masking_utils.bidirectional_mask_function and maker not in _WINDOWS:
                return None
        # An id that does not come from positions may recur after others, but SequenceIds do not.
        return pattern if is_remapped == (pattern.sequence_ids is not None) else None


_WINDOWS = ("sliding_window_overlay", "sliding_window_bidirectional_overlay")


def _parts(function: Callable[..., Any]) -> Iterator[tuple[Callable[..., Any], str, dict]]:
    """Returns the functions whose intersection a mask function is, each with the name of the
    function of masking_utils that made it, and with its variables."""
    is_known = getattr(function, "__module__", None) == masking_utils.__name__
    maker = function.__qualname__.partition(".")[0] if is_known else ""
    variables = dict(getclosurevars(function).nonlocals) if is_known else {}
    if maker == "and_masks":
        for part in variables["mask_functions"]:
            yield from _parts(part)
        return
    yield function, maker, variables
    if maker == "remap_positions_for_packed_sequence":
        yield from _parts(variables["mask_function"])
