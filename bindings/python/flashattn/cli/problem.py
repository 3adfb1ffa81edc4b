"""What the commands share: options that describe a problem, threads, filters."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from .. import _tensor
from ..config import Arch, Config, DType, Kernel, Op, kernels, parse_filters
from . import words

DEFAULT_SEQLEN = [512, 1024, 2048]
# These are types of K and V that arrays name; Q and O have the same type, but for e4m3, which O
# never has, and Q by --q-dtype.
NUMPY_NAME = {
    DType.FP16: "float16",
    DType.BF16: "bfloat16",
    DType.FP32: "float32",
    DType.E4M3: "float8_e4m3fn",
}
Q_NAME = {**NUMPY_NAME, DType.E4M3: "float16"}
# These are types of K and V in quantised blocks, by their kv_dtype; Q and O are of float32 beside
# them, as ggml has it.
QUANT_BLOCKS = {DType.Q8_0: "q8_0", DType.Q4_0: "q4_0"}


Q_TYPES = tuple(dtype.name for dtype in NUMPY_NAME)


class BadInput(Exception):
    """The user's input cannot be used; the text is one line."""


def add_shape_options(parser: argparse.ArgumentParser, *, several_d_heads: bool = False) -> None:
    group = parser.add_argument_group("shape")
    d_head = "head dimension (128)"
    group.add_argument(
        "--seqlen",
        type=numbers,
        default=DEFAULT_SEQLEN,
        metavar="N,N,...",
        help="keys of a sequence (512,1024,2048)",
    )
    group.add_argument(
        "--seqlen-q", type=int, help="queries of a sequence; default: as many as keys"
    )
    group.add_argument("--batch", type=int, default=1, help="sequences (1)")
    group.add_argument("--tokens", type=int, help="instead of --batch: batch is tokens / seqlen")
    group.add_argument("--heads", type=int, default=8, help="query heads (8)")
    group.add_argument("--heads-kv", type=int, help="K/V heads; default: as many as query heads")
    if several_d_heads:
        group.add_argument("--d-head", type=numbers, default="128", metavar="N,N,...", help=d_head)
        parser.set_defaults(d_head_v=None)
    else:
        group.add_argument("--d-head", type=int, default=128, help=d_head)
        group.add_argument(
            "--d-head-v", type=int, help="head dimension of V and O; default: as --d-head"
        )


def check_at_least_one(args: argparse.Namespace, *more: str) -> None:
    """Refuses sizes below 1, of add_shape_options() and of `more`, and --tokens of less than one
    sequence."""
    options = ("batch", "heads", "tokens", "d_head", "d_head_v", "seqlen_q", "heads_kv", "seqlen")
    for name in (*options, *more):
        value = getattr(args, name)
        least = min(value) if isinstance(value, list) else value
        if least is not None and least < 1:
            raise BadInput(f"--{name.replace('_', '-')} is {least}: at least 1")
    _check_tokens(args)


def _check_tokens(args: argparse.Namespace) -> None:
    if args.tokens is None:
        return
    if args.batch != 1:
        raise BadInput("--tokens and --batch do not go together")
    if args.tokens < max(args.seqlen):
        raise BadInput(f"--tokens is {args.tokens}: at least --seqlen, {max(args.seqlen)}")


def batch_size(seqlen: int, args: argparse.Namespace) -> int:
    return args.batch if args.tokens is None else args.tokens // seqlen


def d_head_v(args: argparse.Namespace) -> int:
    """The head dimension of V and O."""
    return args.d_head_v or args.d_head


def d_head_text(args: argparse.Namespace) -> str:
    """The head dimension, or both: "192/128"."""
    d_head, of_v = args.d_head, d_head_v(args)
    return str(d_head) if d_head == of_v else f"{d_head}/{of_v}"


def shapes(
    queries: tuple[int, ...], keys: tuple[int, ...], args: argparse.Namespace
) -> tuple[tuple[int, ...], ...]:
    """The shapes of q, k and v, whose first axes are given."""
    heads_kv = args.heads_kv or args.heads
    return (
        (*queries, args.heads, args.d_head),
        (*keys, heads_kv, args.d_head),
        (*keys, heads_kv, d_head_v(args)),
    )


def operations(seqlen: int, args: argparse.Namespace) -> float:
    """Counts 2 batch heads seqlen_q seqlen_k (d_head + d_head_v), half of it when causal. Keys that
    are padding do not count, nor do causal queries before the others."""
    keys = seqlen - args.leftpad_k
    seqlen_q = args.seqlen_q or seqlen
    if args.causal and args.leftpad_k:
        seqlen_q = min(seqlen_q, keys)
    columns = args.d_head + d_head_v(args)
    full = 2 * batch_size(seqlen, args) * args.heads * seqlen_q * keys * columns
    return full / 2 if args.causal else full


