"""Sets of units: the tables that the dialects need, and the algebra on them.

The parsers build every class of a condition here, so that a tree carries plain ranges and
nobody after them has to know about case or Unicode properties. Everything is pure; the case
table is computed once, when the first condition that ignores case asks for it.

Upper case comes from Python's Unicode data. A host whose Python knows an older Unicode than
a JavaScript engine can therefore differ on the few letters added since.
"""

from collections import defaultdict
from collections.abc import Iterable
from functools import cache, lru_cache

from midstream.rules.syntax import Ranges

LAST_UNIT = 0xFFFF
"""The highest UTF-16 code unit: the alphabet of the ECMAScript dialect."""

LAST_CODE_POINT = 0x10FFFF
"""The highest code point: the alphabet of the Python dialect."""

ANY_UNIT: Ranges = ((0, LAST_UNIT),)

LINE_TERMINATORS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
"""What `.` excludes and what `^` and `$` look for under `m` (ECMA-262, 12.3)."""

DIGITS: Ranges = ((0x30, 0x39),)

WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
"""`\\w` and the sides of `\\b` without the `u` flag: ASCII letters, digits, underscore."""

SPACES: Ranges = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
"""`\\s`: WhiteSpace and LineTerminator (ECMA-262, 12.2 and 12.3)."""


def union(*parts: Iterable[tuple[int, int]]) -> Ranges:
    """The set of all units of `parts`, as sorted disjoint ranges that do not touch."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(pair for part in parts for pair in part):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def complement(ranges: Ranges, last: int = LAST_UNIT) -> Ranges:
    """All units from 0 to `last` that are not in `ranges`."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for first, final in ranges:
        if first > start:
            gaps.append((start, first - 1))
        start = final + 1
    if start <= last:
        gaps.append((start, last))
    return tuple(gaps)


def contains(ranges: Ranges, unit: int) -> bool:
    """Whether `unit` is in `ranges`."""
    return any(first <= unit <= last for first, last in ranges)


def canonicalize(unit: int) -> int:
    """The unit that stands for `unit` when case is ignored (ECMA-262, 22.2.2.7.3, no `u`).

    That is its upper case, if this is one unit and does not turn a non-ASCII unit into an
    ASCII one: so `\\u017F` does not match `s`, and `\\u212A` does not match `k`.
    """
    upper = chr(unit).upper()
    if len(upper) != 1:
        return unit
    code = ord(upper)
    if code > LAST_UNIT or (unit >= 0x80 > code):
        return unit
    return code


@cache
def case_variants() -> dict[int, tuple[int, ...]]:
    """For each unit that has them, all units that it equals when case is ignored."""
    classes: defaultdict[int, list[int]] = defaultdict(list)
    for unit in range(LAST_UNIT + 1):
        classes[canonicalize(unit)].append(unit)
    return {
        unit: tuple(members) for members in classes.values() if len(members) > 1 for unit in members
    }


@cache
@lru_cache(maxsize=4096)
def case_closure(ranges: Ranges) -> Ranges:
    """`ranges` and every unit that equals one of them when case is ignored."""
    added = [
        (variant, variant)
        for unit, variants in case_variants().items()
        if contains(ranges, unit)
        for variant in variants
    ]
    return union(ranges, added)
