"""JSON objects out of bytes, one a line: the reader for what command-line agents print.

Pure: bytes go in as they arrive, whole objects come out, and any way of cutting the bytes
gives the same objects. Framing is done on bytes, so that a UTF-8 character split between two
reads is never looked at before it is whole, and `end` gives out a last line that was never
finished with a line feed (spec/animator.md B14). Tolerant, because programs mix warnings into
their output: what is no JSON object is skipped and counted (8.1). A line that grows over the
limit is dropped as a whole; memory stays bounded by it.
"""

import json
from typing import Any, NoReturn, cast

import msgspec

from midstream.messages.well_formed import well_formed_tree

LINE_LIMIT_BYTES = 32 * 1024 * 1024
"""The longest line that is kept. The longest that are known hold an image of a few megabytes
as the result of a tool."""

JsonObject = dict[str, Any]

_OBJECTS = msgspec.json.Decoder(dict[str, Any])


class NdjsonReader:
    """Reads one output. `skipped` counts the lines that were no JSON object, blank ones aside,
    `oversized` those over the limit."""

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self.skipped = 0
        self.oversized = 0
        self._limit_bytes = limit_bytes
        self._partial: list[bytes] = []
        self._held_bytes = 0
        self._dropping = False

    def feed(self, data: bytes) -> list[JsonObject]:
        """The objects that `data` completed."""
        *lines, rest = data.split(b"\n")
        objects: list[JsonObject] = []
        for line in lines:
            self._hold(line)
            if (found := self._finish_line()) is not None:
                objects.append(found)
        self._hold(rest)
        return objects

    def end(self) -> list[JsonObject]:
        """The object in a last line without its line feed; call it once, at the end."""
        found = self._finish_line()
        return [] if found is None else [found]

    def _hold(self, piece: bytes) -> None:
        """More of the line that is being read."""
        if self._dropping or not piece:
            return
        self._held_bytes += len(piece)
        if self._held_bytes > self._limit_bytes:
            self._dropping = True
            self._partial.clear()
        else:
            self._partial.append(piece)

    def _finish_line(self) -> JsonObject | None:
        line = b"".join(self._partial).strip()
        if self._dropping:
            self.oversized += 1
        self._partial.clear()
        self._held_bytes = 0
        self._dropping = False
        if not line:
            return None
        found = parse_line(line)
        if found is None:
            self.skipped += 1
        return found


def parse_line(line: bytes) -> JsonObject | None:
    """The JSON object in one line, with text that every store takes; None if there is none."""
    try:
        return _OBJECTS.decode(line)
    except msgspec.ValidationError:
        return None  # JSON, but no object
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_leniently(line)


def _parse_leniently(line: bytes) -> JsonObject | None:
    """For bytes that are no UTF-8, and for escapes of half a character (`\\ud83d`)."""
    try:
        value: object = json.loads(line.decode("utf-8", "replace"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return cast(JsonObject, well_formed_tree(value)) if isinstance(value, dict) else None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
