"""This module measures kernels, and tells the library's selection what was found.

A tuner measures the rows that serve a problem, and writes a line for the fastest (of every family
that it measured: a family without a line counts as not measured). It passes the lines on, headed by
TUNING_HEADER: to set_tuning(), or as a file that the environment variable FLASHATTN_TUNING names.
`flashattn tune` does so. include/flashattn.h says when selection follows a result.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from . import _abi, _attention, _numbers
from . import config as _config
from ._library import check, library
from ._problem import Problem
from .config import Config

TUNING_HEADER = _abi.FLASH_TUNING_HEADER


def measure(
    q: Any,
    k: Any,
    v: Any,
    configs: Sequence[Config | str],
    *,
    out: Any,
    workspace: Any = None,
    n_launches: int = 25,
    **options: Any,
) -> list[float]:
    """Returns the median seconds of n_launches launches of each kernel, after one that is not
    timed. Kernels take turns launch by launch.

    configs are Configs or short forms of rows of the table; out, workspace and options are as in
    flash_attn_func and flash_attn_varlen_func. On a CUDA device the time is the device's, on the
    caller's stream, which is waited for. Raises what flash_attn_func raises for any of the kernels,
    and LookupError.
    """
    count = _numbers.int32("n_launches", n_launches)
    problem = Problem(q, k, v, options)
    problem.set_output(out, None)
    rows = [_config.row(config) for config in configs]
    sizes = [_attention.workspace_size(problem.args, row) for row in rows]
    pointers = (ctypes.c_void_p * len(rows))(*rows)
    seconds = (ctypes.c_double * len(rows))()
    size = max(sizes, default=0)
    with _attention.device_workspace(problem, size, q, workspace) as (address, n_bytes):
        problem.args.workspace = address
        problem.args.workspace_size = n_bytes
        check(
            library().flash_measure(
                problem.args, pointers, len(rows), count, problem.stream, seconds
            )
        )
    return list(seconds)


def tuning_line(
    q: Any, k: Any, v: Any, config: Config | str, seconds: float, **options: Any
) -> str:
    """Returns a line of measured results: kernel `config` takes `seconds` for problems like this.

    Raises NotImplementedError (a problem that follows no results: arrays of the CPU,
    batch_invariant; or one that config does not serve), LookupError, ValueError.
    """
    problem = Problem(q, k, v, options)
    text = ctypes.create_string_buffer(_abi.FLASH_TUNING_TEXT_SIZE)
    kernel = _config.row(config)
    check(library().flash_tuning_format(problem.args, kernel, seconds, text, len(text)))
    return text.value.decode()


def set_tuning(text: str | None) -> None:
    """Makes selection follow these measured results, lines of tuning_line() below TUNING_HEADER, in
    place of FLASHATTN_TUNING's; None: FLASHATTN_TUNING's again.

    Raises ValueError with the line that cannot be understood; the results in force stay.
    """
    check(library().flash_set_tuning(None if text is None else _text(text)))


def _text(text: str) -> bytes:
    encoded = text.encode()
    if b"\0" in encoded:
        raise ValueError("the results have a NUL character in them")
    return encoded
