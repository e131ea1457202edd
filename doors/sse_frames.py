"""Server-sent events with the very bytes that they came in, for whoever passes them on.

`providers/sse.py` reads events and forgets their bytes; a gateway has to forward them as
they are. A frame is everything up to and including a blank line: one event, a comment, or
nothing but the blank line. Joined, the frames are the stream, however it was cut. Pure.
"""

import re
from typing import NamedTuple

from midstream.messages.errors import StreamFormatError
from midstream.providers.sse import EVENT_LIMIT_BYTES, SseEvent, SseReader

_LINE_END = rb"(?:\r\n|\n|\r(?!\n))"
_FRAME_END = re.compile(_LINE_END + _LINE_END)
_USUAL = re.compile(rb"(?:event: ([^\r\n]*)\n)?data: ([^\r\n]*)\n\n")
"""A frame as providers write almost all of them, which needs no reading line by line."""
_LONGEST_END = 4
"""Bytes of a blank line at most: what of it has come may be completed by the next read."""


class Frame(NamedTuple):
    """Bytes of the stream, and the event in them if there is one."""

    raw: bytes
    event: SseEvent | None

    @property
    def is_broken_off(self) -> bool:
        """Whether it is the last of a stream that broke off in the middle of a line."""
        return bool(self.raw) and not self.raw.endswith((b"\n", b"\r"))

    @property
    def lacks(self) -> bytes:
        """What has to come before another frame can: nothing, unless the stream ended in this one
        without a blank line. One too many does no harm."""
        if self.raw.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")):
            return b""
        return b"\n" if self.raw.endswith(b"\n") else b"\n\n"


class FrameReader:
    """Cuts one stream into frames."""

    def __init__(self, limit_bytes: int = EVENT_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._reader = SseReader(limit_bytes)
        self._rest = b""
        self._searched = 0
        self._begun = False

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completed. Raises StreamFormatError for one that is larger
        than the limit."""
        data = self._rest + data if self._rest else data
        frames: list[Frame] = []
        start = 0
        searched = self._searched
        while start < len(data):
            usual = _USUAL.match(data, start) if self._begun and not searched else None
            if usual is not None:
                name = (usual[1] or b"").decode("utf-8", "replace")
                frames.append(Frame(usual[0], SseEvent(name, usual[2])))
                start = usual.end()
                continue
            end = _FRAME_END.search(data, searched or start)
            if end is None:
                break
            frames.append(self._frame(data[start : end.end()]))
            start = end.end()
            searched = 0
        self._rest = data[start:]
        self._searched = max(0, len(self._rest) - _LONGEST_END)
        if len(self._rest) > self._limit_bytes:
            raise StreamFormatError(f"an event is larger than {self._limit_bytes} bytes")
        return frames

    def end(self) -> Frame:
        """What the stream ended in without a blank line; often nothing."""
        rest, self._rest = self._rest, b""
        events = self._reader.feed(rest)
        return Frame(rest, events[0] if events else self._reader.end())

    def _frame(self, raw: bytes) -> Frame:
        self._begun = True  # what stands at the very beginning only the reader knows
        events = self._reader.feed(raw)
        return Frame(raw, events[0] if events else None)
