"""Prints the rows of a benchmark as a table, or as JSON with `--json`."""

import json
import sys
from collections.abc import Mapping, Sequence

Row = Mapping[str, str | int | float]


def report(title: str, rows: Sequence[Row]) -> None:
    """Print `rows`, which all have the same keys; figures with three significant digits."""
    if "--json" in sys.argv:
        print(json.dumps({"title": title, "rows": [dict(row) for row in rows]}))
        return
    cells = [[_shown(value) for value in row.values()] for row in rows]
    heads = list(rows[0])
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    print(title)
    for line in [heads, *cells]:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print()


def _shown(value: str | float) -> str:
    return f"{value:,.3g}" if isinstance(value, float) else str(value)
