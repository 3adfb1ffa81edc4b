"""The command line: `flashattn COMMAND`, or `python -m flashattn COMMAND`.

Each command is a module with add_parser() and run(). Exit codes: 0 success, 1 a check that
failed, 2 bad input or a call that was refused, with one line that says why, 141 nobody reads the
output any more.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from .. import device
from .._library import library
from ..errors import FlashAttnError
from . import (
    bench,
    bench_backward,
    bench_chunks,
    bench_decode,
    check,
    doctor,
    forward,
    ggml,
    info,
    listing,
    memory,
    tune,
)
from .problem import BadInput

_COMMANDS = (
    *(info, doctor, listing, forward, bench, bench_backward, bench_decode, bench_chunks),
    *(tune, check, ggml),
)
_STOPPED_READING = 141  # what shells report of a program that SIGPIPE ended
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
    try:
        args = _parser().parse_args(argv)
        code = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # as of `flashattn list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _STOPPED_READING
    except _EXPECTED as error:
        return _complain(error)
    except RuntimeError as error:
        if memory.ran_out(error):
            return _complain(error)
        raise


def _complain(error: Exception) -> int:
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"flashattn: {text}", file=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    """Refuses in one line, as commands do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"flashattn: {message}; {self.prog} --help explains the options\n")


class _Version(argparse.Action):
    """Prints the version of the library that is loaded, and where it lies."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"flashattn {device.version()}, {library()._name}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="flashattn",
        description="Shows, checks, times and tunes the kernels of libflashattn, which compute "
        "attention (FlashAttention).",
        epilog="`flashattn COMMAND --help` explains the options of a command.",
    )
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        help="print the version and path of the library, and exit",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser
