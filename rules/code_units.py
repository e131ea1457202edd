"""UTF-16 code units in Python strings: how a text looks to the ECMAScript dialect.

JavaScript without the `u` flag counts and matches code units, so a character above U+FFFF
is two of them. Python strings hold code points. `units` rewrites a text for matching;
`code_point_offset` takes an offset of the rewritten text back.
"""

import re

_ASTRAL = re.compile("[\U00010000-\U0010ffff]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def units(text: str) -> str:
    """`text` with each character above U+FFFF replaced by its two surrogates.

    A text without such characters comes back as it is, without a copy.
    """
    if text.isascii() or _ASTRAL.search(text) is None:
        return text
    return _ASTRAL.sub(_surrogates, text)


def code_point_offset(unit_text: str, offset: int) -> int:
    """The offset in characters for `offset` in units of `unit_text` (made by `units`).

    An offset between the two halves of a character is taken back to its start.
    """
    before = unit_text[:offset]
    if before.isascii():
        return offset
    pairs = sum(1 for _ in _PAIR.finditer(before))
    inside = _PAIR.match(unit_text, offset - 1) is not None if offset else False
    return offset - pairs - inside


def _surrogates(found: re.Match[str]) -> str:
    rest = ord(found.group()) - 0x10000
    return chr(0xD800 + (rest >> 10)) + chr(0xDC00 + (rest & 0x3FF))
