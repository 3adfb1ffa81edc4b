"""This module passes what joins scaled scores: slopes of ALiBi, and a mask, as the C API's
alibi_slopes and flash_mask_t. It checks what the C API cannot see."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

import numpy as np

from . import _abi, _numbers, _tensor
from ._block_mask import BlockMask
from ._stream import is_torch
from ._tensor import View

_WORD_BITS = 32
_WORDS = ("uint32", "int32")


class Sizes(NamedTuple):
    """Holds the sizes of a call's scores."""

    batch: int
    n_heads: int
    queries: int  # of each sequence; with ragged queries all of them
    keys: int | None  # of each sequence; None: they differ
    ragged: bool  # queries
    longest: int = 0  # a bound on the queries of each sequence

    @property
    def rows(self) -> tuple[int, ...]:
        """Gives what a mask's axes but the last one broadcast to."""
        heads_and_queries = (self.n_heads, self.queries)
        return heads_and_queries if self.ragged else (self.batch, *heads_and_queries)


def slopes_view(array: Any, sizes: Sizes, stream: int) -> View:
    """Returns a view of alibi_slopes, [n_heads] or [batch, n_heads] of float32."""
    found = _tensor.view(array, "alibi_slopes", stream)
    if found.dtype != "float32":
        raise ValueError(f"alibi_slopes is {found.dtype}, not float32")
    shapes = ((sizes.n_heads,), (sizes.batch, sizes.n_heads))
    if found.shape not in shapes:
        raise ValueError(f"alibi_slopes has shape {found.shape}, not {shapes[0]} or {shapes[1]}")
    if sizes.n_heads > 1 and 0 not in found.shape and found.strides[-1] != 1:
        raise ValueError(
            f"alibi_slopes has a stride of {found.strides[-1]} elements from head to head, not 1"
        )
    return found


def _factors_view(array: Any, n_heads: int, stream: int) -> View:
    """Returns a view of mask_head_scale, [n_heads] of float32."""
    found = _tensor.view(array, "mask_head_scale", stream)
    if found.dtype != "float32":
        raise ValueError(f"mask_head_scale is {found.dtype}, not float32")
    if found.shape != (n_heads,):
        raise ValueError(
            f"mask_head_scale has shape {found.shape}, not ({n_heads},): one per query head"
        )
    if n_heads > 1 and found.strides != (1,):
        raise ValueError(
            f"mask_head_scale has a stride of {found.strides[0]} elements from head to head, not 1"
        )
    return found


