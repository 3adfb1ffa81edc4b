"""This module makes and reads tokens of latent caches, as FLASH_DTYPE_LATENT_E4M3 has them: 656
bytes of 512 columns in e4m3, four scales in float32 for 128 of them each, and 64 columns in
bfloat16.

It serves tests, examples and small caches in CPU memory: it works in numpy and copies. A cache that
grows gets its tokens by flash_kv_append().
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _abi

KV_DTYPE = "latent_e4m3"
COLUMNS = 576  # of K
CODES = 512  # columns of V, in e4m3
TOKEN_BYTES = _abi.FLASH_LATENT_TOKEN_BYTES
_GROUP = 128
_ROTARY_AT = CODES + CODES // _GROUP * 4
_LARGEST = 448.0


def _values() -> np.ndarray:
    """Returns the values of the 256 codes of e4m3, in float64."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, normal)
    magnitude[codes & 0x7F == 0x7F] = np.nan
    return np.where(codes & 0x80, -magnitude, magnitude)


_VALUES = _values()
# A magnitude has the code of how many of these are below it: those between two neighbours.
_MIDDLES = (_VALUES[:126] + _VALUES[1:127]) / 2


def encode(x: Any) -> np.ndarray:
    """Returns tokens [..., 656] in uint8 of numbers [..., 576]. The scale of 128 columns is their
    largest magnitude / 448, or 1 where that is 0 (NaN does not count); elements are rounded to the
    nearest code, the even one of two. That is what flash_kv_append() writes, NaN of bfloat16 aside.
    Raises ValueError for another last axis."""
    x = np.asarray(x).astype(np.float32)
    if x.shape[-1:] != (COLUMNS,):
        raise ValueError(f"x has shape {x.shape}: its last axis must be {COLUMNS}")
    groups = x[..., :CODES].reshape(*x.shape[:-1], CODES // _GROUP, _GROUP)
    scales = np.fmax.reduce(np.abs(groups), axis=-1, initial=0) / np.float32(_LARGEST)
    scales[scales == 0] = 1
    with np.errstate(invalid="ignore"):  # infinity / infinity
        elements = groups / scales[..., None]
    tokens = np.empty((*x.shape[:-1], TOKEN_BYTES), np.uint8)
    tokens[..., :CODES] = _codes(elements).reshape(*x.shape[:-1], CODES)
    tokens[..., CODES:_ROTARY_AT] = np.ascontiguousarray(scales).view(np.uint8)
    tokens[..., _ROTARY_AT:] = _bfloat16(x[..., CODES:]).view(np.uint8)
    return tokens


def decode(tokens: Any) -> np.ndarray:
    """Returns the numbers [..., 576] in float64 of tokens [..., 656], exactly. Raises ValueError
    for another last axis or type."""
    tokens = np.ascontiguousarray(tokens)
    if tokens.dtype != np.uint8 or tokens.shape[-1:] != (TOKEN_BYTES,):
        raise ValueError(
            f"tokens are {tokens.dtype} of shape {tokens.shape}: not uint8 [..., {TOKEN_BYTES}]"
        )
    scales = np.ascontiguousarray(tokens[..., CODES:_ROTARY_AT]).view(np.float32)
    halves = np.ascontiguousarray(tokens[..., _ROTARY_AT:]).view(np.uint16)
    x = np.empty((*tokens.shape[:-1], COLUMNS))
    with np.errstate(invalid="ignore"):
        x[..., :CODES] = _VALUES[tokens[..., :CODES]] * np.repeat(scales, _GROUP, axis=-1)
        x[..., CODES:] = (halves.astype(np.uint32) << 16).view(np.float32)
    return x


def _codes(x: np.ndarray) -> np.ndarray:
    """Returns the codes of numbers; what is further than 448 from 0 becomes 448 or -448."""
    magnitude = np.abs(x.astype(np.float64))
    low = np.searchsorted(_MIDDLES, magnitude, side="left")
    high = np.searchsorted(_MIDDLES, magnitude, side="right")
    code = np.where(low % 2 == 0, low, high)  # they differ in the middle of two codes
    code = np.where(np.isnan(x), 0x7F, code | np.where(np.signbit(x), 0x80, 0))
    return code.astype(np.uint8)


def _bfloat16(x: np.ndarray) -> np.ndarray:
    """Returns the bits of numbers rounded to bfloat16, the even ones of two."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + (bits >> 16 & 1)
    return (np.where(np.isnan(x), bits | 0x400000, rounded) >> 16).astype(np.uint16)
