"""This module is flash_attn.bert_padding: it turns padded batches into ragged ones and back, by
torch operations, which autograd can follow."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """Returns the rows `indices` of input [n, ...]."""
    return input[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Returns [first_axis_dim, ...] with values [n, ...] in the rows `indices` and 0 elsewhere."""
    zeros = values.new_zeros((first_axis_dim, *values.shape[1:]))
    return zeros.index_copy(0, indices.long(), values)


def index_first_axis_residual(input: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (the rows `indices` of input, input)."""
    return input[indices], input


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Returns a ragged batch of the tokens that the masks choose.

    hidden_states   [batch, seqlen, ...]
    attention_mask  [batch, seqlen], bool or integers: 1 where there is a token
    unused_mask     [batch, seqlen]: 1 where there is room for one, which is kept but not counted

    Returns (tokens [total, ...], their indices in the flat batch, cu_seqlens int32 [batch + 1],
    the longest length, the lengths without unused ones int32 [batch]).
    """
    chosen = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = chosen.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    return *_ragged(hidden_states, chosen, lengths), used


def unpad_input_for_concatenated_sequences(
    hidden_states: Tensor, attention_mask_in_length: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Returns a ragged batch of rows that hold several sequences each, one after the other.

    hidden_states             [batch, seqlen, ...]
    attention_mask_in_length  [batch, seqlen]: the lengths of the sequences of each row, in order;
                              0 stands for none

    Returns (tokens [total, ...], their indices in the flat batch, cu_seqlens int32 [sequences + 1],
    the longest length).
    """
    total = attention_mask_in_length.sum(dim=-1, keepdim=True)
    place = torch.arange(attention_mask_in_length.shape[-1], device=total.device)
    lengths = attention_mask_in_length[attention_mask_in_length != 0]
    return _ragged(hidden_states, place < total, lengths)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Returns [batch, seqlen, ...] with tokens [total, ...] at their indices in the flat batch and
    0 elsewhere."""
    flat = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return flat.view(batch, seqlen, *flat.shape[1:])


def _ragged(
    hidden_states: Tensor, chosen: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    indices = chosen.flatten().nonzero().flatten()
    cu_seqlens = pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[indices], indices, cu_seqlens, int(lengths.max())


__all__ = [
    "index_first_axis",
    "index_first_axis_residual",
    "index_put_first_axis",
    "pad_input",
    "unpad_input",
    "unpad_input_for_concatenated_sequences",
]
