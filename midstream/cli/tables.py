"""Tables and lines for people: drawn to the width of a terminal, aligned and uncut in a pipe.

What is shown may come from any file or model, so it is made harmless first: no control
characters, no markup, and in a table one line.
"""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from midstream.rules.reminder import shown_path

UNWRAPPED_CHARS = 30
"""Cells of the first column up to this length stay on one line."""


_OBEYED = {
    **dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), "�"),
    ord("\t"): "\t",
    ord("\n"): "\n",
    ord("\r"): "",
}
"""What a terminal would obey: ECMA-48's C0, C1 and DEL. A carriage return hides what stands
before it, and is of no use before a newline."""


def harmless(text: str) -> str:
    """`text` without what a terminal would obey; its tabs and newlines stay."""
    return text.translate(_OBEYED)


def one_line(text: str) -> str:
    """`text` on one line; what a terminal would obey becomes `�`."""
    return harmless(" ".join(text.split()))


def short_path(path: str, cwd: Path) -> str:
    """A path relative to `cwd`, else to `~`, else as it is."""
    return one_line(shown_path(path, str(cwd), str(Path.home())))


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str] = (),
) -> None:
    """Rows under headings. In a terminal cells wrap; elsewhere nothing is cut, so that
    lines can be searched. `styles` are rich's, one for each column."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    if not console.is_terminal:
        _print_aligned(console, columns, cells)
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for place, column in enumerate(columns):
        style = styles[place] if place < len(styles) else ""
        longest = max((len(row[place]) for row in cells), default=0)
        is_short = place == 0 and longest <= UNWRAPPED_CHARS
        table.add_column(column, style=style, overflow="fold", no_wrap=is_short)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def _print_aligned(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [list(columns), *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print_line(console, "  ".join(padded).rstrip())


def print_line(console: Console, text: str, style: str = "") -> None:
    """One line, harmless, never cut and never wrapped by us."""
    console.print(Text(harmless(text), style), soft_wrap=True)


def counted(number: int, what: str) -> str:
    """`1 rule`, `2 rules`."""
    return f"{number} {what}" + ("" if number == 1 else "s")
