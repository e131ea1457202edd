"""The small end of the `regex` grammar: a cursor, flags, classes and escapes.

`python_dialect.py` owns the structure of a pattern and calls in here for its atoms. Every
class and every escape of more than one letter is put to `regex` itself.
"""

import re

import msgspec

from midstream.rules.regex_classes import matching_ranges
from midstream.rules.syntax import Chars, Never, Node, Ranges

FLAG_NAMES = {"i": "ignore_case", "m": "multiline", "s": "dot_all", "a": "ascii_only"}

_CLASS = re.compile(r"\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\[\\])*\]", re.DOTALL)
_SET_OPERATION = re.compile(r"--|&&|\|\||~~")
_PROPERTY = re.compile(r"\\[pP]|\[:")
_CHARACTER_ESCAPE = re.compile(
    r"\\(?:[dDsSwW]|[pP](?:\{[^}]*\}|[A-Za-z])|N\{[^}]*\}"
    r"|[afnrtv]|0(?![0-9])|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[^\w])"
)

_COUNTED = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<open>\()"
    r"|(?P<close>\))?(?:\{(?P<count>[0-9]+)|(?P<plus>\+))?",
    re.DOTALL,
)


class NoTree(Exception):
    """The pattern holds something that has no equivalent.

    `reason` names it; `warning` is for the author, where it may not mean what it seems to.
    """

    def __init__(self, reason: str, warning: str = "") -> None:
        self.reason = reason
        self.warning = warning
        super().__init__(reason)


class Flags(msgspec.Struct, frozen=True):
    """The flags in force at one place of a pattern."""

    ignore_case: bool = False
    multiline: bool = False
    dot_all: bool = False
    ascii_only: bool = False

    @property
    def for_classes(self) -> str:
        """Those that decide which characters a class has, as inline flags."""
        return ("a" if self.ascii_only else "") + ("i" if self.ignore_case else "")


class Cursor:
    """A place in the text of a pattern."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at

    def more(self) -> bool:
        return self.at < len(self.text)

    def take(self, prefix: str) -> bool:
        """Move over `prefix` if the text goes on with it."""
        found = self.text.startswith(prefix, self.at)
        if found:
            self.at += len(prefix)
        return found

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Move over what `pattern` matches here."""
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found


def required_repetitions(pattern: str) -> int:
    """How often the quantifiers of `pattern`, one in another, make one part of it repeat.

    `regex` needs memory in proportion to it, before anything is matched: of a group it writes
    out the required iterations and one more.
    """
    outer = [1]
    for found in _COUNTED.finditer(pattern):
        if found["open"]:
            outer.append(1)
            continue
        inside = outer.pop() if found["close"] and len(outer) > 1 else 1
        # Python refuses to read very long numbers.
        count = int((found["count"] or ("1" if found["plus"] else "0"))[:10])
        if found["close"] and count:
            count += 1
        outer[-1] = max(outer[-1], inside * max(count, 1))
    return max(outer)


def read_literal(cursor: Cursor, flags: Flags) -> Node:
    """The character here as itself, or as its case variants."""
    character = cursor.text[cursor.at]
    cursor.at += 1
    code = ord(character)
    if flags.ignore_case and (code >= 0x80 or character.isalpha()):
        return _asked(f"\\U{code:08x}", flags)
    return Chars(((code, code),))


def read_class(cursor: Cursor, flags: Flags) -> Node:
    """`[...]`, if it has no brackets inside."""
    start = cursor.at
    found = cursor.match(_CLASS)
    if found is None or _SET_OPERATION.search(found[0]):
        raise NoTree(
            "a class with nested brackets or set operations",
            f"at character {start}: brackets and `--`, `&&`, `||`, `~~` inside a class are"
            " ordinary characters, unless the condition starts with `(?V1)`",
        )
    return _asked(found[0], flags)


def read_character_escape(cursor: Cursor, flags: Flags) -> Node:
    """An escape that stands for one character."""
    found = cursor.match(_CHARACTER_ESCAPE)
    if found is None:
        raise NoTree(f"the escape {cursor.text[cursor.at : cursor.at + 2]}")
    return _asked(found[0], flags)


def word(flags: Flags) -> Ranges:
    """What `\\b` takes for a word character."""
    return matching_ranges(r"\w", "a" if flags.ascii_only else "") or ()


def _asked(fragment: str, flags: Flags) -> Node:
    if flags.ascii_only and flags.ignore_case and _PROPERTY.search(fragment):
        # `regex` answers `(?ai)\p{Lu}` and `(?ai)x?\p{Lu}` in two ways for a small letter.
        raise NoTree("a property that ignores case under the flag a")
    ranges = matching_ranges(fragment, flags.for_classes)
    if ranges is None:
        raise NoTree(f"{fragment}, which is not one character")
    return Chars(ranges) if ranges else Never()
