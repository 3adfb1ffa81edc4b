"""This module offers attention in JAX: under jit, vmap and shard_map, divided among devices by
batch and heads, on the CPU and on CUDA devices.

    from flashattn.jax import flash_attention

    o = flash_attention(q, k, v, causal=True)

The call is a custom call of XLA into libflashattn, without Python and without copies. docs/guides/
jax.md shows it.
"""

from __future__ import annotations

from typing import Any

import jax

from . import _numbers
from ._jax.arrays import given_arrays, prepared
from ._jax.attention import attention
from ._jax.call import Call, canonical, keys_of, numbers_of, problem_of
from ._jax.gradient import TARGET as GRADIENT_TARGET
from ._jax.primitive import TARGET

__all__ = ["GRADIENT_TARGET", "TARGET", "flash_attention"]


def flash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array | None,
    *,
    cu_seqlens_q: jax.Array | None = None,
    cu_seqlens_k: jax.Array | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: jax.Array | None = None,
    seqused_k: jax.Array | None = None,
    leftpad_k: jax.Array | None = None,
    page_table: jax.Array | None = None,
    v_page_table: jax.Array | None = None,
    page_indptr: jax.Array | None = None,
    page_rows: jax.Array | None = None,
    page_holes: bool = False,
    k_descale: jax.Array | float | None = None,
    v_descale: jax.Array | float | None = None,
    q_descale: jax.Array | float | None = None,
    page_scales: bool = False,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    diagonal_offset: int = 0,
    softcap: float = 0.0,
    sinks: jax.Array | None = None,
    alibi_slopes: jax.Array | None = None,
    attn_mask: jax.Array | None = None,
    mask_bits: jax.Array | None = None,
    mask_keys: int | None = None,
    mask_head_scale: jax.Array | None = None,
    batch_invariant: bool = False,
    n_multiprocessors: int = 0,
    return_lse: bool = False,
    out_dtype: Any = None,
    kv_dtype: str | tuple[str | None, str | None] | None = None,
    d_head_v: int | None = None,
) -> Any:
    """O = softmax(softmax_scale * Q K^T, masked) V.

    q, k, v and the other arrays are JAX's, traced ones included, or what jax.numpy.asarray() takes.
    The arguments mean what they mean in flashattn.flash_attn_func and, with cu_seqlens_q or
    cu_seqlens_k, in flashattn.flash_attn_varlen_func, and have the same shapes and types. Those
    that are numbers are part of the compiled program: they cannot be traced, except for k_descale,
    v_descale and q_descale, and out_dtype may also be a type of jax.numpy. What the arrays do not
    cover is not written: rows of O and LSE beyond seqused_q hold anything.

    v may be None: V is the first d_head_v columns of K then, as in latent attention (MLA), and is
    not copied out of it. With kv_dtype "latent_e4m3" v is None or k itself, and d_head_v 512.

    Returns O, or (O, LSE) with return_lse. Raises ValueError (shapes, types, values) and TypeError
    (not an array, not a number) while it is traced, and, while it is compiled, NotImplementedError
    where no kernel serves it on the platform. What only data says, such as lengths, fails when it
    runs, as jax.errors.JaxRuntimeError, on the CPU. jax.grad and jax.vjp give gradients of q, k, v
    and sinks; what has none raises NotImplementedError.
    """
    options = locals()  # all arguments, by their names
    keys = keys_of(k, v, kv_dtype, d_head_v)
    arrays, numbers = given_arrays(options), numbers_of(options)
    if keys.v_is_k:
        arrays["v"] = arrays["k"]
    out_dtype = None if out_dtype is None else jax.numpy.dtype(out_dtype).name
    problem = problem_of(arrays, {**numbers, "out_dtype": out_dtype}, keys)
    wants_lse = _numbers.is_true("return_lse", return_lse)
    operands = prepared(arrays, problem)
    call = Call(tuple(operands), canonical(numbers), out_dtype, wants_lse, keys)
    results = attention(call)(*operands.values())
    return tuple(results) if wants_lse else results[0]
