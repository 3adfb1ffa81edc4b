"""`list`: the kernel table, filtered."""

from __future__ import annotations

import argparse

from . import problem


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "list",
        help="list the kernel table",
        description="Lists the kernels of the library: the short form of each configuration, and "
        "its name. '(not here)' marks those that this machine cannot run.",
    )
    problem.add_filter_argument(parser)
    parser.add_argument(
        "--runnable", action="store_true", help="list only what this machine can run"
    )
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
    width = max(map(len, forms), default=0)
    for form, kernel in zip(forms, rows):
        print(f"{form:{width}}  {kernel.name}{'' if kernel.is_runnable else '  (not here)'}")
    print(problem.count_kernels(rows))
    return 0
