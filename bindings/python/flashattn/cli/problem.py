"""What the commands share: options that describe a problem, threads, filters, optional extras."""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType
from typing import Any

import numpy as np

from .. import _tensor
from ..config import Arch, Config, DType, Kernel, kernels, parse_filters

NUMPY_NAME = {DType.FP16: "float16", DType.BF16: "bfloat16", DType.FP32: "float32"}


class BadInput(Exception):
    """The user's input cannot be used; the text is one line."""


def add_mask_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("attention")
    group.add_argument("--causal", action="store_true", help="mask keys after the diagonal")
    group.add_argument(
        "--window",
        nargs=2,
        type=int,
        default=(-1, -1),
        metavar=("LEFT", "RIGHT"),
        help="keys seen to each side of the diagonal, -1: unbounded",
    )
    group.add_argument("--softcap", type=float, default=0.0, help="cap of the scores, 0: none")
    group.add_argument("--scale", type=float, help="softmax scale; default: 1 / sqrt(d_head)")


def mask_options(args: argparse.Namespace) -> dict[str, Any]:
    """The keywords of flash_attn_func that add_mask_options read."""
    return {
        "causal": args.causal,
        "window_size": tuple(args.window),
        "softcap": args.softcap,
        "softmax_scale": args.scale,
    }


def add_filter_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "filters",
        nargs="*",
        metavar="FILTER",
        help="dtype=BF16, arch=AVX512, any field=value, or a short form in quotes",
    )


def chosen_kernels(filters: list[str], *, runnable: bool = False) -> list[Kernel]:
    """The rows of the kernel table that the filters leave; `runnable`: on this machine."""
    matches = parse_filters(filters)
    return [k for k in kernels() if matches(k.config) and (k.is_runnable or not runnable)]


def is_cuda(config: Config) -> bool:
    return config.arch >= Arch.SM80


def is_cpu(config: Config) -> bool:
    return not is_cuda(config)


def numpy_dtype(config: Config) -> np.dtype:
    return _tensor.numpy_dtype(NUMPY_NAME[DType(config.dtype)])


def extra(module: str) -> ModuleType:
    """An optional dependency of the command line."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise BadInput(
            f"this needs the package {package}: pip install 'flashattn[cli]', or pip install "
            f"{package}"
        ) from None
