"""Attention problems (problems.py) for flashattn.jax, on two devices of the host. Import it
after pytest.importorskip("jax"), where a file is read: before jax makes its devices."""

from __future__ import annotations

import os
from typing import Any

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from flashattn._argument_list import ARRAYS  # noqa: E402
from flashattn.jax import flash_attention  # noqa: E402
from memory import LATENT  # noqa: E402
from problems import AttentionProblem, make_inputs  # noqa: E402

DERIVED = ("q", "k", "v", "sinks")


def keywords(options: dict[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Returns the arrays, as numpy has them, and the other keywords, of what is not None."""
    given = {name: value for name, value in options.items() if value is not None}
    arrays = {name: _array(name, given.pop(name)) for name in ARRAYS if name in given}
    return arrays, given


def _array(name: str, value: object) -> np.ndarray:
    if name in ("k_descale", "v_descale", "q_descale"):
        return np.asarray(value, np.float32)
    return np.asarray(value, np.int32) if isinstance(value, tuple) else np.asarray(value)


def run_jitted(
    inputs: list[np.ndarray], options: dict[str, object]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (O, LSE) of a jitted call, every array of which is traced."""
    arrays, numbers = keywords(options)
    is_latent = LATENT in (numbers.get("kv_dtype") or ())

    def attend(q: object, k: object, v: object, more: dict[str, object]) -> object:
        return flash_attention(q, k, None if is_latent else v, return_lse=True, **numbers, **more)

    return tuple(np.array(x) for x in jax.jit(attend)(*inputs, arrays))


def run_problem(
    p: AttentionProblem, inputs: list[np.ndarray], more: dict[str, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (O, LSE) of a problem, NaN where a row of queries does not exist."""
    o, lse = run_jitted(inputs, {**p.call_options(), **(more or {})})
    for b, used in enumerate(p.seqused_q or ()):
        if p.cu_seqlens_q is None:
            o[b, used:], lse[b, :, used:] = np.nan, np.nan
        else:
            rest = slice(p.cu_seqlens_q[b] + used, p.cu_seqlens_q[b + 1])
            o[rest], lse[:, rest] = np.nan, np.nan
    return o, lse


class GradientCase:
    """Holds the arrays of a call by name, those that have gradients among them, its numbers, and
    gradients of O and LSE."""

    def __init__(self, p: AttentionProblem) -> None:
        self.options = {**p.call_options(), **({"out_dtype": p.o_dtype} if p.o_dtype else {})}
        more, self.numbers = keywords({**self.options, "return_lse": True})
        self.arrays = {**dict(zip("qkv", make_inputs(p))), **more}
        self.own = {name: self.arrays[name] for name in DERIVED if name in self.arrays}
        self.rest = {name: x for name, x in self.arrays.items() if name not in DERIVED}
        rng = np.random.default_rng(1)
        self.d_o, self.d_lse = (
            jnp.asarray(rng.standard_normal(x.shape), x.dtype) for x in self.results(self.own)
        )

    def results(self, own: dict[str, Any]) -> tuple[Any, Any]:
        return flash_attention(**own, **self.rest, **self.numbers)

    def gradients(self, own: dict[str, Any]) -> dict[str, Any]:
        """Returns the gradients by jax.vjp."""
        return jax.vjp(self.results, own)[1]((self.d_o, self.d_lse))[0]
