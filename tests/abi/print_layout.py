"""Writes the C program that prints what a built client depends on: sizes and offsets of every
public struct, sizes of the other types, values of every enumerator.

usage: print_layout.py flashattn.h program.c
"""

from __future__ import annotations

import sys
from pathlib import Path

from header_facts import enumerators, numbers, other_types, structs

PROGRAM = """\
#include "flashattn.h"

#include <stdio.h>

#define TYPE(type) printf("%s size %zu\\n", #type, sizeof(type))
#define MEMBER(type, member) \\
    printf("%s.%s offset %zu size %zu\\n", #type, #member, offsetof(type, member), \\
           sizeof(((type *)0)->member))
#define VALUE(name) printf("%s = %ld\\n", #name, (long)(name))

int main(void) {{
{lines}
    return 0;
}}
"""


def lines(header: str) -> list[str]:
    found = [f"TYPE({name});" for name in other_types(header)]
    for name, members in structs(header).items():
        found += [f"TYPE({name});", *(f"MEMBER({name}, {member});" for member in members)]
    return found + [f"VALUE({name});" for name in (*numbers(header), *enumerators(header))]


def main() -> None:
    header = Path(sys.argv[1]).read_text()
    text = PROGRAM.format(lines="\n".join(f"    {line}" for line in lines(header)))
    Path(sys.argv[2]).write_text(text)


if __name__ == "__main__":
    main()
