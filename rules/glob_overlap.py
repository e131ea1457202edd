"""Whether two path patterns can hold for one file.

Pure; the linter asks. All forms in which the path of a file is tried end with the same
name (`globs.candidate_paths`), so two patterns whose last segments exclude each other
never hold together. What is not decided by the fixed beginning and end of that segment counts as
possible: nothing is reported that could work.
"""

import re
from collections.abc import Iterator

_ALTERNATIVES_LIMIT = 64
_INNERMOST_BRACES = re.compile(r"\{([^{}]*)\}")


def are_disjoint(left: str, right: str) -> bool:
    """Whether no file can match both patterns; False where that is not sure."""
    if left == f"!{right}" or right == f"!{left}":
        return True
    mine, other = _names(left), _names(right)
    if mine is None or other is None:
        return False
    return not any(_can_meet(a, b) for a in mine for b in other)


def _names(pattern: str) -> list[str] | None:
    """The last segments of the alternatives of a pattern; None where any name may match."""
    if pattern.startswith("!") or "\\" in pattern:
        return None
    names: list[str] = []
    for text in _alternatives(pattern):
        name = text.rsplit("/", 1)[-1]
        if name == "**" or len(names) == _ALTERNATIVES_LIMIT:
            return None
        names.append(name)
    return names


def _alternatives(pattern: str) -> Iterator[str]:
    """The pattern with its braces written out, innermost first."""
    braces = _INNERMOST_BRACES.search(pattern)
    if braces is None:
        yield pattern
        return
    for option in braces[1].split(","):
        yield from _alternatives(pattern[: braces.start()] + option + pattern[braces.end() :])


def _can_meet(left: str, right: str) -> bool:
    """Whether the fixed beginnings, and the fixed ends, of two segments agree."""
    starts = [re.split(r"[*?\[]", name)[0] for name in (left, right)]
    ends = [re.split(r"[*?\]]", name)[-1] for name in (left, right)]
    short_start, long_start = sorted(starts, key=len)
    short_end, long_end = sorted(ends, key=len)
    return long_start.startswith(short_start) and long_end.endswith(short_end)
