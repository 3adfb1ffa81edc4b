"""The command line of the generator: python3 -m codegen."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from .config import Config, kernel_name
from .emit import generated_files
from .facts import FAMILIES, Arch
from .machine_code import has_machine_code
from .manifest import manifest_text, refresh_command, stale_lines
from .output import update, write_file
from .selection import SETS, SelectionError, select
from .sets import ship
from .short_form import format_config
from .tuning import TuningError
from .wrappers import WRAPPERS

EXIT_STALE = 1
EXIT_USAGE = 2

BUILDABLE = {
    family.name: arch
    for arch, family in FAMILIES.items()
    if all(
        (rows.layout.name, op) in WRAPPERS or not rows.layout.has_kernels
        for op, rows in family.operations.items()
    )
}


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="codegen",
        description="Selects kernel configurations and writes the kernel table's sources.",
        epilog=f"Sets: {', '.join(SETS)}.",
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, metavar="DIR", help="write the sources of a build")
    action.add_argument("--list", action="store_true", help="print short forms and kernel names")
    action.add_argument("--manifest", type=Path, metavar="FILE", help="write the ship manifest")
    action.add_argument("--check", type=Path, metavar="FILE", help="verify the ship manifest")
    parser.add_argument(
        "--kernels",
        "--filter",
        action="append",
        metavar="SELECTION",
        help='names of sets, which unite, and field=value filters, which intersect, as in "ship" '
        'or "dtype=BF16 arch=AVX512 B_r=64,128" (default: ship)',
    )
    parser.add_argument(
        "--families",
        default=",".join(BUILDABLE),
        metavar="NAMES",
        help="with --out: families that this build can compile (default: %(default)s)",
    )
    parser.add_argument(
        "--capabilities",
        default="",
        metavar="NUMBERS",
        help="with --out: the compute capabilities that this build is for, as in 80,90; CUDA rows "
        "without machine code for any of them are left out (default: all)",
    )
    parser.add_argument(
        "--compiled",
        metavar="SELECTION",
        help="with --out: the rows that have kernels, for tests that only look at the table "
        "(default: all)",
    )
    parsed = parser.parse_args(arguments)
    if parsed.kernels is not None and (parsed.manifest or parsed.check):
        parser.error("the manifest is that of the ship set: --kernels does not apply")
    return parsed


def parse_families(text: str) -> set[Arch]:
    names = [name for name in re.split(r"[\s,;]+", text) if name]
    for name in names:
        if name not in BUILDABLE:
            raise SelectionError(
                f"no kernels of family {name!r}; there are those of {', '.join(BUILDABLE)}"
            )
    return {BUILDABLE[name] for name in names}


def parse_capabilities(text: str) -> set[int]:
    words = [word for word in re.split(r"[\s,;]+", text) if word]
    for word in words:
        if not re.fullmatch(r"[0-9]{2,3}", word):
            raise SelectionError(f"{word!r} is no compute capability, as in 80 or 90")
    return {int(word) for word in words}


def rows_to_build(
    selected: Iterable[Config], families: set[Arch], capabilities: set[int]
) -> list[Config]:
    """Returns the selected rows of these families for these chips. Reference kernels are always
    among them, because they serve every problem that no other kernel serves."""
    wanted = {*selected, *(config for config in ship() if config.arch == Arch.REFERENCE)}
    rows = sorted(
        config
        for config in wanted
        if config.arch in families and has_machine_code(config, capabilities)
    )
    if not rows:
        raise SelectionError("none of the selected kernels is of the families of this build")
    return rows


def write_sources(directory: Path, rows: list[Config], compiled: list[Config]) -> None:
    changes = update(directory, generated_files(rows, compiled))
    for sign, names in (("+", changes.added), ("-", changes.removed)):
        for name in names:
            print(f"{sign} {name}")
    print(
        f"codegen: {len(rows)} kernels in the table, "
        f"{len(changes.added)} files added, {len(changes.removed)} removed"
    )


def print_list(configs: list[Config]) -> None:
    short_forms = [format_config(config) for config in configs]
    width = max(map(len, short_forms))
    for short_form, config in zip(short_forms, configs):
        print(f"{short_form:<{width}}  {kernel_name(config)}")


def check_manifest(path: Path) -> int:
    changes = stale_lines(path, ship())
    if not changes:
        return 0
    print(f"{path} is stale:", *changes, "Refresh it with:", sep="\n", file=sys.stderr)
    print(f"    {refresh_command(path)}", file=sys.stderr)
    return EXIT_STALE


def run(arguments: argparse.Namespace) -> int:
    selection = " ".join(arguments.kernels or ["ship"])
    if arguments.check:
        return check_manifest(arguments.check)
    if arguments.manifest:
        write_file(arguments.manifest, manifest_text(ship()))
    elif arguments.list:
        print_list(select(selection))
    else:
        families = parse_families(arguments.families)
        capabilities = parse_capabilities(arguments.capabilities)
        rows = rows_to_build(select(selection), families, capabilities)
        compiled = rows_to_build(select(arguments.compiled or selection), families, capabilities)
        write_sources(arguments.out, rows, [row for row in compiled if row in rows])
    return 0


def main(arguments: list[str]) -> int:
    parsed = parse_arguments(arguments)
    try:
        status = run(parsed)
        sys.stdout.flush()
    except (SelectionError, TuningError) as error:
        print(f"codegen: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:
        # The reader has closed the pipe (`--list | head`); the last flush must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"codegen: {error.filename}: {error.strerror}", file=sys.stderr)
        return EXIT_USAGE
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
