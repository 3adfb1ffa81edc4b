"""Turns a docstring as it is written here into reStructuredText: arguments in columns become a
list of fields, indented lines code, and everything else is text without markup but `code`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# An argument in columns: its name or names, two spaces or more, and what it is.
ARGUMENT = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*) {2,}(\S.*)$")
SPECIAL = re.compile(r"([\\*|]|(?<=\w)_(?!\w))")


def is_code(lines: list[str]) -> bool:
    return all(line.startswith("    ") or not line.strip() for line in lines)


def paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Yields what empty lines part. Those within code do not."""
    code: list[str] = []
    for text in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        paragraph = text.split("\n")
        if is_code(paragraph):
            code += ["", *paragraph] if code else paragraph
            continue
        if code:
            yield code
            code = []
        yield paragraph
    if code:
        yield code


def escaped(text: str) -> str:
    """Returns text whose `code` alone is markup."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if i % 2 else SPECIAL.sub(r"\\\1", part) for i, part in enumerate(parts))


def fields(lines: list[str], is_function: bool) -> list[str]:
    """Returns a field for each argument of a function, else a definition for each name."""
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        argument = ARGUMENT.match(line)
        if argument:
            found.append((argument[1], [argument[2]]))
        else:
            found[-1][1].append(line.strip())
    if is_function:
        return [f":param {escaped(name)}: {escaped(' '.join(text))}" for name, text in found]
    return [
        line for name, text in found for line in (f"`{name}`", f"    {escaped(' '.join(text))}")
    ]


def as_rst(lines: list[str], is_function: bool) -> list[str]:
    result: list[str] = []
    for paragraph in paragraphs(lines):
        if is_code(paragraph):
            text = [".. code-block:: python", "", *paragraph]
        elif ARGUMENT.match(paragraph[0]):
            text = fields(paragraph, is_function)
        else:
            text = [escaped(line) for line in paragraph]
        result += [*text, ""]
    return result
