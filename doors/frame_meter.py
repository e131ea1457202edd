"""Counts the frames of a websocket as their bytes come in, before anybody unpacks them.

Sans-I/O: bytes in, numbers out. trio-websocket bounds the size of a message, but not how
many frames it is cut into, nor how many pings come; each costs work and, in a message
without end, memory. This sees only headers (RFC 6455, section 5.2) and keeps no payload.
"""

import re
from collections.abc import Iterator

from midstream.messages.errors import MidstreamError

HEAD_END = re.compile(rb"\n\r?\n")
"""Ends the opening handshake, as h11 reads it; frames follow."""

_HEAD_END_BYTES = 3

LARGEST_MESSAGE_PARTS = 1_024
"""Frames of one message; a peer that cuts a megabyte into kilobytes needs as many."""

_CONTROL = 0x08
_FIN = 0x80


class TooManyParts(MidstreamError):
    """A message goes on and on."""


class FrameMeter:
    """Feed it everything that arrives on a connection, in pieces of any size.

    `parts_limit` is how many frames one message may have.
    """

    def __init__(self, parts_limit: int = LARGEST_MESSAGE_PARTS) -> None:
        self._parts_limit = parts_limit
        self._parts = 0
        self._head = b""
        """The last bytes of the handshake, in which its end may have begun."""
        self._in_handshake = True
        self._header = bytearray()
        self._payload_left = 0

    def feed(self, data: bytes) -> int:
        """How many frames begin in `data`. Raises `TooManyParts`."""
        if self._in_handshake:
            data = self._skip_handshake(data)
        return sum(1 for _ in self._headers(data))

    def _skip_handshake(self, data: bytes) -> bytes:
        text = self._head + data
        end = HEAD_END.search(text)
        if end is None:
            self._head = text[1 - _HEAD_END_BYTES :]
            return b""
        self._in_handshake = False
        self._head = b""
        return text[end.end() :]

    def _headers(self, data: bytes) -> Iterator[None]:
        position = 0
        while position < len(data):
            skipped = min(self._payload_left, len(data) - position)
            self._payload_left -= skipped
            position += skipped
            if self._payload_left or position == len(data):
                return
            self._header.append(data[position])
            position += 1
            if len(self._header) == _header_bytes(self._header):
                self._count(self._header[0])
                self._payload_left = _payload_bytes(self._header)
                self._header.clear()
                yield

    def _count(self, first: int) -> None:
        if first & _CONTROL:
            return
        self._parts = 0 if first & _FIN else self._parts + 1
        if self._parts > self._parts_limit:
            raise TooManyParts(f"a message has more than {self._parts_limit} parts")


def _header_bytes(header: bytearray) -> int:
    """How long this header is, as far as one can tell; more than there is, if not."""
    if len(header) < 2:
        return 2
    length = header[1] & 0x7F
    extended = {126: 2, 127: 8}.get(length, 0)
    mask = 4 if header[1] & 0x80 else 0
    return 2 + extended + mask


def _payload_bytes(header: bytearray) -> int:
    length = header[1] & 0x7F
    if length == 126:
        return int.from_bytes(header[2:4], "big")
    if length == 127:
        return int.from_bytes(header[2:10], "big")
    return length
