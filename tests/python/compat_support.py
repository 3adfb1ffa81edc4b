"""What the tests of flashattn.compat share: torch tensors of numpy arrays, and the comparison of
what a function returns with the oracle. Import it after pytest.importorskip("torch")."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from expectation import assert_agrees, expected_of
from flashattn.cli.torch_arrays import to_array, to_tensor
from memory import dtype_of
from problems import AttentionProblem, p_type, rounds_p

HEADS = {"mha": (6, 6), "gqa": (6, 2), "mqa": (6, 1)}  # n_heads, n_heads_kv
TYPES = ("float32", "float16", "bfloat16")


def tensor(array: np.ndarray) -> torch.Tensor:
    """Returns a tensor with memory of its own."""
    return to_tensor(array.copy())


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype_of(dtype))


def assert_matches_oracle(
    found: tuple[torch.Tensor, torch.Tensor],
    inputs: list[np.ndarray],
    replay: str,
    lse_of_empty_rows: float = -np.inf,
    **options: object,
) -> None:
    """Asserts the rules of docs/numerics.md.

    found    O and LSE of a function of flashattn.compat
    inputs   q, k, v of the oracle
    options  keywords of the oracle
    """
    p = AttentionProblem(dtype=inputs[1].dtype.name)
    roundings = 4 if found[0].is_cuda or rounds_p(p, None) else 1
    expected = expected_of(inputs, dtype_of(p_type(p, None)), roundings=roundings, **options)
    lse = np.where(np.isneginf(expected.lse), lse_of_empty_rows, expected.lse)
    o = to_array(found[0])
    assert o.dtype == inputs[0].dtype and found[1].dtype == torch.float32
    assert_agrees(o, to_array(found[1]), replace(expected, lse=lse), replay)
