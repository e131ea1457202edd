"""What the three protocols of the gateway have in common: the parts that each one supplies.

A `Wire` is one protocol: how its stream is decoded, how it says that something failed, how
a conversation is continued after a cut, how a stream becomes one JSON answer. Its `Reframer`
turns the stream of a later attempt into the rest of the message that the client is reading.
All pure: bytes and decoded JSON in, bytes out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec

from midstream.messages.conversation import AnyItem
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.usage import Usage
from midstream.providers.sse import SseEvent
from midstream.providers.stream_parser import StreamDecoder

Json = dict[str, Any]

CALL_RUNS_LATER = (
    "This call was handed on and is being run; its result comes in a later message. "
    "Do not make it again."
)
"""Stands for the result of a call that went out before the answer was cut."""


class Reframer(Protocol):
    """Knows what the client has read of one message, and goes on with it.

    Order of use: `note` each event that went out unchanged; then, for each attempt that is
    over, `cut` or `follow`, and `reframe` each event of the one that comes next, and
    `finish` when that is complete.
    """

    def note(self, event: SseEvent) -> None: ...

    def cut(self, spent: Usage) -> bytes:
        """Close what is open. `spent` is what the aborted attempt has cost."""
        ...

    def without_ending(self, event: SseEvent) -> bytes:
        """One of the events with which a reply ends, as a part of a message that goes on."""
        ...

    def follow(self, spent: Usage) -> bytes:
        """The reply is complete but for its ending, and has cost `spent`. One more reply
        comes in the same message."""
        ...

    def reframe(self, event: SseEvent) -> bytes:
        """The event as a part of the client's message; empty if it has no place there."""
        ...

    def end_as(self, event: SseEvent) -> bytes:
        """One of the events with which an earlier reply ended, as the end of the message.
        What that reply has cost was counted when it was followed."""
        ...

    def finish(self) -> bytes:
        """What ends the client's message, when the last attempt is complete."""
        ...

    def fail(self, failure: ProviderFailure) -> bytes:
        """The protocol's own error event."""
        ...

    @property
    def aliases(self) -> dict[str, str]:
        """Ids under which the client may come back with what the upstream knows by other
        ids; an empty one is of something that the upstream has not kept."""
        ...


class Assembler(Protocol):
    """Makes the one JSON answer out of the events that a streaming client would read."""

    def take(self, event: SseEvent) -> None: ...

    def answer(self) -> Json | None:
        """The answer; None if the stream had none."""
        ...


class Wire(Protocol):
    """One protocol. `format` is its name in conversations, `provider` in records."""

    format: str
    keep_alive: bytes

    def decoder(self) -> StreamDecoder: ...

    def reframer(self) -> Reframer: ...

    def assembler(self) -> Assembler: ...

    def continued(self, body: Json, items: Sequence[AnyItem]) -> Json:
        """The request for the next attempt: `body` with `items` behind its conversation."""
        ...

    def streaming(self, body: Json) -> Json:
        """The same request, answered by a stream."""
        ...

    def whole(self, answer: Json) -> list[SseEvent]:
        """A JSON answer as the events of a stream that says the same, to be watched."""
        ...

    def error_body(self, failure: ProviderFailure) -> Json:
        """The JSON of an error answer."""
        ...


def sse(data: object, name: str = "") -> bytes:
    """One event as bytes."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


def decoded(event: SseEvent) -> Json | None:
    """The JSON object of an event; None for what is none, such as `[DONE]`."""
    try:
        value: object = msgspec.json.decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return cast(Json, value) if isinstance(value, dict) else None


def raw(event: SseEvent) -> bytes:
    """The event as it came, as far as an event remembers."""
    head = f"event: {event.name}\n".encode() if event.name else b""
    return head + b"".join(b"data: " + line + b"\n" for line in event.data.split(b"\n")) + b"\n"


def added(figures: Mapping[str, Any], more: Mapping[str, int]) -> Json:
    """Usage figures with `more` added to those of the same name, and new ones as they are."""
    total = dict(figures)
    for name, count in more.items():
        known = total.get(name)
        total[name] = count + (known if isinstance(known, int) else 0)
    return total


ANTHROPIC_ERRORS = {
    FailureKind.RATE_LIMITED: "rate_limit_error",
    FailureKind.OVERLOADED: "overloaded_error",
    FailureKind.AUTH: "authentication_error",
    FailureKind.INVALID_REQUEST: "invalid_request_error",
    FailureKind.TIMEOUT: "timeout_error",
}
"""platform.claude.com/docs/en/api/errors; anything else is `api_error`."""

OPENAI_ERRORS = {
    FailureKind.RATE_LIMITED: "rate_limit_exceeded",
    FailureKind.OVERLOADED: "server_is_overloaded",
    FailureKind.AUTH: "invalid_api_key",
    FailureKind.INVALID_REQUEST: "invalid_request_error",
}
"""platform.openai.com/docs/guides/error-codes; anything else is `server_error`."""


def openai_error(failure: ProviderFailure) -> Json:
    """The error object of both OpenAI protocols."""
    word = OPENAI_ERRORS.get(failure.kind, "server_error")
    return {"message": failure.message, "type": word, "param": None, "code": word}


def protocol_failure(message: str) -> ProviderFailure:
    """The upstream did not keep to its protocol."""
    return ProviderFailure(FailureKind.PROTOCOL, message)
