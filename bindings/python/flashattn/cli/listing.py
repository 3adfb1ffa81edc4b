"""`list`: the kernel table, filtered."""

from __future__ import annotations

import argparse
import re
import shutil
import sys

from . import problem


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "list",
        help="list the kernel table",
        description="Lists the kernels of the library by the short forms of their configurations. "
        "'(not here)' marks those that this machine cannot run. On a terminal long lines are "
        "folded.",
    )
    problem.add_filter_argument(parser)
    parser.add_argument(
        "--runnable", action="store_true", help="list only what this machine can run"
    )
    parser.add_argument("--names", action="store_true", help="also print the names of symbols")
    parser.add_argument(
        "--short", action="store_true", help="print short forms alone, one per line"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    rows = problem.chosen_kernels(args.filters, runnable=args.runnable)
    forms = [str(kernel.config) for kernel in rows]
    if args.short:
        print("\n".join(forms))
        return 0
    for form, kernel in zip(forms, rows):
        name = f"  {kernel.name}" if args.names else ""
        print(_folded(f"{form}{name}{'' if kernel.is_runnable else '  (not here)'}"))
    print(problem.count_kernels(rows))
    return 0


def _folded(line: str) -> str:
    """The line in parts that fit the terminal, if there is one, each but the first indented."""
    if not sys.stdout.isatty():
        return line
    width = shutil.get_terminal_size().columns
    parts = [""]
    for piece in re.findall(r"[^ +]*[ +]*", line):
        if parts[-1].strip() and len(parts[-1]) + len(piece.rstrip()) > width:
            parts.append("    ")
        parts[-1] += piece
    return "\n".join(part.rstrip() for part in parts)
