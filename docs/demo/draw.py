r"""Draws chat.svg, the README's picture of the demo, from chat.txt, which holds what it printed.

usage: ./dev demo | sed '/^\[/d' > docs/demo/chat.txt
       python docs/demo/draw.py

The demo is recorded in a checkout where it ran before, on idle processors, with torch installed;
sed takes out the lines about the build. examples/tests/test_chat_program.py compares its words with
those of the program, and fails where the record is to be made again. The picture is a terminal with
a background of its own, so that it can be read on white and on black. Its fonts are those of the
reader's system, and words keep their columns with each. The script needs Python alone.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parent
RECORD, PICTURE = FOLDER / "chat.txt", FOLDER / "chat.svg"
DESCRIPTION = "What ./dev demo prints: an answer, its comparison with float64, and times"

BACKGROUND, EDGE = "#161b22", "#777b80"
TEXT, FAINT, PROMPT, OWN, GOOD = "#e6edf3", "#9aa4ae", "#79b8ff", "#ff8c5a", "#56d364"
COLORS = (TEXT, FAINT, PROMPT, OWN, GOOD)

COLUMNS = 100  # of the terminal
COLUMN_WIDTH, LINE_HEIGHT, FONT_SIZE = 8.0, 18, 13
LEFT, TOP, BELOW = 18, 54, 14  # TOP: the base of the first line
WIDTH = 2 * LEFT + COLUMNS * COLUMN_WIDTH
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True)
class Piece:
    """Words of a line that are drawn together; column counts characters from the left."""

    column: int
    words: str
    color: str
    bold: bool = False

    def draw(self, y: float) -> str:
        weight = ' font-weight="bold"' if self.bold else ""
        return (
            f'<text x="{LEFT + self.column * COLUMN_WIDTH:g}" y="{y:g}" '
            f'textLength="{len(self.words) * COLUMN_WIDTH:g}" fill="{self.color}"{weight}>'
            f"{escape(self.words)}</text>"
        )


def terminal_lines(record: str) -> list[str]:
    """The lines as a terminal of COLUMNS shows them, with the command before them."""
    lines = ["$ ./dev demo", ""]
    for line in record.rstrip("\n").split("\n"):
        lines += [line] if len(line) <= COLUMNS else textwrap.wrap(line, COLUMNS)
    return lines


def pieces(line: str) -> Iterator[Piece]:
    """Divides a line at gaps of two spaces and more, and a row of numbers at each, and chooses
    colours by what it says."""
    is_row = re.match(r"(tokens|\d+) {2,}", line)
    found = list(re.finditer(r"\S+" if is_row else r"\S+(?: \S+)*", line))
    own = own_columns(len(found)) if is_row else ()
    for i, match in enumerate(found):
        column, words = match.start(), match.group()
        if line.startswith(("$ ", "> ")):
            yield Piece(column, words, PROMPT, bold=True)
        elif re.match(r"(model|device|gpu|cache) {2,}", line):
            yield Piece(column, words, FAINT)
        elif words.startswith("OK: "):
            yield Piece(column, "OK:", GOOD, bold=True)
            yield Piece(column + 4, words[4:], TEXT)
        elif i in own:
            yield Piece(column, words, OWN, bold=True)
        else:
            yield Piece(column, words, TEXT)


def own_columns(n_pieces: int) -> tuple[int, int]:
    """Which pieces of a row of the table are the library's: the first of each half."""
    return 1, 1 + (n_pieces - 1) // 2


def draw(record: str) -> str:
    lines = terminal_lines(record)
    height = TOP + (len(lines) - 1) * LINE_HEIGHT + BELOW
    body = [
        piece.draw(TOP + i * LINE_HEIGHT) for i, line in enumerate(lines) for piece in pieces(line)
    ]
    dots = "".join(f'<circle cx="{LEFT + 4 + 18 * i}" cy="16" r="5"/>' for i in range(3))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" '
            f'role="img" font-family="{FONTS}" font-size="{FONT_SIZE}">',
            f"<title>{escape(DESCRIPTION)}</title>",
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1:g}" height="{height - 1:g}" rx="8" '
            f'fill="{BACKGROUND}" stroke="{EDGE}"/>',
            f'<g fill="{EDGE}">{dots}</g>',
            *body,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(RECORD.read_text()))
