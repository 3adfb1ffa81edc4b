"""`info`: version, devices, families of the kernel table, threads."""

from __future__ import annotations

import argparse
from collections import Counter

from .. import device, kernels
from .._library import library
from ..config import Arch, DType
from . import words


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "info",
        help="show version, devices, kernel families and threads",
        description="Shows the version and path of the library, the processor with its "
        "instruction sets, the number of threads, CUDA devices, and the kernel families that the "
        "library holds.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    cpu, n_threads = device.device_info(), device.num_threads()
    print(f"library   libflashattn {device.version()}, {library()._name}")
    print(f"device    {cpu.name}")
    print(f"isa       {' '.join(isa.name for isa in device.Isa if isa in cpu.isa) or 'baseline'}")
    print(f"threads   {n_threads}")
    for line in [*_cuda_devices(), *_families()]:
        print(line)
    return 0


def _cuda_devices() -> list[str]:
    return [
        f"cuda {n}    {gpu.name}, compute capability {gpu.compute_capability / 10}, "
        f"{words.count(gpu.n_multiprocessors, 'multiprocessor')}, "
        f"{gpu.shared_memory_per_block >> 10} KiB of shared memory per block"
        for n, gpu in enumerate(device.cuda_devices())
    ]


def _families() -> list[str]:
    table = kernels()
    counts = Counter(kernel.config.arch for kernel in table)
    runnable = {kernel.config.arch for kernel in table if kernel.is_runnable}
    lines = []
    for arch, count in sorted(counts.items()):
        dtypes = sorted({DType(k.config.dtype).name for k in table if k.config.arch == arch})
        state = "" if arch in runnable else ", not on this machine"
        own = f"{words.count(count, 'kernel')} ({' '.join(dtypes)})"
        lines.append(f"family    {Arch(arch).name}: {own}{state}")
    return lines
