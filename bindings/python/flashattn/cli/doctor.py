"""`doctor`: what on this machine can compute attention by the library, whether it does, and the
line that switches it over."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import device, kernels
from .._library import library
from ..config import Arch
from . import problem, programs


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "doctor",
        help="show which programs here can use the library, and the line that lets them",
        description="Shows the library, the processor and the GPUs, and of each program and "
        "package that can use the library whether it is installed, whether attention is computed "
        "by the library there from the start (on), or the line that does it (ready), or why it "
        "cannot (no). It imports none of them. The exit code is 0 whatever it finds.",
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    found = {
        "library": _asked(_library),
        "package": str(Path(__file__).resolve().parents[1]),
        "cpu": _asked(_cpu),
        "gpus": _asked(_gpus),
        "programs": [finding._asdict() for finding in programs.findings()],
    }
    print(json.dumps(found, indent=1) if args.json else "\n".join(_lines(found)))
    return 0


# ---- The library and the machine ----


def _asked(question: Callable[[], Any]) -> Any:
    """Returns the answer, or {"error": ...} where the library cannot be loaded or refuses."""
    try:
        return question()
    except (ImportError, RuntimeError, ValueError, NotImplementedError) as error:
        return {"error": " ".join(str(error).split())}


def _library() -> dict[str, str]:
    return {"version": device.version(), "path": library()._name}


def _cpu() -> dict[str, Any]:
    cpu = device.device_info()
    families = {k.config.arch for k in kernels() if problem.is_cpu(k.config) and k.is_runnable}
    return {
        "name": cpu.name,
        "isa": [isa.name for isa in device.Isa if isa in cpu.isa],
        "families": [Arch(arch).name for arch in sorted(families)],
        "threads": device.num_threads(),
    }


def _gpus() -> list[dict[str, Any]]:
    return [
        {
            "name": gpu.name,
            "compute_capability": gpu.compute_capability / 10,
            "multiprocessors": gpu.n_multiprocessors,
        }
        for gpu in device.cuda_devices()
    ]


# ---- Text ----


def _lines(found: dict[str, Any]) -> list[str]:
    return [
        f"library    {_words(found['library'], _of_library)}",
        f"package    {found['package']}",
        f"cpu        {_words(found['cpu'], _of_cpu)}",
        *_of_gpus(found["gpus"]),
        "",
        *_of_programs(found["programs"]),
    ]


def _words(answer: Any, words: Callable[[Any], str]) -> str:
    return answer["error"] if "error" in answer else words(answer)


def _of_library(answer: dict[str, str]) -> str:
    return f"libflashattn {answer['version']}, {answer['path']}"


def _of_cpu(answer: dict[str, Any]) -> str:
    families, threads = " ".join(answer["families"]), answer["threads"]
    return f"{answer['name']}; families {families}; threads {threads}"


def _of_gpus(answer: Any) -> list[str]:
    if "error" in answer:
        return [f"gpus       {answer['error']}"]
    if not answer:
        return [f"gpus       none{_asked(problem.without_cuda)}"]
    return [
        f"gpu {n}      {gpu['name']}, compute capability {gpu['compute_capability']}"
        for n, gpu in enumerate(answer)
    ]


def _of_programs(found: list[dict[str, Any]]) -> list[str]:
    rows = [(x["name"], x["version"] or "-", x["state"], x["switch"] or x["reason"]) for x in found]
    rows.insert(0, ("program", "version", "state", "the line that switches it over, or why not"))
    widths = [max(map(len, column)) for column in zip(*rows)][:-1]
    return [
        "   ".join([*(word.ljust(width) for word, width in zip(row, widths)), row[-1]])
        for row in rows
    ]
