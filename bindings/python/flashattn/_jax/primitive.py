"""This module has the primitive flashattn_forward, which becomes a custom call of XLA: on the CPU
and on CUDA devices, each with memory to work in as one more result, which only XLA sees."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from .. import _abi
from .._library import library
from ..config import Arch, kernels
from .call import Call, workspace_bytes

TARGET = "flashattn_forward"
DEVICES = {"cpu": _abi.FLASH_DEVICE_CPU, "cuda": _abi.FLASH_DEVICE_CUDA_CURRENT}

forward_p = Primitive(TARGET)
forward_p.multiple_results = True


def bind(*arrays: Any, call: Call) -> list[Any]:
    """Returns [O], or [O, LSE], of a call on one device's arrays."""
    return forward_p.bind(*arrays, call=call)


@lru_cache(maxsize=1024)
def _compiled(call: Call) -> Callable[..., list[Any]]:
    return jax.jit(partial(bind, call=call))


@forward_p.def_impl
def _run(*arrays: Any, call: Call) -> list[Any]:
    with jax.disable_jit(False):  # where a caller disables it, too: there is no other way
        return _compiled(call)(*arrays)


@forward_p.def_abstract_eval
def _results(*avals: ShapedArray, call: Call) -> list[ShapedArray]:
    q, v = avals[0], avals[2]
    dtype = q.dtype if call.out_dtype is None else jax.numpy.dtype(call.out_dtype)
    *batch, seqlen, n_heads, _ = q.shape
    *of_batch, _, of_heads, _ = q.sharding.spec
    o = _like(
        q,
        (*batch, seqlen, n_heads, call.keys.width_of_v(v.shape[-1])),
        dtype,
        (*of_batch, None, of_heads, None),
    )
    if not call.return_lse:
        return [o]
    shape, spec = (*batch, n_heads, seqlen), (*of_batch, of_heads, None)
    return [o, _like(q, shape, np.dtype(np.float32), spec)]


def _like(q: ShapedArray, shape: tuple[int, ...], dtype: Any, spec: tuple[Any, ...]) -> ShapedArray:
    """Returns the type of a result, whose batch and heads are where those of q are."""
    sharding = NamedSharding(q.sharding.mesh, PartitionSpec(*spec))
    return q.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)


def _lower(ctx: Any, *operands: Any, call: Call, device: int) -> Any:
    problem = call.problem(ctx.avals_in)
    size = workspace_bytes(problem, device)
    workspace = ShapedArray((size,), np.dtype(np.uint8))
    attributes = call.attributes(problem)
    ctx = ctx.replace(avals_out=[*ctx.avals_out, workspace])
    return jax.ffi.ffi_lowering(TARGET)(ctx, *operands, **attributes)[:-1]


def register_handlers(target: str, on_cpu: Any, on_cuda: Any) -> None:
    """Registers the library's handlers of a custom call, functions of ctypes: that of CUDA devices
    where the library has kernels for them."""
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(on_cpu), platform="cpu")
    if any(kernel.config.arch >= Arch.SM80 for kernel in kernels()):
        # Kernels are loaded before XLA records a command buffer, in which they cannot be.
        handler = jax.ffi.pycapsule(on_cuda)
        stages = {"initialize": handler, "execute": handler}
        jax.ffi.register_ffi_target(target, stages, platform="CUDA")


def _register() -> None:
    for platform, device in DEVICES.items():
        mlir.register_lowering(forward_p, partial(_lower, device=device), platform=platform)
    register_handlers(TARGET, library().flash_xla_forward_cpu, library().flash_xla_forward_cuda)


_register()
