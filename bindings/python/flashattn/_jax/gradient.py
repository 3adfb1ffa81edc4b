"""This module has the gradients of a call: the primitive flashattn_backward, a custom call of XLA,
and how it is divided among devices and mapped."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import SdyShardingRule, custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .. import _abi
from .._argument_list import names_of
from .._library import check, library
from .axes import BATCH, HEADS, KV_HEADS, Axes, axes_of
from .batching import firsts, grown, is_one_call, looped
from .call import Call
from .partition import Factors, parts_of
from .primitive import DEVICES, register_handlers

TARGET = "flashattn_backward"
backward_p = Primitive(TARGET)
backward_p.multiple_results = True


def check_call(call: Call, k: Any) -> None:
    """Raises NotImplementedError for a call without gradients, of which k is the second array."""
    if k.dtype == jnp.float8_e4m3fn:
        raise NotImplementedError(f"k is of {k.dtype}: such keys have no gradient")
    of_k, of_v = call.keys.dtypes
    if of_k is not None or of_v is not None:
        raise NotImplementedError(f"kv_dtype is {call.keys.kv_dtype!r}: such keys have no gradient")
    pages = [name for name in call.operands if name in names_of("pages")]
    if pages:
        raise NotImplementedError(f"{pages[0]} is given: keys in pages have no gradient")


def _without_gradient(name: str) -> Callable[[Any], Any]:
    """Returns the identity of an array that has no gradient."""

    @jax.custom_jvp
    def itself(array: Any) -> Any:
        return array

    @itself.defjvp
    def _(arrays: Any, tangents: Any) -> NoReturn:
        raise NotImplementedError(
            f"{name} has no gradient: use jax.lax.stop_gradient on it, or another attention"
        )

    return itself


WITHOUT_GRADIENT = {
    name: _without_gradient(name)
    for name in (
        *("alibi_slopes", "attn_mask", "mask_head_scale"),
        *("k_descale", "v_descale", "q_descale"),
    )
}


@lru_cache(maxsize=1024)
def gradients(call: Call) -> Callable[..., list[Any]]:
    """Returns the function of a call's arrays, O, LSE, the gradient of O and perhaps that of LSE:
    [dq, dk, dv], and the gradient of sinks, if there are any."""
    mappable = custom_vmap(_partitioned(call))

    @mappable.def_vmap
    def _(size: int, mapped: list[bool], *arrays: Any) -> tuple[list[Any], list[bool]]:
        results = _batched(mappable, call, size, mapped, arrays)
        return results, [True] * len(results)

    def compute(*arrays: Any) -> list[Any]:
        return _without_rest(call, arrays, mappable(*arrays))

    return not_differentiated(compute)


def _without_rest(call: Call, arrays: Sequence[Any], found: Sequence[Any]) -> list[Any]:
    """Returns gradients in which keys behind the last sequence have zeros: the call leaves them."""
    dq, dk, dv, *rest = found
    if "cu_seqlens_k" in call.operands:
        end = arrays[call.operands.index("cu_seqlens_k")][-1]
        is_key = (jnp.arange(dk.shape[0]) < end)[:, None, None]
        dk, dv = (jnp.where(is_key, x, jnp.zeros_like(x)) for x in (dk, dv))
    return [dq, dk, dv, *rest]


def not_differentiated(function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Returns a function of arrays that takes part in a derivative and has none itself."""
    refusing = jax.custom_jvp(function)
    refusing.defjvp(_refuse_second)
    return refusing


def _refuse_second(arrays: Any, tangents: Any) -> NoReturn:
    raise NotImplementedError("flashattn.jax.flash_attention has no second derivative")


# ---- Axes ----


def _axes(call: Call, arrays: Sequence[Any]) -> Axes:
    """Returns the axes of all operands and results."""
    forward = axes_of(call._replace(return_lse=True), arrays[: len(call.operands)])
    of_o, of_lse = forward.results
    operands = (of_o, of_lse, of_o, of_lse)[: len(arrays) - len(call.operands)]
    of_q, of_k, of_v = forward.operands[:3]
    results = (of_q, of_k, of_v, *(((HEADS,),) if "sinks" in call.operands else ()))
    return forward._replace(operands=(*forward.operands, *operands), results=results)


# ---- Devices ----


def _partitioned(call: Call) -> Callable[..., list[Any]]:
    @custom_partitioning
    def differentiate(*arrays: Any) -> list[Any]:
        return backward_p.bind(*arrays, call=call)

    differentiate.def_partition(
        partition=partial(_partition, call), sharding_rule=partial(_rule, call)
    )
    return differentiate


