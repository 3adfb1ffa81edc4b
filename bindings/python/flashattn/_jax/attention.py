"""This module puts a call together: the primitive, what it is when devices share it, when it is
mapped, and what its gradients are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from .batching import batched
from .call import Call
from .gradient import WITHOUT_GRADIENT, check_call, gradients, not_differentiated
from .partition import partitioned


@lru_cache(maxsize=1024)
def attention(call: Call) -> Callable[..., list[Any]]:
    """Returns the function of a call's arrays, [O] or [O, LSE]."""
    attend = jax.custom_vjp(_mappable(call))

    def forward(*arrays: Any) -> tuple[list[Any], Any]:
        check_call(call, arrays[1])
        o, lse = not_differentiated(_mappable(call._replace(return_lse=True)))(*arrays)
        return [o, lse] if call.return_lse else [o], (arrays, o, lse)

    def backward(saved: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
        arrays, o, lse = saved
        return _cotangents(call, arrays, gradients(call)(*arrays, o, lse, *cotangents))

    attend.defvjp(forward, backward)
    refusing = [WITHOUT_GRADIENT.get(name, _itself) for name in call.operands]
    return lambda *arrays: attend(*(refuse(x) for refuse, x in zip(refusing, arrays)))


def _itself(array: Any) -> Any:
    return array


@lru_cache(maxsize=1024)
def _mappable(call: Call) -> Callable[..., list[Any]]:
    mappable = custom_vmap(partitioned(call))

    @mappable.def_vmap
    def _(size: int, mapped: list[bool], *arrays: Any) -> tuple[list[Any], list[bool]]:
        results = batched(mappable, call, size, mapped, arrays)
        return results, [True] * len(results)

    return mappable


def _cotangents(call: Call, arrays: Sequence[Any], found: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the gradient of each array: zeros of arrays that have none."""
    dq, dk, dv, *d_sinks = found
    if call.keys.v_is_k:  # the array of v is that of k, of which V is the first columns
        rest = arrays[2].shape[-1] - dv.shape[-1]
        dv = jnp.pad(dv, [(0, 0)] * (dv.ndim - 1) + [(0, rest)])
    named = {"q": dq, "k": dk, "v": dv, **({"sinks": d_sinks[0]} if d_sinks else {})}
    return tuple(
        named[name] if name in named else _zeros(array)
        for name, array in zip(call.operands, arrays)
    )


def _zeros(array: Any) -> Any:
    if jnp.issubdtype(array.dtype, jnp.inexact):
        return jnp.zeros_like(array)
    return np.zeros(array.shape, jax.dtypes.float0)
