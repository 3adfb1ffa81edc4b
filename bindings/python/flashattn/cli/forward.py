"""`forward`: attention from .npy files to a .npy file."""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np

from .._attention import flash_attn_func, flash_attn_varlen_func
from . import extras, gpu, npy, output_file, problem, torch_arrays
from .problem import BadInput


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "forward",
        help="compute attention from .npy files to a .npy file",
        description="Reads Q, K and V from .npy files, computes attention, and writes O. Q is "
        "[batch, seqlen_q, n_heads, d_head], K and V are [batch, seqlen_k, n_heads_kv, d_head]; "
        "with --cu-seqlens-q and --cu-seqlens-k they are [tokens, heads, d_head].",
    )
    for name in ("q", "k", "v"):
        parser.add_argument(name, metavar=f"{name}.npy")
    parser.add_argument("o", metavar="o.npy", help="output; it is written whole, or not at all")
    parser.add_argument("--lse", metavar="lse.npy", help="also write the log-sum-exp, float32")
    parser.add_argument(
        "--dtype",
        type=str.lower,
        choices=npy.DTYPES,
        help="type of the inputs; .npy files do not say by themselves that they are bf16",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where to compute (cpu); cuda needs torch",
    )
    problem.add_mask_options(parser)
    lengths = parser.add_argument_group(
        "lengths", 'numbers such as "0,5,9", or an .npy file of integers'
    )
    lengths.add_argument("--seqused-k", metavar="LENGTHS", help="keys of each sequence")
    lengths.add_argument(
        "--leftpad-k", metavar="LENGTHS", help="padding before the keys of each sequence"
    )
    for side in ("q", "k"):
        lengths.add_argument(
            f"--cu-seqlens-{side}",
            metavar="LENGTHS",
            help="where each sequence of a ragged batch begins, and the last one ends",
        )
    parser.add_argument(
        "--config", help="short form of the kernel to use; default: the library selects"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    _check_outputs(args)
    if args.device == "cuda":
        gpu.require("--device cuda")
        extras.require("torch")
    tensors = [npy.read_tensor(path, args.dtype) for path in (args.q, args.k, args.v)]
    options = problem.mask_options(args)
    options["seqused_k"] = npy.read_lengths(args.seqused_k, "--seqused-k")
    options["leftpad_k"] = npy.read_lengths(args.leftpad_k, "--leftpad-k")
    options["config"] = args.config
    o, lse = _compute(tensors, options, _ragged_options(args), args.device)
    npy.write(args.o, o)
    if args.lse:
        npy.write(args.lse, lse)
    print(f"{args.o}: {o.dtype.name} {o.shape}")
    return 0


def _check_outputs(args: argparse.Namespace) -> None:
    """Before anything is read: no output may take the place of an input, or of the other one."""
    lengths = [args.seqused_k, args.leftpad_k, args.cu_seqlens_q, args.cu_seqlens_k]
    read = [args.q, args.k, args.v, *lengths]
    taken = {os.path.realpath(path): path for path in read if path}
    for path in filter(None, (args.o, args.lse)):
        output_file.check(path)
        if path.endswith(".npz"):
            raise BadInput(f"{path}: one array is written, which makes a .npy file, not a .npz")
        if os.path.realpath(path) in taken:
            raise BadInput(
                f"{path} would be written over {taken[os.path.realpath(path)]}, which is an input "
                "or the other output"
            )
        taken[os.path.realpath(path)] = path


def _compute(
    tensors: list[np.ndarray], options: dict[str, Any], ragged: dict[str, Any], where: str
) -> list[np.ndarray]:
    """O and LSE."""
    function = flash_attn_varlen_func if ragged else flash_attn_func
    keywords = {**options, **ragged}
    if where == "cpu":
        return function(*tensors, **keywords, return_lse=True)
    on_device = [torch_arrays.to_tensor(np.array(x), where) for x in tensors]
    for name, value in keywords.items():
        if isinstance(value, np.ndarray):
            keywords[name] = torch_arrays.to_tensor(value, where)
    return [torch_arrays.to_array(x) for x in function(*on_device, **keywords, return_lse=True)]


def _ragged_options(args: argparse.Namespace) -> dict[str, object]:
    options: dict[str, object] = {}
    for side, text in (("q", args.cu_seqlens_q), ("k", args.cu_seqlens_k)):
        lengths = npy.read_lengths(text, f"--cu-seqlens-{side}")
        if lengths is not None and len(lengths) == 0:
            raise BadInput(f"--cu-seqlens-{side} is empty: batch + 1 values, from 0 on")
        options[f"cu_seqlens_{side}"] = lengths
        options[f"max_seqlen_{side}"] = None if lengths is None else _longest(lengths)
    return options if args.cu_seqlens_q or args.cu_seqlens_k else {}


def _longest(cu_seqlens) -> int:
    steps = [int(b) - int(a) for a, b in zip(cu_seqlens, cu_seqlens[1:])]
    return max(steps, default=0)