class Mask:
    """Holds the mask of one call: `struct` points into the caller's arrays, which the views keep
    alive, or into bits that were packed of a bool array. `arrays` has the views by their names."""

    def __init__(
        self,
        attn_mask: Any,
        mask_bits: Any,
        mask_keys: int | None,
        head_scale: Any,
        sizes: Sizes,
        stream: int,
    ) -> None:
        if attn_mask is not None and mask_bits is not None:
            raise ValueError("attn_mask and mask_bits are given: a call has one mask")
        self._sizes, self._keys = sizes, _numbers.bound("mask_keys", mask_keys)
        if isinstance(attn_mask, BlockMask):
            self._set_blocks(attn_mask, head_scale, stream)
            return
        name = "attn_mask" if mask_bits is None else "mask_bits"
        self.view = _tensor.view(attn_mask if mask_bits is None else mask_bits, name, stream)
        if mask_bits is not None:
            self._check_type("mask_bits", *_WORDS)
            self._fill("mask_bits", _abi.FLASH_MASK_BITS, self._columns_of_bits())
        elif self.view.dtype == "bool":
            n_keys = self._columns(self.view.shape)
            self.view = _tensor.view(_packed(attn_mask, n_keys), name, stream)
            self._fill(name, _abi.FLASH_MASK_BITS, n_keys)
        else:
            self._check_type("attn_mask", *_tensor.DTYPES, "bool")
            self._set_numbers()
        self.arrays = {name: self.view}
        if head_scale is not None:
            self._set_factors(head_scale, stream)

    @property
    def address(self) -> int | None:
        """Gives the address of the struct; None where the mask has no elements, and neither has
        the problem any scores."""
        is_empty = 0 in self.view.shape or self.struct.n_keys == 0
        return None if is_empty else ctypes.addressof(self.struct)

    @property
    def repeats_column(self) -> bool:
        """Says whether one column of numbers stands for several keys."""
        struct = self.struct
        return struct.kind == _abi.FLASH_MASK_ADD and struct.stride_key == 0 and struct.n_keys > 1

    def _check_type(self, name: str, *dtypes: str) -> None:
        if self.view.dtype not in dtypes:
            raise ValueError(f"{name} is {self.view.dtype}: not one of {', '.join(dtypes)}")

    def _columns(self, shape: tuple[int, ...]) -> int:
        """Returns the number of keys that an attn_mask of this shape covers."""
        width = shape[-1] if shape else 0
        wanted = self._keys if self._keys is not None else self._sizes.keys
        if wanted is None or width == wanted:
            return width
        if width != 1:
            what = "mask_keys is" if self._keys is not None else "the number of keys is"
            raise ValueError(f"attn_mask has shape {shape}, and {what} {wanted}")
        return wanted

    def _columns_of_bits(self) -> int:
        shape = self.view.shape
        n_keys = self._keys if self._keys is not None else self._sizes.keys
        if n_keys is None and shape:
            n_keys = shape[-1] * _WORD_BITS
        words = -(-n_keys // _WORD_BITS)
        if not shape or shape[-1] < words:
            raise ValueError(f"mask_bits has shape {shape}: {n_keys} keys are {words} words")
        if shape[-1] > 1 and self.view.strides[-1] != 1:
            raise ValueError(f"mask_bits has a stride of {self.view.strides[-1]} words, not 1")
        return n_keys

    def _set_numbers(self) -> None:
        self._fill("attn_mask", _abi.FLASH_MASK_ADD, self._columns(self.view.shape))
        self.struct.dtype = _tensor.DTYPES[self.view.dtype]
        self.struct.stride_key = self.view.strides[-1]

    def _set_blocks(self, mask: BlockMask, head_scale: Any, stream: int) -> None:
        if head_scale is not None:
            raise ValueError("mask_head_scale is given, and attn_mask has blocks of bits")
        self.view = _tensor.view(mask.blocks, "attn_mask.blocks", stream)
        n_keys = self._keys if self._keys is not None else self._sizes.keys
        self._check_type("attn_mask.blocks", "bool", *_WORDS)
        in_column = 1 if self.view.dtype == "bool" else _WORD_BITS
        shape = self.view.shape
        if n_keys is None and shape:
            n_keys = shape[-1] * in_column * mask.block_k
        self._check_blocks(mask, n_keys, in_column)
        if in_column == 1:
            self.view = _tensor.view(_packed(mask.blocks, shape[-1]), "attn_mask.blocks", stream)
        elif shape[-1] > 1 and self.view.strides[-1] != 1:
            raise ValueError(
                f"attn_mask.blocks has a stride of {self.view.strides[-1]} words, not 1"
            )
        missing = (0,) * (4 - len(shape))
        steps = [0 if n == 1 else step for n, step in zip(shape[:-1], self.view.strides)]
        strides = (*missing, *steps)
        self.struct = _abi.flash_mask_t(
            kind=_abi.FLASH_MASK_BLOCKS,
            flags=_abi.FLASH_MASK_LAST_KEYS if self._keys is not None else 0,
            data=self.view.data,
            stride_batch=strides[0],
            stride_head=strides[1],
            stride_query=strides[2],
            n_keys=n_keys,
            block_q=mask.block_q,
            block_k=mask.block_k,
        )
        self.arrays = {"attn_mask": self.view}

    def _check_blocks(self, mask: BlockMask, n_keys: int, in_column: int) -> None:
        """Raises ValueError unless the view has the blocks of the call's queries, or more, and
        those of n_keys keys, so many in a column."""
        shape, sizes = self.view.shape, self._sizes
        if not 2 <= len(shape) <= 4:
            raise ValueError(f"attn_mask.blocks has shape {shape}: not 2 to 4 axes")
        of_queries, of_keys = -(-sizes.longest // mask.block_q), -(-n_keys // mask.block_k)
        rows = (sizes.batch, sizes.n_heads, max(of_queries, shape[-2]))[4 - len(shape) :]
        columns = -(-of_keys // in_column)
        if any(n not in (1, most) for n, most in zip(shape, rows)) or shape[-1] != columns:
            words = "" if in_column == 1 else f", in {columns} words"
            raise ValueError(
                f"attn_mask.blocks has shape {shape}: {sizes.longest} queries are {of_queries} "
                f"blocks of {mask.block_q}, and {n_keys} keys {of_keys} of {mask.block_k}{words}"
            )

    def _set_factors(self, head_scale: Any, stream: int) -> None:
        if self.struct.kind == _abi.FLASH_MASK_BITS:
            name = next(iter(self.arrays))
            what = "attn_mask is bool" if name == "attn_mask" else "the mask is mask_bits"
            raise ValueError(f"mask_head_scale is given, and {what}: bits are not multiplied")
        found = _factors_view(head_scale, self._sizes.n_heads, stream)
        self.arrays["mask_head_scale"] = found
        self.struct.head_scale = found.data

    def _fill(self, name: str, kind: int, n_keys: int) -> None:
        strides = self._row_strides(name)
        if self._sizes.ragged:
            strides = (0, *strides)
        self.struct = _abi.flash_mask_t(
            kind=kind,
            flags=_abi.FLASH_MASK_LAST_KEYS if self._keys is not None else 0,
            data=self.view.data,
            stride_batch=strides[0],
            stride_head=strides[1],
            stride_query=strides[2],
            n_keys=n_keys,
        )

    def _row_strides(self, name: str) -> tuple[int, ...]:
        """Returns strides of all axes but the last: 0 along those that the mask lacks, or that have
        one element."""
        rows, shape = self._sizes.rows, self.view.shape[:-1]
        missing = len(rows) - len(shape)
        fits = missing >= 0 and all(
            n in (1, most) for n, most in zip(shape, rows[max(missing, 0) :])
        )
        if not fits:
            raise ValueError(
                f"{name} has shape {self.view.shape}: its axes but the last one do not broadcast "
                f"to {rows}"
            )
        return (0,) * missing + tuple(self.view.strides[:-1])


def _packed(mask: Any, n_keys: int) -> Any:
    """Returns words [..., ceil(n_keys / 32)] of a bool mask, key 0 in the lowest bit."""
    if is_torch(mask):
        return _packed_by_torch(mask, n_keys)
    if not isinstance(mask, np.ndarray):
        raise ValueError(
            f"attn_mask is bool, and a {type(mask).__name__} is not packed: pass mask_bits"
        )
    whole = np.broadcast_to(mask, (*mask.shape[:-1], n_keys))
    found = np.packbits(whole, axis=-1, bitorder="little")
    padded = np.zeros((*found.shape[:-1], -(-n_keys // _WORD_BITS) * 4), np.uint8)
    padded[..., : found.shape[-1]] = found
    return padded.view("<u4").astype(np.uint32, copy=False)


def _packed_by_torch(mask: Any, n_keys: int) -> Any:
    torch = sys.modules["torch"]
    n_words = -(-n_keys // _WORD_BITS)
    bits = torch.zeros(
        (*mask.shape[:-1], n_words * _WORD_BITS), dtype=torch.int64, device=mask.device
    )
    bits[..., :n_keys] = mask
    bits = bits.unflatten(-1, (n_words, _WORD_BITS))
    places = torch.arange(_WORD_BITS, dtype=torch.int64, device=mask.device)
    words = (bits << places).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
