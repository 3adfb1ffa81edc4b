"""This module puts a call together: the primitive, what it is when devices share it, when it is
mapped, and what becomes of its derivative."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn

import jax
from jax.custom_batching import custom_vmap

from .batching import batched
from .call import Call
from .partition import partitioned


@lru_cache(maxsize=1024)
def attention(call: Call) -> Callable[..., list[Any]]:
    """Returns the function of a call's arrays, [O] or [O, LSE]."""
    mappable = custom_vmap(partitioned(call))

    @mappable.def_vmap
    def _(size: int, mapped: list[bool], *arrays: Any) -> tuple[list[Any], list[bool]]:
        results = batched(mappable, call, size, mapped, arrays)
        return results, [True] * len(results)

    attend = jax.custom_jvp(mappable)
    attend.defjvp(_refuse)
    return attend


def _refuse(arrays: Any, tangents: Any) -> NoReturn:
    raise NotImplementedError(
        "flashattn.jax.flash_attention has no derivative: the library has no backward pass. Use "
        "jax.lax.stop_gradient on its arguments, or another attention where gradients are needed"
    )
