"""Server-sent events out of bytes: the reader that every HTTP provider shares.

Pure: bytes go in as they arrive, whole events come out, and any way of cutting the bytes
gives the same events. Framing is done on bytes, so that a UTF-8 character split between two
reads is never looked at before it is whole. The rules are those of the WHATWG HTML standard,
9.2.6 (https://html.spec.whatwg.org/multipage/server-sent-events.html), with two differences
made on purpose: `id` and `retry` are ignored, because no model's provider uses them, and
`end` gives out an event whose closing blank line never came, because several omit it.
"""

import msgspec

from midstream.messages.errors import StreamFormatError

EVENT_LIMIT_BYTES = 16 * 1024 * 1024
"""The largest event that is kept in memory. The largest ones known are final response
objects with a whole document in them, well under a megabyte."""

_BOM = b"\xef\xbb\xbf"
_LF = 0x0A
_COLON = 0x3A


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One event. `name` is empty when the stream gave none; `data` is UTF-8 text, its lines
    joined with a line feed."""

    name: str
    data: bytes


class SseReader:
    """Reads one stream. `comments` counts the comment lines seen, which are signs of life."""

    def __init__(self, limit_bytes: int = EVENT_LIMIT_BYTES) -> None:
        self.comments = 0
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._bom_left = _BOM
        self._after_cr = False
        self._partial: list[bytes] = []
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that `data` completed.

        Raises StreamFormatError when an event is larger than the limit.
        """
        if self._bom_left:
            data = self._without_bom(data)
        if self._after_cr and data:
            if data[0] == _LF:
                data = data[1:]
            self._after_cr = False
        if not data:
            return []
        lines = data.splitlines()
        if data.endswith((b"\n", b"\r")):
            self._after_cr = data.endswith(b"\r")
            rest = b""
        else:
            rest = lines.pop()
        if lines and self._partial:
            self._partial.append(lines[0])
            lines[0] = b"".join(self._partial)
            self._partial.clear()
        if rest:
            self._partial.append(rest)
        events = self._read_lines(lines)
        self._held_bytes += len(data)
        if self._held_bytes > self._limit_bytes:
            raise StreamFormatError(f"an event is larger than {self._limit_bytes} bytes")
        return events

    def end(self) -> SseEvent | None:
        """The event that the stream ended in, if there is one; call it once, at the end."""
        line = self._bom_start() + b"".join(self._partial)
        self._partial.clear()
        self._read_lines([line] if line else [])
        events = self._read_lines([b""])
        return events[0] if events else None

    def _read_lines(self, lines: list[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        for line in lines:
            if not line:
                if self._data:
                    data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    events.append(SseEvent(self._name.decode("utf-8", "replace"), data))
                    self._data = []
                self._name = b""
                self._held_bytes = 0
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif line[0] == _COLON:
                self.comments += 1
            else:
                self._read_field(line)
        return events

    def _read_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"event":
            self._name = value.removeprefix(b" ")
        elif name == b"data":
            self._data.append(value.removeprefix(b" "))

    def _without_bom(self, data: bytes) -> bytes:
        """`data` without its part of a byte order mark at the very start of the stream."""
        expected = self._bom_left
        if data.startswith(expected):
            self._bom_left = b""
            return data[len(expected) :]
        if expected.startswith(data):
            self._bom_left = expected[len(data) :]
            return b""
        start = self._bom_start()
        return start + data

    def _bom_start(self) -> bytes:
        """What was taken for the start of a byte order mark and is none."""
        taken = len(_BOM) - len(self._bom_left) if self._bom_left else 0
        self._bom_left = b""
        return _BOM[:taken]
