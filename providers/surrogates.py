"""Half characters in JSON, joined or replaced.

A model's tokens can cut a character outside the basic plane, so that a stream carries one
UTF-16 half of it (`"\\ud83d"`) in one event and the other half in the next. JSON allows the
escape, but such a half is no text: a strict decoder refuses it, a lax one makes a string that
no store and no provider takes (spec/lessons.md E 40). `mark_halves` makes the JSON readable by
putting a mark of the last private-use plane in the place of a half; `join_halves` then makes
a character of two marks that belong together, and U+FFFD of one that stays alone.
"""

import re

_FIRST_MARK = 0x10F000
_FIRST_UNIT = 0xD800

_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole pair
    rb"|\\u([dD][89a-fA-F][0-9a-fA-F]{2})"  # a half
    rb"|\\.",  # any other escape, among them the backslash itself
    re.DOTALL,
)
_MARKS = re.compile("([\U0010f000-\U0010f3ff])([\U0010f400-\U0010f7ff])|[\U0010f000-\U0010f7ff]")
_HIGH_MARKS = ("\U0010f000", "\U0010f3ff")


def mark_halves(document: bytes) -> bytes:
    """The JSON `document` with a mark in the place of each escaped half."""

    def mark(match: re.Match[bytes]) -> bytes:
        half = match.group(1)
        if half is None:
            return match.group(0)
        return chr(int(half, 16) - _FIRST_UNIT + _FIRST_MARK).encode()

    return _ESCAPE.sub(mark, document)


def join_halves(held: str, text: str, *, final: bool = False) -> tuple[str, str]:
    """`held` and `text` as one text without marks, and what to hold for the next call.

    A first half at the very end is held, unless the text is `final`.
    """
    whole = held + text
    hold = ""
    if not final and whole and _HIGH_MARKS[0] <= whole[-1] <= _HIGH_MARKS[1]:
        whole, hold = whole[:-1], whole[-1]
    return _MARKS.sub(_join, whole), hold


def _join(match: re.Match[str]) -> str:
    high, low = match.groups()
    if high is None:
        return "\ufffd"
    return chr(0x10000 + ((ord(high) - _FIRST_MARK) << 10) + (ord(low) - _FIRST_MARK - 0x400))
