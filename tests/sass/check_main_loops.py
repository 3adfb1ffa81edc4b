"""The main loops of the SM90 kernels keep the descriptors of wgmma in uniform registers.

usage: check_main_loops.py cuobjdump object...

A loop that multiplies (HGMMA, QGMMA) both Q K^T and P V must not move anything from vector to
uniform registers (R2UR). ptxas inserts such moves if it does not see that all lanes of a warp are
at the same stage of the rings of K and V, mostly because of a branch between tiles in which lanes
may diverge. Each product then costs vector instructions.

The rows of SHARED_MEMORY_IN_VECTOR may move one register in that way, a few times in each round.
Rows with bias read their tile from shared memory in each round, and may move its words.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from sass import Kernel, Loop, innermost, read_kernels

SKIPPED = 77
PRODUCT, TO_UNIFORM = "GMMA.64x", "R2UR"
# V is the operand that the instruction transposes; where it is of e4m3, columns of ones are behind.
OF_VALUES = re.compile(r"HGMMA.*\.tnspB|QGMMA\.64x(72|104|136)x")

# In these rows ptxas keeps the address of shared memory in a vector register from before the loop.
# Descriptors are computed from it in uniform registers, once for Q, K and V each: 3 moves in a
# round of 16 or 20 products. Code after the loop can cause it: with d_head 256 there are no moves
# if no sum with an attention sink follows.
SHARED_MEMORY_IN_VECTOR = re.compile(
    r"flash_fwd_sm90_(bf16|fp16)_d(192|256)_\w+_longestfirst_fixedreference_varlen"
)
MOST_MOVES = 3
WITH_BIAS = re.compile(r"flash_fwd_sm90_\w+_bias")
TILE_WORDS = 11  # of ragged_tile_t


def is_main(loop: Loop) -> bool:
    of_values = sum(OF_VALUES.search(x.text) is not None for x in loop.body)
    return 0 < of_values < loop.count(PRODUCT)


def is_allowed(kernel: Kernel, loop: Loop) -> bool:
    moves = [x.text for x in loop.body if TO_UNIFORM in x.text]
    if WITH_BIAS.fullmatch(kernel.name):
        return len(moves) <= TILE_WORDS
    if not SHARED_MEMORY_IN_VECTOR.fullmatch(kernel.name):
        return not moves
    sources = {move.split()[-1] for move in moves}
    return len(moves) <= MOST_MOVES and len(sources) <= 1


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
        if not is_allowed(kernel, loop)
    ]


def check(cuobjdump: str, path: str) -> list[str]:
    command = [cuobjdump, "-sass", path]
    sass = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kernels = read_kernels(sass)
    if not kernels:
        return [f"{path}: no kernel found"]
    return [problem for kernel in kernels for problem in problems(kernel)]


def of_one_type(objects: list[str]) -> list[str]:
    """Leaves out kernels of FP16 with a twin of BF16, because their loops differ in types alone. A
    file of several kernels has none of their names, and stays."""
    twins = {path: re.sub(r"/(flash_fwd_\w+)_fp16_", r"/\1_bf16_", path) for path in objects}
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
