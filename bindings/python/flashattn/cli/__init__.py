"""The command line: `python -m flashattn COMMAND`.

One module a command, each with add_parser() and run(). Exit codes: 0 success, 1 a check that
failed, 2 bad input or a call that was refused, with one line that says why.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..errors import FlashAttnError
from . import bench, bench_chunks, bench_decode, check, forward, info, listing, tune
from .problem import BadInput

_COMMANDS = (info, listing, forward, bench, bench_decode, bench_chunks, tune, check)
_EXPECTED = (
    BadInput,
    FlashAttnError,
    ImportError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    ValueError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except _EXPECTED as error:
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"flashattn: {text}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flashattn", description="FlashAttention from libflashattn."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser
