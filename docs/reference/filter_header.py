"""Prints a header as doxygen should read it: what the header says in columns stays in columns, and
comments of struct members and enumerators belong to them.

    python3 docs/reference/filter_header.py include/flashattn.h
"""

from __future__ import annotations

import re
import sys

# A comment before a member: it is one of doxygen's with a second star.
MEMBER_COMMENT = re.compile(r"^( {4,})/\* (?=\S)")
# A line of a comment whose text is indented by two columns or more.
COLUMNS = re.compile(r"^ *\* {3,}\S")
# This is the part of such a line that doxygen would print besides its text.
STAR = re.compile(r"^ *\* {2}")
COMMENT_END = re.compile(r"\*/\s*$")


def is_in_columns(line: str) -> bool:
    return COLUMNS.match(line) is not None and not COMMENT_END.search(line)


def as_doxygen_reads_it(text: str) -> str:
    lines: list[str] = []
    in_columns = False
    for line in text.splitlines():
        if is_in_columns(line) != in_columns:
            in_columns = not in_columns
            lines.append(" * @verbatim" if in_columns else "@endverbatim")
        line = MEMBER_COMMENT.sub(r"\1/** ", line)
        lines.append(STAR.sub("", line) if in_columns else line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as header:
        sys.stdout.write(as_doxygen_reads_it(header.read()))
