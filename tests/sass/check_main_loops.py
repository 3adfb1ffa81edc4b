"""The main loops of the SM90 kernels keep the descriptors of wgmma in uniform registers.

usage: check_main_loops.py cuobjdump object...

A loop that multiplies (HGMMA) both Q K^T and P V must not move anything from vector to uniform
registers (R2UR). ptxas inserts such moves if it does not see that all lanes of a warp are at the
same stage of the rings of K and V, mostly because of a branch between tiles in which lanes may
diverge. Each product then costs vector instructions.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from sass import Kernel, Loop, innermost, read_kernels

SKIPPED = 77
PRODUCT, OF_VALUES, TO_UNIFORM = "HGMMA", ".tnspB", "R2UR"  # V is the operand that is transposed


def is_main(loop: Loop) -> bool:
    return 0 < loop.count(OF_VALUES) < loop.count(PRODUCT)


def problems(kernel: Kernel) -> list[str]:
    loops = innermost([loop for loop in kernel.loops() if is_main(loop)])
    print(f"{kernel.name}: main loops of {', '.join(str(len(x.body)) for x in loops)} instructions")
    if not loops:
        return [f"{kernel.name}: no loop with the products of Q K^T and P V found"]
    return [
        f"{kernel.name}: the main loop at {loop.first:#x} has {loop.count(TO_UNIFORM)} "
        f"{TO_UNIFORM} among {len(loop.body)} instructions: descriptors in vector registers "
        "(see docs/adding-a-kernel.md)"
        for loop in loops
        if loop.count(TO_UNIFORM)
    ]


def check(cuobjdump: str, path: str) -> list[str]:
    command = [cuobjdump, "-sass", path]
    sass = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kernels = read_kernels(sass)
    if not kernels:
        return [f"{path}: no kernel found"]
    return [problem for kernel in kernels for problem in problems(kernel)]


def of_one_type(objects: list[str]) -> list[str]:
    """Leaves out kernels of FP16 with a twin of BF16, because their loops differ in types alone."""
    twins = {path: path.replace("_fp16_", "_bf16_") for path in objects}
    return [path for path, twin in twins.items() if twin == path or twin not in twins]


def main() -> int:
    cuobjdump, *objects = sys.argv[1:]
    objects = of_one_type(objects)
    if cuobjdump.endswith("-NOTFOUND"):
        print("no cuobjdump found")
        return SKIPPED
    with ProcessPoolExecutor() as pool:
        found = [p for each in pool.map(partial(check, cuobjdump), objects) for p in each]
    print(*found, sep="\n")
    print(f"{len(objects)} objects, {len(found)} problems")
    return 1 if found or not objects else 0


if __name__ == "__main__":
    sys.exit(main())
