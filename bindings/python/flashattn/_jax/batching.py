"""This module says what a call is under jax.vmap: one call of a larger batch, or, where the batch
has no axis of its own, a loop of XLA's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .axes import BATCH, Axes, axes_of
from .call import Call

# These can have a batch of their own, where one for all is given.
_MAY_GROW = ("k_descale", "v_descale", "q_descale", "alibi_slopes", "attn_mask", "mask_bits")


def batched(
    attend: Callable[..., list[Any]], call: Call, size: int, mapped: Sequence[bool], arrays: Any
) -> list[Any]:
    """Returns the results of `size` calls, along a first axis that the mapped arrays have too."""
    axes = axes_of(call, firsts(mapped, arrays))
    if not is_one_call(call.operands, axes, mapped):
        return looped(attend, mapped, arrays)
    results = attend(*grown(call.operands, axes, size, mapped, arrays))
    return [result.reshape(size, axes.batch, *result.shape[1:]) for result in results]


def firsts(mapped: Sequence[bool], arrays: Any) -> list[Any]:
    """Returns the arrays of the first call, as far as their shapes and types go."""
    return [
        jax.ShapeDtypeStruct(array.shape[1:], array.dtype) if is_mapped else array
        for array, is_mapped in zip(arrays, mapped)
    ]


def is_one_call(operands: Sequence[str], axes: Axes, mapped: Sequence[bool]) -> bool:
    """Says whether each mapped array has a batch, or may have one."""
    return axes.batch is not None and all(
        not is_mapped or BATCH in names or name in _MAY_GROW
        for is_mapped, names, name in zip(mapped, axes.operands, operands)
    )


def grown(
    operands: Sequence[str], axes: Axes, size: int, mapped: Sequence[bool], arrays: Any
) -> list[Any]:
    """Returns the arrays of one call whose batch is that of all calls."""
    return [
        _grow(array, is_mapped, names, name, size, axes)
        for array, is_mapped, names, name in zip(arrays, mapped, axes.operands, operands)
    ]


def _grow(
    array: Any,
    is_mapped: bool,
    names: Sequence[str | None],
    name: str,
    size: int,
    axes: Axes,
) -> Any:
    """Returns an array whose batch is that of all calls."""
    if BATCH not in names and not is_mapped:
        return array
    if BATCH not in names:
        array = _with_batch(array, name, size, axes)
    elif not is_mapped:
        array = jnp.broadcast_to(array, (size, *array.shape))
    return array.reshape(size * axes.batch, *array.shape[2:])


def _with_batch(array: Any, name: str, size: int, axes: Axes) -> Any:
    """Returns a mapped array with the axis of the batch that it lacks."""
    if name in ("attn_mask", "mask_bits"):  # its batch has the length 1
        return jnp.broadcast_to(array, (size, axes.batch, *array.shape[2:]))
    rest = (axes.n_heads,) if name == "alibi_slopes" else (axes.n_heads_kv,)
    spread = array.reshape(size, 1, *(array.shape[1:] or (1,)))
    return jnp.broadcast_to(spread, (size, axes.batch, *rest))


def looped(attend: Callable[..., list[Any]], mapped: Sequence[bool], arrays: Any) -> list[Any]:
    """Returns the results of calls one after the other, in a loop of XLA's."""

    def step(own: list[Any]) -> list[Any]:
        waiting = iter(own)
        return attend(
            *(next(waiting) if is_mapped else array for array, is_mapped in zip(arrays, mapped))
        )

    return jax.lax.map(step, [array for array, is_mapped in zip(arrays, mapped) if is_mapped])
