"""Bytes of one stream in, stream messages out: reader, decoder and writer put together.

Whatever comes in, nothing is raised: bytes that do not follow their format end the stream
with a `StreamFailed` of the class PROTOCOL, and so do bytes that end before the terminal
event. Both the HTTP providers and the replay of a recording read through this class.
"""

from typing import Protocol, TypeVar

import msgspec

from midstream.messages.errors import StreamFormatError
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.stream import AnyStreamMessage
from midstream.providers.failures import classify_error, decode_lax
from midstream.providers.sse import SseEvent, SseReader
from midstream.providers.stream_writer import StreamWriter
from midstream.providers.surrogates import mark_halves

T = TypeVar("T")


_UNREADABLE = (StreamFormatError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What bytes that do not follow their format end in; the last one by nesting too deep."""


class StreamDecoder(Protocol):
    """One wire format: events of one stream in, what they say to `writer` out.

    `feed` may raise StreamFormatError, or the DecodeError of msgspec; `end` says what the end
    of the bytes means.
    """

    writer: StreamWriter

    @property
    def ending(self) -> bool:
        """Whether the terminal event was seen, though more may follow (usage, a second
        message), so that waiting long for the end of the bytes makes no sense."""
        ...

    @property
    def stopping(self) -> bool:
        """Whether the model is known to have stopped, and why; what comes from then on is
        the end of its message."""
        ...

    def feed(self, event: SseEvent) -> None: ...

    def end(self) -> None: ...


class StreamParser:
    """Reads one stream from beginning to end."""

    def __init__(self, decoder: StreamDecoder) -> None:
        self._decoder = decoder
        self._writer = decoder.writer
        self._reader = SseReader()

    @property
    def over(self) -> bool:
        """Whether the terminal message was given out."""
        return self._writer.over

    @property
    def ending(self) -> bool:
        return self._decoder.ending

    def feed(self, data: bytes) -> list[AnyStreamMessage]:
        """The messages that `data` completed; a lone `Ping` if it held but comments."""
        comments = self._reader.comments
        try:
            for event in self._reader.feed(data):
                if not self._writer.over:
                    self._decoder.feed(event)
        except _UNREADABLE as error:
            self._writer.fail(_protocol(str(error)))
        messages = self._writer.take()
        if not messages and self._reader.comments > comments and not self._writer.over:
            self._writer.ping()
            return self._writer.take()
        return messages

    def end(self) -> list[AnyStreamMessage]:
        """The bytes are over: the last messages, ending with a terminal one."""
        event = self._reader.end()
        try:
            if event and not self._writer.over:
                self._decoder.feed(event)
        except _UNREADABLE:
            self._writer.fail(_protocol("the stream ended in the middle of an event"))
        if not self._writer.over:
            self._decoder.end()
        self._writer.fail(_protocol("the stream ended without its terminal event"))
        return self._writer.take()

    def fail(self, failure: ProviderFailure) -> list[AnyStreamMessage]:
        """The bytes will not come (connection lost, timeout).

        A stream whose terminal event was seen is finished all the same.
        """
        if self.ending:
            return self.end()
        self._writer.fail(failure)
        return self._writer.take()


def decode_event(decoder: "msgspec.json.Decoder[T]", data: bytes, writer: StreamWriter) -> T:
    """The JSON of one event.

    Text that is not UTF-8 is read with replacement characters, as the SSE standard says, and
    half characters are marked for the writer to join. Raises StreamFormatError.
    """
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as first:
        if isinstance(first, msgspec.ValidationError):
            raise StreamFormatError(f"an event of the stream is malformed: {first}") from first
        text = data.decode("utf-8", "replace").encode()
        writer.halves_marked = True
        try:
            return decoder.decode(mark_halves(text))
        except msgspec.DecodeError as error:
            raise StreamFormatError(f"an event of the stream is not JSON: {error}") from error


class _Named(msgspec.Struct):
    type: str = ""


_NAMES = msgspec.json.Decoder(_Named)


def decode_known(
    decoder: "msgspec.json.Decoder[T]",
    event: SseEvent,
    writer: StreamWriter,
    known: frozenset[str],
) -> T | None:
    """The JSON of one event, or None for an event that one need not understand.

    The types of events that are in `known` must decode. What another type has in its fields
    is its own affair, even where a field has the name of one that is read here; and an
    `error` that has an unexpected shape is still an error, which the writer is told.
    """
    try:
        return decode_event(decoder, event.data, writer)
    except StreamFormatError:
        try:
            event_type = _NAMES.decode(event.data).type or event.name
        except (msgspec.DecodeError, UnicodeDecodeError):
            event_type = event.name
        if event_type == "error":
            writer.fail(classify_error(decode_lax(event.data)))
        elif not event_type or event_type in known:
            raise
        return None


def _protocol(message: str) -> ProviderFailure:
    return ProviderFailure(FailureKind.PROTOCOL, message)
