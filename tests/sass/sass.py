"""Machine code as cuobjdump prints it, and the loops of a kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# Name of a function; address and text of an instruction.
_LINE = re.compile(r"^\s+(?:Function : (\S+)|/\*([0-9a-f]{4,})\*/ +(.*?) *;)", re.MULTILINE)
# `@P0 BRA 0x40`, `BRA.DIV UR4, 0x40`, `@P2 BRA P3, 0x40`, `BRA 0x40`: but for the last, there is a
# way on to the next instruction.
_BRANCH = re.compile(r"(@\S+ )?BRA(\S*) (.*, )?0x([0-9a-f]+)")
_END = re.compile(r"EXIT|RET|BRX|BRA ")


@dataclass(frozen=True)
class Instruction:
    address: int
    text: str


@dataclass(frozen=True)
class Loop:
    """A natural loop: every way into it leads through its first instruction."""

    first: int  # address
    body: tuple[Instruction, ...]

    def count(self, word: str) -> int:
        return sum(word in instruction.text for instruction in self.body)


@dataclass
class Kernel:
    name: str
    code: list[Instruction] = field(default_factory=list)

    def loops(self) -> list[Loop]:
        blocks = _Blocks(self.code)
        found = []
        for head, tail in blocks.backward_edges():
            body = blocks.natural_loop(head, tail)
            if body is not None:
                found.append(Loop(self.code[blocks.starts[head]].address, blocks.code_of(body)))
        return found


def read_kernels(text: str) -> list[Kernel]:
    kernels: list[Kernel] = []
    for function, address, instruction in _LINE.findall(text):
        if function:
            kernels.append(Kernel(function))
        elif kernels:
            kernels[-1].code.append(Instruction(int(address, 16), instruction))
    return kernels


def innermost(loops: list[Loop]) -> list[Loop]:
    """Returns the loops that contain no other loop."""
    bodies = [{instruction.address for instruction in loop.body} for loop in loops]
    return [loop for loop, own in zip(loops, bodies) if not any(other < own for other in bodies)]


class _Blocks:
    """Basic blocks, numbered in the order of their addresses, and the edges between them."""

    def __init__(self, code: list[Instruction]) -> None:
        self.code = code
        index = {instruction.address: i for i, instruction in enumerate(code)}
        targets = {i: index.get(target) for i, target in _branches(code)}
        starts = {0, *(t for t in targets.values() if t is not None)}
        starts |= {i + 1 for i, x in enumerate(code) if i in targets or _END.match(x.text)}
        self.starts = sorted(i for i in starts if i < len(code))
        number = {start: n for n, start in enumerate(self.starts)}
        self.predecessors: list[list[int]] = [[] for _ in self.starts]
        for n, end in enumerate([*self.starts[1:], len(code)]):
            target = targets.get(end - 1)
            if target is not None:
                self.predecessors[number[target]].append(n)
            if not _END.match(code[end - 1].text) and n + 1 < len(self.starts):
                self.predecessors[n + 1].append(n)

    def backward_edges(self) -> list[tuple[int, int]]:
        return [(n, p) for n, before in enumerate(self.predecessors) for p in before if p >= n]

    def natural_loop(self, head: int, tail: int) -> set[int] | None:
        """Returns the blocks that lead to `tail` without `head`; None if the first block does."""
        body, waiting = {head}, [tail]
        while waiting:
            block = waiting.pop()
            if block not in body:
                body.add(block)
                waiting += self.predecessors[block]
        return body if head == 0 or 0 not in body else None

    def code_of(self, blocks: set[int]) -> tuple[Instruction, ...]:
        ends = [*self.starts[1:], len(self.code)]
        return tuple(x for n in sorted(blocks) for x in self.code[self.starts[n] : ends[n]])


def _branches(code: list[Instruction]) -> list[tuple[int, int]]:
    """Returns the number of a branch, and the address that it may go to."""
    found = [(i, _BRANCH.match(instruction.text)) for i, instruction in enumerate(code)]
    return [(i, int(branch[4], 16)) for i, branch in found if branch]
