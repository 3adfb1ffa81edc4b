"""Attention problems (problems.py) for flashattn.jax, on two devices of the host. Import it
after pytest.importorskip("jax"), where a file is read: before jax makes its devices."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
)

import jax  # noqa: E402
import numpy as np  # noqa: E402
from flashattn._argument_list import ARRAYS  # noqa: E402
from flashattn.jax import flash_attention  # noqa: E402
from memory import LATENT  # noqa: E402
from problems import AttentionProblem  # noqa: E402


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
