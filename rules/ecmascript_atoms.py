"""The small end of the ECMAScript grammar: escapes, classes and the counts of quantifiers.

`ecmascript.py` owns the structure of a pattern and calls in here for its atoms. Annex B of
ECMA-262 is followed throughout: legacy octal, identity escapes, the two meanings of `\\c`,
class escapes as ends of a range.
"""

import re

from midstream.rules.character_classes import (
    ANY_UNIT,
    DIGITS,
    LINE_TERMINATORS,
    SPACES,
    WORD,
    case_closure,
    complement,
    contains,
    union,
)
from midstream.rules.ecmascript_hints import (
    astral_class_warning,
    escape_warning,
    posix_class_warning,
)
from midstream.rules.ecmascript_scanner import Flags, Scanner
from midstream.rules.syntax import Chars, Never, Node, Ranges

_CLASS_ESCAPES = {
    "d": DIGITS,
    "D": complement(DIGITS),
    "w": WORD,
    "W": complement(WORD),
    "s": SPACES,
    "S": complement(SPACES),
}
_SURROGATES: Ranges = ((0xD800, 0xDFFF),)
_CONTROL_ESCAPES = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_CONTROL_LETTER = re.compile(r"c([A-Za-z])")
_CLASS_CONTROL = re.compile(r"c([A-Za-z0-9_])")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})")
_OCTAL = re.compile(r"[0-3][0-7]{0,2}|[4-7][0-7]?")

_BRACES = re.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}")
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_UNREACHABLE_COUNT = 2**30
"""No JavaScript string is this long, so this many times is as good as no limit."""


def read_literal(scanner: Scanner, flags: Flags) -> Node:
    """The unit here, whatever it is, as itself."""
    unit = ord(scanner.peek())
    scanner.at += 1
    return _node(((unit, unit),), flags)


def read_dot(scanner: Scanner, flags: Flags) -> Node:
    """`.`: everything but the line terminators, or everything under `s`."""
    scanner.at += 1
    return Chars(ANY_UNIT if flags.dot_all else complement(LINE_TERMINATORS))


def read_escape(scanner: Scanner, flags: Flags) -> Node:
    """An escape that is no assertion and no reference."""
    start = scanner.at
    scanner.at += 1
    ranges = _class_escape(scanner)
    if ranges is None:
        unit = _character_escape(scanner, start, _CONTROL_LETTER)
        ranges = ((unit, unit),)
    return _node(ranges, flags)


def read_class(scanner: Scanner, flags: Flags) -> Node:
    """`[...]`, from bracket to bracket."""
    start = scanner.at
    scanner.at += 1
    negative = scanner.take("^")
    parts: list[Ranges] = []
    while not scanner.take("]"):
        if not scanner.more():
            raise scanner.error("a class is not closed", "add `]`", start)
        parts.append(_class_item(scanner))
    scanner.warn(astral_class_warning(scanner.text[start : scanner.at]), start)
    ranges = union(*parts)
    if flags.ignore_case:
        ranges = case_closure(ranges)
    if negative:
        ranges = complement(ranges)
    return Chars(ranges) if ranges else Never()


def starts_quantifier(scanner: Scanner) -> bool:
    """Whether a quantifier stands here; a brace alone is a character (Annex B)."""
    return scanner.peek() in _SIGNS or _BRACES.match(scanner.text, scanner.at) is not None


def read_counts(scanner: Scanner) -> tuple[int, int | None]:
    """The least and the greatest count of the quantifier here; None is without limit."""
    sign = scanner.peek()
    if sign in _SIGNS:
        scanner.at += 1
        return _SIGNS[sign]
    braces = _BRACES.match(scanner.text, scanner.at)
    assert braces is not None  # the caller asked `starts_quantifier`
    least = most = _count(braces[1])
    if braces[2]:
        most = _count(braces[3]) if braces[3] else _UNREACHABLE_COUNT
    if most < least:
        raise scanner.error("the numbers of a quantifier are out of order", "swap them")
    scanner.at = braces.end()
    return least, None if most >= _UNREACHABLE_COUNT else most


def _count(written: str) -> int:
    significant = written.lstrip("0")
    # Python refuses to read numbers of some thousand digits.
    return int(significant or 0) if len(significant) <= 9 else _UNREACHABLE_COUNT


def _node(ranges: Ranges, flags: Flags) -> Node:
    return Chars(case_closure(ranges) if flags.ignore_case else ranges)


def _class_item(scanner: Scanner) -> Ranges:
    """One member of a class, or a range of two."""
    start = scanner.at
    first = _class_atom(scanner)
    if scanner.peek() != "-" or scanner.peek(1) in ("]", ""):
        return first
    scanner.at += 1
    last = _class_atom(scanner)
    if _is_single(first) and _is_single(last):
        if last[0][0] < first[0][0]:
            is_half = contains(_SURROGATES, last[0][0])
            mend = "write its characters as alternatives" if is_half else "swap its ends"
            raise scanner.error("a range of a class is out of order", mend, start)
        return ((first[0][0], last[0][0]),)
    # Annex B: with a class escape at one end the hyphen is only a hyphen.
    return union(first, last, ((ord("-"), ord("-")),))


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _class_atom(scanner: Scanner) -> Ranges:
    start = scanner.at
    if scanner.peek() == "[":
        scanner.warn(posix_class_warning(scanner.text[start:]))
    if not scanner.take("\\"):
        scanner.at += 1
        unit = ord(scanner.text[start])
        return ((unit, unit),)
    ranges = _class_escape(scanner)
    if ranges is not None:
        return ranges
    if scanner.peek() == "b":
        scanner.at += 1
        return ((0x08, 0x08),)
    unit = _character_escape(scanner, start, _CLASS_CONTROL)
    return ((unit, unit),)


def _class_escape(scanner: Scanner) -> Ranges | None:
    ranges = _CLASS_ESCAPES.get(scanner.peek())
    if ranges is not None:
        scanner.at += 1
    return ranges


def _character_escape(scanner: Scanner, start: int, control: re.Pattern[str]) -> int:
    """The unit that an escape stands for. `start` is its backslash, which has been read."""
    text, at = scanner.text, scanner.at
    letter = scanner.peek()
    if not letter:
        raise scanner.error("a backslash at the end", "write `\\\\` for the backslash", start)
    if found := control.match(text, at):
        scanner.at = found.end()
        return ord(found[1]) % 32
    if letter == "c":
        return ord("\\")  # Annex B: the backslash itself; the `c` is read again, as a literal.
    if found := _HEX.match(text, at):
        scanner.at = found.end()
        return int(found[1] or found[2], 16)
    if found := _OCTAL.match(text, at):
        scanner.at = found.end()
        return int(found[0], 8)
    scanner.at += 1
    if letter in _CONTROL_ESCAPES:
        return _CONTROL_ESCAPES[letter]
    if letter == "k" and scanner.group_names:
        raise scanner.error("`\\k` in a class", "write `k`", start)
    scanner.warn(escape_warning(letter, text[scanner.at :]), start)
    return ord(letter)
