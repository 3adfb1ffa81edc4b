"""`forward`: attention from .npy files to a .npy file."""

from __future__ import annotations

import argparse

from .._attention import flash_attn_func, flash_attn_varlen_func
from . import npy, problem
from .problem import BadInput


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "forward",
        help="attention from .npy files to a .npy file",
        description="Q [batch, seqlen_q, n_heads, d_head], K and V [batch, seqlen_k, n_heads_kv, "
        "d_head]; with --cu-seqlens-q and --cu-seqlens-k: [tokens, heads, d_head].",
    )
    for name in ("q", "k", "v"):
        parser.add_argument(name, metavar=f"{name}.npy")
    parser.add_argument("o", metavar="o.npy", help="written whole, or not at all")
    parser.add_argument("--lse", metavar="lse.npy", help="also write the log-sum-exp, float32")
    parser.add_argument(
        "--dtype", choices=npy.DTYPES, help="of the inputs; numpy files do not say bf16 themselves"
    )
    problem.add_mask_options(parser)
    lengths = parser.add_argument_group("lengths", 'as "0,5,9" or in an integer .npy file')
    lengths.add_argument("--seqused-k", metavar="LENGTHS")
    lengths.add_argument("--cu-seqlens-q", metavar="LENGTHS")
    lengths.add_argument("--cu-seqlens-k", metavar="LENGTHS")
    parser.add_argument("--config", help="short form of the kernel to use; default: selected")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    tensors = [npy.read_tensor(path, args.dtype) for path in (args.q, args.k, args.v)]
    options = problem.mask_options(args)
    options["seqused_k"] = npy.read_lengths(args.seqused_k, "--seqused-k")
    options["config"] = args.config
    ragged = _ragged_options(args)
    function = flash_attn_varlen_func if ragged else flash_attn_func
    o, lse = function(*tensors, **options, **ragged, return_lse=True)
    npy.write(args.o, o)
    if args.lse:
        npy.write(args.lse, lse)
    print(f"{args.o}: {o.dtype.name} {o.shape}")
    return 0


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
