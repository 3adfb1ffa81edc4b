"""The door of JAX, for the random problems of training_cases.py: by jax.vjp, under jit, with
recomputation, and mapped."""

from __future__ import annotations

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from flashattn.jax import flash_attention  # noqa: E402
from torch import Tensor  # noqa: E402
from training_cases import Case, Data  # noqa: E402

WAYS = ("plain", "jit", "remat", "vmap")


def _array(x: Tensor) -> jax.Array:
    if x.dtype == torch.bool:
        return jnp.asarray(x.cpu().numpy())
    return jnp.asarray(x.detach().float().cpu().numpy(), str(x.dtype).removeprefix("torch."))


def _tensor(x: jax.Array, like: Tensor) -> Tensor:
    return torch.from_numpy(np.array(x, np.float32)).to(like)


def _ends(lengths: tuple[int, ...]) -> jax.Array:
    return jnp.asarray(np.cumsum([0, *lengths]), jnp.int32)


def run(way: str, case: Case, data: Data) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Returns the gradients of data.leaves, and O and LSE."""
    numbers = {
        "softmax_scale": case.scale, "causal": case.causal, "window_size": case.window,
        "attention_chunk": case.chunk, "softcap": case.softcap, "return_lse": True,
    }  # fmt: skip
    rest = {"alibi_slopes": data.slopes, "attn_mask": data.mask}
    rest = {name: _array(x) for name, x in rest.items() if x is not None}
    if case.is_ragged:
        rest |= {"cu_seqlens_q": _ends(case.lengths_q), "cu_seqlens_k": _ends(case.lengths_k)}
        numbers |= {"max_seqlen_q": max(case.lengths_q), "max_seqlen_k": max(case.lengths_k)}
    elif case.leftpad:
        rest["leftpad_k"] = jnp.asarray(case.leftpad, jnp.int32)
    elif case.has_lengths:
        rest["seqused_k"] = jnp.asarray(case.lengths_k, jnp.int32)
    leaves = [_array(x) for x in data.leaves]

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array | None = None) -> tuple:
        more = rest if sinks is None else {**rest, "sinks": sinks}
        return flash_attention(q, k, v, **numbers, **more)

    d = _array(data.d_o), _array(data.d_lse) if case.with_lse else jnp.zeros(data.d_lse.shape)

    def gradients(d: tuple, *leaves: jax.Array) -> tuple:
        function = jax.checkpoint(attend) if way == "remat" else attend
        results, pullback = jax.vjp(function, *leaves)
        return pullback(d), results

    if way == "plain":
        found, results = gradients(d, *leaves)
    elif way == "vmap":  # the second of two, of which the first differs
        two = [jnp.stack([x / 2, x]) for x in leaves]
        mapped = jax.jit(jax.vmap(gradients, in_axes=(None, *[0] * len(two))))(d, *two)
        found, results = ([x[1] for x in part] for part in mapped)
    else:
        found, results = jax.jit(gradients)(d, *leaves)
    found = [_tensor(x, y) for x, y in zip(found, data.leaves)]
    return found, (_tensor(results[0], data.q), _tensor(results[1], data.d_lse))
