"""This module makes the arrays of a call those that the library's handlers take: masks of all axes,
bits in place of bool, sinks of float32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._problem import Problem
from .call import OPERANDS

_WORD_BITS = 32


def given_arrays(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the arrays of a call by name, in the order of OPERANDS. Numbers and lists among them
    become arrays."""
    found = {}
    for name in OPERANDS:
        if options[name] is not None:
            dtype = np.float32 if isinstance(options[name], (int, float)) else None
            found[name] = _array(name, options[name], dtype)
    return found


def _array(name: str, value: Any, dtype: Any) -> Any:
    try:
        return jnp.asarray(value, dtype)
    except TypeError as error:
        raise TypeError(f"{name} is of type {type(value).__name__}: not an array") from error


def _varying_alike(arrays: dict[str, Any]) -> dict[str, Any]:
    """Returns arrays that vary along the same axes of a mesh, as jax.shard_map counts them: those
    along which any of them does."""
    varying = {name: jax.typeof(array).mat.varying for name, array in arrays.items()}
    union = frozenset().union(*varying.values())
    return {
        name: jax.lax.pcast(array, tuple(union - varying[name]), to="varying")
        if union - varying[name]
        else array
        for name, array in arrays.items()
    }


def prepared(arrays: dict[str, Any], problem: Problem) -> dict[str, Any]:
    """Returns the operands that the caller's arrays become. problem is that of these arrays."""
    ready = dict(arrays)
    if "sinks" in ready:
        ready["sinks"] = ready["sinks"].astype(jnp.float32)
    if "page_table" in ready and ready["page_table"].ndim == 2 and "page_rows" not in ready:
        for name in ("page_table", "v_page_table"):  # whose row b is that of sequence b
            if name in ready:
                ready[name] = ready[name][: problem.args.batch]
    if "attn_mask" in ready:
        _prepare_mask(ready, problem)
    if "mask_bits" in ready:
        ready["mask_bits"] = _whole_rank(ready["mask_bits"], problem)
    return _varying_alike({name: ready[name] for name in OPERANDS if name in ready})


def _prepare_mask(ready: dict[str, Any], problem: Problem) -> None:
    """Replaces a mask of bool by bits. One column for several keys becomes as many."""
    mask = ready.pop("attn_mask")
    n_keys = problem.mask_columns
    mask = _whole_rank(mask, problem)
    mask = jnp.broadcast_to(mask, (*mask.shape[:-1], n_keys))
    if mask.dtype == jnp.bool_:
        ready["mask_bits"] = _packed(mask)
    else:
        ready["attn_mask"] = mask


def _whole_rank(mask: Any, problem: Problem) -> Any:
    """Returns a mask with all axes, [batch, n_heads, seqlen_q, columns], or without the batch where
    queries are ragged."""
    missing = (3 if problem.ragged_q else 4) - mask.ndim
    return mask.reshape((1,) * missing + mask.shape)


def _packed(mask: Any) -> Any:
    """Returns words of bits [..., ceil(n_keys / 32)], key 0 in the lowest one. Keys that the mask
    does not cover are visible."""
    rest = -mask.shape[-1] % _WORD_BITS
    whole = jnp.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, rest)], constant_values=True)
    n_words = whole.shape[-1] // _WORD_BITS
    words = whole.reshape(*mask.shape[:-1], n_words, _WORD_BITS).astype(jnp.uint32)
    return (words << jnp.arange(_WORD_BITS, dtype=jnp.uint32)).sum(-1, dtype=jnp.uint32)
