"""What a client's request says when its body came compressed (RFC 9110, 8.4).

Codex sends zstd where it is logged in with ChatGPT. Rules, directives and the identity of the
session need the text; the bytes go on as they came where nothing of it has to change.
"""

import sys
import zlib
from collections.abc import Sequence
from typing import Protocol

import trio

from midstream.doors.gateway_client import BODY_LIMIT_BYTES, Headers
from midstream.doors.gateway_protocols import json_object
from midstream.doors.gateway_wire import Json
from midstream.messages.errors import MidstreamError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CODINGS = ("gzip", "deflate", "zstd")
"""Those that can be read. `br` is left out: no client was seen to send it."""

ZSTD_WINDOW_LOG = 23
"""8 MB, of which no sender may use more (RFC 9659, 3)."""


class UnreadableBody(MidstreamError):
    """Why a request cannot be read, with the status of the answer that says so."""

    def __init__(self, status: int, problem: str) -> None:
        self.status = status
        super().__init__(problem)

    @property
    def headers(self) -> Headers:
        """Of that answer (RFC 9110, 15.5.16)."""
        return [(b"accept-encoding", ", ".join(CODINGS).encode())] if self.status == 415 else ()


async def object_of_body(raw: bytes, headers: Headers) -> Json | None:
    """The JSON object that a body is; None if it is none. One that is compressed is unpacked
    in a worker thread.

    Raises `UnreadableBody`.
    """
    coding = _coding(headers)
    if coding is None or not raw:
        return json_object(raw)
    return json_object(await trio.to_thread.run_sync(unpack, raw, coding))


def unpack(raw: bytes, coding: str, limit_bytes: int = BODY_LIMIT_BYTES) -> bytes:
    """A body without its coding, one of `CODINGS`.

    Raises `UnreadableBody`, also for one that is larger than `limit_bytes` when it is
    unpacked, of which no more than that is ever in memory.
    """
    try:
        return _unpack(_decompressor(coding, raw), raw, limit_bytes)
    except (zlib.error, zstd.ZstdError):
        problem = f"the request says content-encoding: {coding}, and cannot be read as that"
        raise UnreadableBody(400, problem) from None


def without_coding(headers: Headers) -> Headers:
    """The headers as they go with a body that has none."""
    return [(name, value) for name, value in headers if name.lower() != b"content-encoding"]


class _Decompressor(Protocol):
    """What zlib and zstd have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _coding(headers: Headers) -> str | None:
    """The coding of a body; None without one. Raises `UnreadableBody` for one that cannot be
    read."""
    codings = _codings(headers)
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in CODINGS:
        raise UnreadableBody(
            415,
            f"midstream cannot read a request with content-encoding: {', '.join(codings)}; "
            f"send it uncompressed, or as one of {', '.join(CODINGS)}",
        )
    return codings[0]


def _codings(headers: Headers) -> Sequence[str]:
    words = (
        word.strip().decode("latin-1").lower()
        for name, value in headers
        if name.lower() == b"content-encoding"
        for word in value.split(b",")
    )
    return [word.removeprefix("x-") for word in words if word not in ("", "identity")]


def _decompressor(coding: str, raw: bytes) -> _Decompressor:
    if coding == "zstd":
        window: dict[int, int] = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}
        return zstd.ZstdDecompressor(options=window)
    if coding == "gzip":
        return zlib.decompressobj(zlib.MAX_WBITS | 16)
    # Some senders leave out the header that the standard asks for (RFC 9110, 8.4.1.2).
    has_header = len(raw) > 1 and raw[0] & 15 == 8 and int.from_bytes(raw[:2], "big") % 31 == 0
    return zlib.decompressobj(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)


def _unpack(decompressor: _Decompressor, raw: bytes, limit_bytes: int) -> bytes:
    """One part; clients send no more, and a thousand small ones would cost too much."""
    data = decompressor.decompress(raw, limit_bytes + 1)
    if len(data) > limit_bytes:
        raise UnreadableBody(413, f"the request is larger than {limit_bytes} bytes")
    if not decompressor.eof:
        raise UnreadableBody(400, "the compressed request ends too early")
    if decompressor.unused_data:
        raise UnreadableBody(400, "something stands behind the compressed request")
    return data
