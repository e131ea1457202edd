"""The items after the text of a stopMessage directive: `,3`, `,ai:on`.

Part of the grammar of `directive.py` (spec/stop_message.md 2.2, decision 2), which is the
only caller. Items that cannot be read are ignored with a warning.
"""

import re
from enum import StrEnum

import msgspec

from midstream.messages.marker import BLANK, SEPARATOR, SEPARATORS

REMARKABLE_MAX_REPEATS = 100
"""Above this N is honoured, with a warning (decision 2)."""
_LARGEST_MAX_REPEATS = 999_999_999
_MAX_DIGITS = 9

_SEPARATOR = re.compile(SEPARATOR)
_ITEM = re.compile(
    f"{SEPARATOR}{BLANK}*(?:"
    rf"ai{BLANK}*[:=：]{BLANK}*(?P<ai>on|off){BLANK}*(?={SEPARATOR}|$)"
    f"|(?P<other>[^{SEPARATORS}]*))",
    re.IGNORECASE,
)
_INTEGER = re.compile(r"(?P<sign>[+-]?)0*(?P<digits>[0-9]*)")
_WHOLE_ITEM = re.compile(f"[+-]?[0-9]+|ai{BLANK}*={BLANK}*(?:on|off)", re.IGNORECASE)


class AiMode(StrEnum):
    """The reference's `ai:on|off` item; kept with the state."""

    ON = "on"
    OFF = "off"


class Items(msgspec.Struct, frozen=True):
    """What the items say; None where they do not."""

    max_repeats: int | None
    ai_mode: AiMode | None
    warnings: tuple[str, ...]


def parse_tail(tail: str) -> Items:
    """The items after the value; the last valid one of each kind wins."""
    max_repeats: int | None = None
    ai_mode: AiMode | None = None
    warnings: list[str] = []
    for item in _ITEM.finditer(tail):
        if item["ai"]:
            ai_mode = AiMode(item["ai"].lower())
            continue
        other = trim(item["other"])
        number = _repeats(other)
        if number:
            max_repeats = number
        elif other:
            warnings.append("invalid item after the stopMessage text ignored")
    if max_repeats and max_repeats > REMARKABLE_MAX_REPEATS:
        warnings.append(f"stopMessage may repeat {max_repeats} times")
    return Items(max_repeats, ai_mode, tuple(warnings))


def _repeats(item: str) -> int:
    """The integer that `item` begins with if it can be an N, else 0.

    ASCII digits only; beyond nine digits it is as good as unlimited.
    """
    number = _INTEGER.match(item)
    if not number or number["sign"] == "-" or not number["digits"]:
        return 0
    return int(number["digits"]) if len(number["digits"]) <= _MAX_DIGITS else _LARGEST_MAX_REPEATS


def fullwidth_tail(text: str) -> int:
    """Offset of the first `，` that only items follow; the length of the text without one."""
    first = end = len(text)
    half_of_ai = False
    for separator in reversed(list(_SEPARATOR.finditer(text))):
        piece = trim(text[separator.end() : end]).lower()
        if half_of_ai:
            if piece != "ai":
                break
            half_of_ai = False
        elif piece in (AiMode.ON, AiMode.OFF):
            half_of_ai = True
        elif not _WHOLE_ITEM.fullmatch(piece):
            break
        end = separator.start()
        if separator[0] == "，" and not half_of_ai:
            first = end
    return first


def trim(text: str) -> str:
    """Without white space and zero-width characters at both ends."""
    start, end = 0, len(text)
    while start < end and _is_blank(text[start]):
        start += 1
    while start < end and _is_blank(text[end - 1]):
        end -= 1
    return text[start:end]


def _is_blank(character: str) -> bool:
    return character.isspace() or character in "\u200b\u200c\u200d\u2060\ufeff"
