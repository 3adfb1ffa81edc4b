"""`check`: compares every CPU kernel that this machine runs with the float64 oracle."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from .. import latent, oracle, quant_blocks
from .._attention import flash_attn_func, query_support
from ..compare import Deviation, compare
from ..config import DType, Kernel, Op
from . import check_gradients, extras, problem, words

# (name, q shape, k and v shape, options): each takes a path of its own through the kernels.
_PROBLEMS: tuple[tuple[str, tuple, tuple, dict[str, Any]], ...] = (
    ("full", (2, 65, 4, 64), (2, 129, 2, 64), {}),
    ("causal", (1, 130, 3, 128), (1, 130, 1, 128), {"causal": True}),
    ("window", (1, 100, 2, 80), (1, 140, 2, 80), {"window_size": (17, 5)}),
    ("chunks", (1, 100, 2, 80), (1, 140, 2, 80), {"attention_chunk": 48, "causal": True}),
    ("diagonal", (1, 100, 2, 80), (1, 140, 2, 80), {"diagonal_offset": -60, "causal": True}),
    ("softcap", (1, 33, 4, 64), (1, 77, 4, 64), {"softcap": 5.0, "causal": True}),
    ("sinks", (1, 40, 4, 64), (1, 77, 2, 64), {"sinks": np.array([0.5, -2, 3, 1], np.float32)}),
    ("seqused_k", (2, 7, 8, 96), (2, 90, 2, 96), {"seqused_k": [0, 61]}),
    ("leftpad_k", (2, 40, 4, 64), (2, 70, 2, 64), {"leftpad_k": [0, 45], "causal": True}),
    ("decode", (1, 1, 8, 128), (1, 2000, 2, 128), {"causal": True}),
    ("dropout", (1, 40, 4, 64), (1, 77, 2, 64), {"dropout_p": 0.3, "rng_state": (5, 2**35)}),
    ("odd d_head", (1, 19, 2, 37), (1, 23, 2, 37), {}),
)


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "check",
        help="compare every CPU kernel with the float64 oracle",
        description="Computes small problems with every CPU kernel that this machine can run, "
        "and compares O and LSE, or gradients, with those in float64. The exit code is 1 if one "
        "is beyond the allowed error.",
    )
    problem.add_filter_argument(parser)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs (0)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    rows = problem.chosen_kernels(args.filters, runnable=True)
    known = (Op.FORWARD, *check_gradients.OPERATIONS)
    rows = [row for row in rows if problem.is_cpu(row.config) and row.config.op in known]
    problem.require_some(rows)
    extras.require(*extras.of_arrays("cpu", [DType(row.config.dtype) for row in rows]))
    failed = 0
    for kernel in rows:
        print(kernel.config)
        for name, q_shape, k_shape, options in _PROBLEMS:
            deviations = _measure(kernel, q_shape, k_shape, options, args.seed)
            if not deviations:
                print(f"  {name:12} not served by this kernel")
            for of, deviation in deviations:
                print(f"  {name + of:15} {'ok' if deviation.ok else 'FAILED'}  {deviation}")
                for failure in deviation.failures:
                    print(f"      {failure}")
            failed += not all(deviation.ok for _, deviation in deviations)
    kernels, problems = words.count(len(rows), "kernel"), words.count(failed, "failed problem")
    print(f"{kernels}, {problems} (seed {args.seed})")
    return 1 if failed else 0


def _measure(
    kernel: Kernel, q_shape: tuple, k_shape: tuple, options: dict[str, Any], seed: int
) -> list[tuple[str, Deviation]]:
    """Returns deviations of what the kernel computes, and what each is of: nothing where the kernel
    does not serve the problem."""
    if kernel.config.op == Op.FORWARD:
        found = _measure_forward(kernel, q_shape, k_shape, options, seed)
        return [] if found is None else [("", found)]
    inputs = _inputs(np.random.default_rng(seed), DType(kernel.config.dtype), q_shape, k_shape)
    gradients = check_gradients.measure(kernel, inputs, options, seed)
    return [(f" {name}", deviation) for name, deviation in gradients]


def _measure_forward(
    kernel: Kernel, q_shape: tuple, k_shape: tuple, options: dict[str, Any], seed: int
) -> Deviation | None:
    rng = np.random.default_rng(seed)
    if kernel.config.dtype == DType.LATENT_E4M3:
        q, k, v, tokens = _latent_inputs(rng, q_shape, k_shape)
        arrays, own = (q, tokens, tokens), {**options, "kv_dtype": latent.KV_DTYPE}
    elif kernel.config.dtype in problem.QUANT_BLOCKS:
        kv_dtype = problem.QUANT_BLOCKS[DType(kernel.config.dtype)]
        q, k, v, *rows = _quantised_inputs(rng, kv_dtype, q_shape, k_shape)
        arrays, own = (q, *rows), {**options, "kv_dtype": kv_dtype}
    else:
        arrays = q, k, v = _inputs(rng, DType(kernel.config.dtype), q_shape, k_shape)
        own = options
    if not query_support(*arrays, config=kernel.config, **own):
        return None
    o, lse = flash_attn_func(*arrays, config=kernel.config, return_lse=True, **own)
    oracle_o, oracle_lse = oracle.attention(q, k, v, **options)
    naive_o = oracle.naive(q, k, v, p_dtype=q.dtype, **options)
    return compare(
        o,
        oracle_o,
        naive_o,
        lse=lse,
        oracle_lse=oracle_lse,
        largest_score=oracle.largest_score(q, k),
    )


def _inputs(
    rng: np.random.Generator, dtype: DType, q_shape: tuple, k_shape: tuple
) -> tuple[np.ndarray, ...]:
    shapes = (q_shape, k_shape, k_shape)
    return tuple(
        rng.standard_normal(shape).astype(element)
        for shape, element in zip(shapes, problem.numpy_dtypes(dtype))
    )


def _latent_inputs(
    rng: np.random.Generator, q_shape: tuple, k_shape: tuple
) -> tuple[np.ndarray, ...]:
    """q, k and v, and the tokens that k and v are decoded from; the last axes are those of latent
    tokens."""
    q, x = (
        rng.standard_normal((*shape[:-1], latent.COLUMNS), np.float32)
        for shape in (q_shape, k_shape)
    )
    tokens = latent.encode(x)
    k = latent.decode(tokens).astype(np.float32)
    return q, k, k[..., : latent.CODES], tokens


def _quantised_inputs(
    rng: np.random.Generator, kv_dtype: str, q_shape: tuple, k_shape: tuple
) -> tuple[np.ndarray, ...]:
    """q, k and v, and the rows that k and v are decoded from, of the next d_head of whole
    blocks."""
    d_head = -(-q_shape[-1] // quant_blocks.COLUMNS) * quant_blocks.COLUMNS
    q, k, v = (
        rng.standard_normal((*shape[:-1], d_head), np.float32)
        for shape in (q_shape, k_shape, k_shape)
    )
    rows = [quant_blocks.encode(x, kv_dtype) for x in (k, v)]
    decoded = (quant_blocks.decode(x, kv_dtype).astype(np.float32) for x in rows)
    return (q, *decoded, *rows)