def _partition(
    call: Call, mesh: Mesh, arrays: Sequence[Any], results: Sequence[Any]
) -> tuple[Mesh, Callable[..., list[Any]], list[NamedSharding], tuple[NamedSharding, ...]]:
    axes = _axes(call, arrays)
    along = _divided(axes, mesh, arrays[0].sharding.spec)
    of_operands, of_results = (
        [NamedSharding(mesh, PartitionSpec(*map(along.get, names))) for names in kinds]
        for kinds in (axes.operands, axes.results)
    )
    return mesh, partial(_bind_part, call, along.get(BATCH)), of_results, tuple(of_operands)


def _bind_part(call: Call, along_batch: Any, *arrays: Any) -> list[Any]:
    """Computes the gradients of a device's part. Sinks are those of every sequence."""
    found = backward_p.bind(*arrays, call=call)
    if "sinks" in call.operands and along_batch is not None:
        found[3] = jax.lax.psum(found[3], along_batch)
    return found


def _divided(axes: Axes, mesh: Mesh, spec: PartitionSpec) -> dict[str, Any]:
    """Returns the mesh's axes along which the batch and heads are divided, as those of Q are: query
    heads only together with their K/V head, whose gradient they share."""
    of_q = dict(zip(axes.operands[0], (*spec, None, None, None, None)))
    along = {}
    if axes.batch is not None and axes.batch % parts_of(mesh, of_q[BATCH]) == 0:
        along[BATCH] = of_q[BATCH]
    if axes.n_heads_kv % parts_of(mesh, of_q[HEADS]) == 0:
        along |= {HEADS: of_q[HEADS], KV_HEADS: of_q[HEADS]}
    return along


def _rule(call: Call, mesh: Mesh, operands: Any, results: Any) -> SdyShardingRule:
    return Factors(_axes(call, operands)).rule()


# ---- jax.vmap ----


def _batched(
    function: Callable[..., list[Any]], call: Call, size: int, mapped: Sequence[bool], arrays: Any
) -> list[Any]:
    """Returns the results of `size` calls. The gradient of sinks is a sum over a call's batch, so
    that such calls stay apart."""
    axes = _axes(call, firsts(mapped, arrays))
    names = (*call.operands, *("o", "lse", "d_o", "d_lse")[: len(arrays) - len(call.operands)])
    if "sinks" in call.operands or not is_one_call(names, axes, mapped):
        return looped(function, mapped, arrays)
    results = function(*grown(names, axes, size, mapped, arrays))
    return [result.reshape(size, axes.batch, *result.shape[1:]) for result in results]


# ---- The primitive ----


@lru_cache(maxsize=1024)
def _compiled(call: Call) -> Callable[..., list[Any]]:
    return jax.jit(partial(backward_p.bind, call=call))


@backward_p.def_impl
def _run(*arrays: Any, call: Call) -> list[Any]:
    with jax.disable_jit(False):  # where a caller disables it, too: there is no other way
        return _compiled(call)(*arrays)


@backward_p.def_abstract_eval
def _results(*avals: ShapedArray, call: Call) -> list[ShapedArray]:
    q, k, v = (aval.update(weak_type=False) for aval in avals[:3])
    columns = call.keys.width_of_v(v.shape[-1])
    found = [q, k, v.update(shape=(*v.shape[:-1], columns))]
    if "sinks" in call.operands:
        found.append(avals[call.operands.index("sinks")])
    return found


def _lower(ctx: Any, *operands: Any, call: Call, device: int) -> Any:
    problem = call.problem(ctx.avals_in[: len(call.operands)])
    problem.args.device = device
    args = _abi.flash_backward_args_t(forward=ctypes.addressof(problem.args))
    if len(ctx.avals_out) > 3:
        args.d_sinks = problem.args.sinks
    if problem.ragged_q:  # max_seqlen_q and max_seqlen_k may be loose bounds
        args.total_q = ctx.avals_in[0].shape[0]
    if "cu_seqlens_k" in call.operands:
        args.total_k = ctx.avals_in[1].shape[0]
    best = ctypes.c_uint64()
    check(library().flash_backward_workspace_size(args, None, best))
    workspace = ShapedArray((best.value,), np.dtype(np.uint8))
    ctx = ctx.replace(avals_out=[*ctx.avals_out, workspace])
    attributes = call.attributes(problem)
    return jax.ffi.ffi_lowering(TARGET)(ctx, *operands, **attributes)[:-1]


def _register() -> None:
    for platform, device in DEVICES.items():
        mlir.register_lowering(backward_p, partial(_lower, device=device), platform=platform)
    register_handlers(TARGET, library().flash_xla_backward_cpu, library().flash_xla_backward_cuda)


_register()
