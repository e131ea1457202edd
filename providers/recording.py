"""Recorded streams as files: what they hold, which format it is, how it is cut into reads.

Pure, but for `record`, which writes a file. Three kinds of file are understood:

- `.sse`: the bytes of a response body. A piece is one event with its blank line.
- `.chunks.jsonl`: one data payload a line, without the SSE framing.
- a recording of midstream's own, which knows when each read came: JSON Lines, the first of
  them `{"midstream_recording": 1}`, then for each read `{"at_s": 0.25, "text": "..."}`, where
  `at_s` counts from the request, and `"base64"` stands instead of `"text"` for bytes that end
  within a character. `encode_read` writes these lines; `record` puts them into a file.
"""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from midstream.messages.errors import StreamFormatError
from midstream.providers.sse import SseReader

Tap = Callable[[float, bytes], None]
"""What is told of each read of a stream: seconds since the request, and the bytes."""

RECORDING_HEAD = b'{"midstream_recording":1}\n'


class Piece(NamedTuple):
    """Bytes that arrive at once. `at_s` is seconds since the request, None if nobody knows."""

    at_s: float | None
    data: bytes


class Recording(NamedTuple):
    """A stream to play. `format` is its wire format."""

    format: str
    pieces: tuple[Piece, ...]


class _Read(msgspec.Struct, omit_defaults=True):
    at_s: float
    text: str | None = None
    base64: str | None = None


_READS = msgspec.json.Decoder(_Read)


def parse_recording(data: bytes, format: str | None = None) -> Recording:
    """The recording in a file's bytes, its format found out unless given.

    Raises StreamFormatError.
    """
    if data.startswith(RECORDING_HEAD[:22]):
        pieces = tuple(_parse_read(line) for line in data.splitlines()[1:] if line.strip())
    elif data.lstrip()[:1] == b"{":
        lines = (line for line in data.splitlines() if line.strip())
        pieces = tuple(Piece(None, b"data: " + line + b"\n\n") for line in lines)
    else:
        pieces = tuple(Piece(None, piece) for piece in _events(data))
    return Recording(format or detect_format(pieces), pieces)


def detect_format(pieces: tuple[Piece, ...]) -> str:
    """The wire format of a stream, told by its first event that tells it.

    Raises StreamFormatError for a stream of none that midstream knows.
    """
    reader = SseReader()
    events = [event for piece in pieces for event in reader.feed(piece.data)]
    last = reader.end()
    for event in [*events, *([last] if last else [])]:
        if found := _format_of(event.data):
            return found
    raise StreamFormatError("no event tells which wire format the stream has; name it")


def encode_read(at_s: float, data: bytes) -> bytes:
    """One line of a recording."""
    try:
        read = _Read(round(at_s, 6), text=data.decode())
    except UnicodeDecodeError:
        read = _Read(round(at_s, 6), base64=base64.b64encode(data).decode())
    return msgspec.json.encode(read) + b"\n"


def record(directory: Path, stem: str = "stream") -> Callable[[], Tap]:
    """The `tap` of an HTTP provider that keeps its streams as recordings.

    The streams go to `stem-1.recording.jsonl`, `stem-2...` in `directory`, line by line, so
    that one that is cut is there as far as it came.
    """
    number = 0

    def begin() -> Tap:
        nonlocal number
        number += 1
        path = directory / f"{stem}-{number}.recording.jsonl"
        path.write_bytes(RECORDING_HEAD)

        def keep(at_s: float, data: bytes) -> None:
            with path.open("ab") as file:
                file.write(encode_read(at_s, data))

        return keep

    return begin


def _parse_read(line: bytes) -> Piece:
    try:
        read = _READS.decode(line)
    except msgspec.DecodeError as error:
        raise StreamFormatError(f"a line of the recording is malformed: {error}") from error
    if read.base64 is not None:
        return Piece(read.at_s, base64.b64decode(read.base64))
    return Piece(read.at_s, (read.text or "").encode())


def _events(data: bytes) -> list[bytes]:
    """The bytes cut behind each blank line; joined they are what they were."""
    pieces: list[bytes] = []
    start = end = 0
    for line in data.splitlines(keepends=True):
        end += len(line)
        if not line.strip(b"\r\n"):
            pieces.append(data[start:end])
            start = end
    if start < len(data):
        pieces.append(data[start:])
    return pieces


def _format_of(payload: bytes) -> str | None:
    try:
        value: object = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(value, dict):
        return None
    event = cast(dict[str, Any], value)
    kind = event.get("type")
    if "choices" in event:
        return "openai_chat"
    if isinstance(kind, str) and kind.startswith("response."):
        return "openai_responses"
    if kind == "error":
        return "openai_responses" if "sequence_number" in event else "anthropic"
    if isinstance(kind, str) and kind.startswith(("message_", "content_block_")):
        return "anthropic"
    return "openai_chat" if "error" in event else None