def numbers(text: str) -> list[int]:
    """Parses the value of an option. argparse says which one it is."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an integer or a list of integers, such as 512,1024"
        ) from None


def add_mask_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("attention")
    group.add_argument(
        "--causal", action="store_true", help="mask keys after the diagonal (bottom-right aligned)"
    )
    group.add_argument(
        "--window",
        nargs=2,
        type=int,
        default=(-1, -1),
        metavar=("LEFT", "RIGHT"),
        help="keys that a query sees to each side of the diagonal; -1: unbounded",
    )
    group.add_argument(
        "--attention-chunk",
        type=int,
        default=0,
        metavar="N",
        help="cut keys into chunks of N; a query sees those of its own chunk alone; 0, the "
        "default: no chunks",
    )
    group.add_argument(
        "--softcap", type=float, default=0.0, help="cap of the scores; 0, the default: none"
    )
    group.add_argument("--scale", type=float, help="softmax scale; default: 1 / sqrt(d_head)")


def mask_options(args: argparse.Namespace) -> dict[str, Any]:
    """The keywords of flash_attn_func that add_mask_options read."""
    return {
        "causal": args.causal,
        "window_size": tuple(args.window),
        "attention_chunk": args.attention_chunk,
        "softcap": args.softcap,
        "softmax_scale": args.scale,
    }


def mask_text(args: argparse.Namespace) -> str:
    """What a title says about the options of add_mask_options and add_padding_option: ", causal",
    or nothing."""
    parts = ["causal"] if args.causal else []
    if args.attention_chunk:
        parts.append(f"chunks of {args.attention_chunk}")
    if args.leftpad_k:
        parts.append(f"{words.count(args.leftpad_k, 'key')} of padding")
    return "".join(f", {part}" for part in parts)


def is_plain(options: dict[str, Any]) -> bool:
    """Whether there is no mask but a causal one, no softcap and no padding, so that any library
    may serve the problem."""
    masks = tuple(options["window_size"]) != (-1, -1) or options["attention_chunk"]
    return not masks and not options["softcap"] and options.get("leftpad_k") is None


def add_padding_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--leftpad-k",
        type=int,
        default=0,
        metavar="N",
        help="the first N keys of every sequence are padding, which is said in the memory of the "
        "device; rates do not count them (0)",
    )


def check_padding(args: argparse.Namespace) -> None:
    """Refuses padding of fewer keys than none, or of all keys of a sequence."""
    if not 0 <= args.leftpad_k < min(args.seqlen):
        raise BadInput(f"--leftpad-k is {args.leftpad_k}: at least 0, and less than --seqlen")


def padding_arrays(batch: int, args: argparse.Namespace) -> dict[str, np.ndarray]:
    """The keyword of flash_attn_func that add_padding_option read; none without padding."""
    return {"leftpad_k": np.full(batch, args.leftpad_k, np.int32)} if args.leftpad_k else {}


def add_filter_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "filters",
        nargs="*",
        metavar="FILTER",
        help="which kernels: dtype=BF16, arch=AVX512 or any other FIELD=VALUE of a "
        "configuration, or a short form in quotes",
    )


def chosen_kernels(filters: list[str], *, runnable: bool = False) -> list[Kernel]:
    """The rows of the kernel table that the filters leave; `runnable`: on this machine."""
    matches = parse_filters(filters)
    return [k for k in kernels() if matches(k.config) and (k.is_runnable or not runnable)]


def forward_kernels(filters: list[str]) -> list[Kernel]:
    """The rows that the filters leave of those for attention that this machine can run."""
    rows = chosen_kernels(filters, runnable=True)
    return [row for row in rows if row.config.op == Op.FORWARD]


def require_some(rows: list[Kernel]) -> None:
    """Refuses filters that have left no row."""
    if not rows:
        raise BadInput(f"no kernel that this machine can run matches{without_cuda()}")


def count_kernels(rows: list[Kernel]) -> str:
    """ "1 kernel"; of none, why there may be none."""
    return words.count(len(rows), "kernel") + ("" if rows else without_cuda())


def without_cuda() -> str:
    has_cuda = any(is_cuda(kernel.config) for kernel in kernels())
    return "" if has_cuda else "; this library was built without CUDA"


def is_cuda(config: Config) -> bool:
    return config.arch >= Arch.SM80


def is_cpu(config: Config) -> bool:
    return not is_cuda(config)


def has_arrays(config: Config) -> bool:
    """Says whether arrays have the type of K and V themselves."""
    return config.dtype in NUMPY_NAME


def add_q_dtype_option(group: Any, default: str) -> None:
    group.add_argument(
        "--q-dtype",
        type=str.upper,
        choices=Q_TYPES,
        help=f"type of Q beside K and V of E4M3 ({default}), E4M3 with O of BF16",
    )


def check_q_dtype(args: argparse.Namespace) -> None:
    if args.q_dtype and DType[args.dtype] != DType.E4M3:
        raise BadInput(f"--q-dtype goes with --dtype E4M3, not {args.dtype}")


def q_text(args: argparse.Namespace) -> str:
    """What a title says of the option."""
    given = getattr(args, "q_dtype", None)
    return f", Q of {given}" if given else ""


def q_name(dtype: DType, args: argparse.Namespace, beside_e4m3: str = Q_NAME[DType.E4M3]) -> str:
    """The type of Q beside K and V of a type."""
    if dtype != DType.E4M3:
        return Q_NAME[dtype]
    given = getattr(args, "q_dtype", None)
    return NUMPY_NAME[DType[given]] if given else beside_e4m3


def o_name(of_q: str) -> str:
    """The type of O beside a Q of a type."""
    return "bfloat16" if of_q == NUMPY_NAME[DType.E4M3] else of_q


def numpy_dtypes(dtype: DType, args: argparse.Namespace | None = None) -> list[np.dtype]:
    """The types of Q, K and V."""
    of_q = Q_NAME[dtype] if args is None else q_name(dtype, args)
    names = (of_q, NUMPY_NAME[dtype], NUMPY_NAME[dtype])
    return [_tensor.numpy_dtype(name) for name in names]
