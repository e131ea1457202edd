"""What goes over the websocket, version 1: the frames of clients and those of the server.

A message of the websocket is one frame. Both subprotocols carry the same frames: JSON as
text, MessagePack as binary. Fields that a reader does not know are ignored, so that either
side can be newer. docs/websocket.md describes each frame with an example, and
docs/websocket.schema.json is made from these types. Pure.
"""

from enum import IntEnum, StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from midstream.messages.conversation import ToolSpec
from midstream.messages.events import AnyEvent
from midstream.messages.record import SessionRecord, SessionStatus

RequestId = Annotated[
    int, Meta(ge=0, le=2**53 - 1, description="Chosen by the client; the answer carries it.")
]
Sequence = Annotated[int, Meta(ge=0, le=2**53 - 1, description="The number of an event.")]
Epoch = Annotated[
    int, Meta(ge=1, le=2**53 - 1, description="Which owner of the session gave the number.")
]
SessionId = Annotated[str, Meta(min_length=1, max_length=128)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]

LARGEST_PAGE = 500
"""Sessions in one answer to `list`."""


class Capability(StrEnum):
    """What a client can do. Unknown names are ignored."""

    DELTAS = "deltas"
    """It shows text while it is written, and takes it back on `retracted`. A client without
    it gets no `text`, `thinking`, `tool_use` or `retracted`: the answer is the `output` of
    `session.ended`."""


DELTA_EVENTS = frozenset({"text", "thinking", "tool_use", "retracted"})
"""Tags of the events that only a client with `deltas` gets."""


class ErrorCode(StrEnum):
    """Why a request was not carried out."""

    BAD_FRAME = "bad_frame"
    """The message is no frame of this protocol; the connection goes on."""
    BAD_REQUEST = "bad_request"
    """The frame is one, but what it asks for makes no sense."""
    UNAUTHORIZED = "unauthorized"
    """The token is missing or wrong; the connection is closed."""
    UNKNOWN_SESSION = "unknown_session"
    BUSY = "busy"
    """The conversation is being answered by another session."""
    PAUSED = "paused"
    """The provider's quota is spent; nothing begins, and nothing was recorded."""
    GAP = "gap"
    """The events behind that number are not on record; `after` says from where they are."""
    TOO_MANY = "too_many"
    """A limit of this connection is reached."""
    STORE = "store"
    """The store could not be reached; try again."""
    INTERNAL = "internal"
    """A mistake of the server; its log has the details."""


class CloseCode(IntEnum):
    """Codes with which either side closes (RFC 6455, section 7.4; 4000 and up are ours)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    """The server stops. Come back, and resume."""
    PROTOCOL_ERROR = 1002
    """Bytes that are no websocket frames."""
    UNSUPPORTED = 1003
    """Text in a binary subprotocol, or binary in a text one."""
    NOT_UTF8 = 1007
    POLICY = 1008
    """Frames that are none of this protocol, again and again; or parts of a message without
    end."""
    TOO_BIG = 1009
    INTERNAL = 1011
    UNAUTHORIZED = 4401
    """The token is missing or wrong. Do not come back with the same."""
    NO_HELLO = 4408
    """`hello` did not come in time."""
    CROWDED_OUT = 4429
    """Too many connections that have not said `hello`; this one had waited longest."""


# --- from the client


class ClientFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Base of what a client says."""


class Hello(ClientFrame, frozen=True, kw_only=True, tag="hello"):
    """The first frame. `client` names the client over its connections: a request that is sent
    again under the same `client` and `id` is answered as the first time, and done once."""

    token: str | None = None
    capabilities: tuple[str, ...] = ()
    client: Annotated[str, Meta(min_length=16, max_length=64)] | None = None


class Request(ClientFrame, frozen=True, kw_only=True):
    """Base of what is answered with `ack` or `error`."""

    id: RequestId


class Submit(Request, frozen=True, kw_only=True, tag="submit"):
    """Hand in a prompt: what was typed, in segments. The session that answers it runs on by
    itself, whether or not anybody is connected.

    Without a `conversation` a new one begins. For calls of `tools` comes `tool.wanted`, to be
    answered with `tool_result`. With `follow` its events come without a `subscribe`.
    """

    segments: Annotated[
        tuple[dict[str, Any], ...],
        Meta(
            min_length=1,
            description="Each has a `kind`: text (content), paste (id, chars, lines, content) "
            "or file_ref (path).",
        ),
    ]
    conversation: Name | None = None
    model: Name | None = None
    system: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    follow: bool = True


class Interrupt(Request, frozen=True, kw_only=True, tag="interrupt"):
    """Let the model stop. What it has said stays in the conversation."""

    session: SessionId


class Cancel(Request, frozen=True, kw_only=True, tag="cancel"):
    """End a session as cancelled, whichever process it lives in."""

    session: SessionId
    reason: Annotated[str, Meta(max_length=1_000)] | None = None


class Subscribe(Request, frozen=True, kw_only=True, tag="subscribe"):
    """Send the events of a session behind number `after`, and then what follows, to its end.

    `epoch` is that of the event with this number; without it the newest is meant.
    """

    session: SessionId
    after: Sequence = 0
    epoch: Epoch | None = None


class Unsubscribe(Request, frozen=True, kw_only=True, tag="unsubscribe"):
    """Send no more of a session. It runs on. Events that are on their way may still come
    before the answer, and none after it."""

    session: SessionId


class ToolResult(Request, frozen=True, kw_only=True, tag="tool_result"):
    """Answer the call of a `tool.wanted`; `content` is text for the model."""

    session: SessionId
    call_id: Name
    content: str
    is_error: bool = False
    attempt: int | None = None


class List(Request, frozen=True, kw_only=True, tag="list"):
    """The sessions of the store, the newest first; `after` is the `next` of the last page."""

    statuses: tuple[SessionStatus, ...] = ()
    conversation: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=LARGEST_PAGE)] = 50
    after: tuple[str, str] | None = None


class Status(Request, frozen=True, kw_only=True, tag="status"):
    """The record of a session; without one, how the server is."""

    session: SessionId | None = None


class Ping(Request, frozen=True, kw_only=True, tag="ping"):
    """Is anybody there? For clients that cannot send pings of the websocket, as browsers."""


AnyRequest = (
    Submit | Interrupt | Cancel | Subscribe | Unsubscribe | ToolResult | List | Status | Ping
)
AnyClientFrame = Hello | AnyRequest


# --- results of requests


class Result(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """Base of what an `ack` says."""


class Submitted(Result, frozen=True, kw_only=True, tag="submitted"):
    """The prompt was taken. Whether and how it was answered, the events tell."""

    session: SessionId
    conversation: Name


class Told(Result, frozen=True, kw_only=True, tag="told"):
    """The session has been told. That it has ended, its events tell."""


class Subscribed(Result, frozen=True, kw_only=True, tag="subscribed"):
    """Events come from behind this place on.

    With `reset`, it is before the one asked for: the host that had said what lies between was
    lost, and it is not on record. Forget it.
    """

    session: SessionId
    epoch: Epoch
    after: Sequence
    reset: bool = False


class Unsubscribed(Result, frozen=True, kw_only=True, tag="unsubscribed"):
    """No more events of this session come."""

    session: SessionId


class Taken(Result, frozen=True, kw_only=True, tag="taken"):
    """Whether the result was taken. It is not, if the call does not wait for one."""

    taken: bool


class Listed(Result, frozen=True, kw_only=True, tag="listed"):
    """A page of records, without their `output`; `next` leads on, and is absent behind the
    last."""

    sessions: tuple[SessionRecord, ...]
    next: tuple[str, str] | None = None


class Record(Result, frozen=True, kw_only=True, tag="record"):
    """The record of a session."""

    session: SessionRecord


class ServerStatus(Result, frozen=True, kw_only=True, tag="server"):
    """How the server is. While the provider's quota is spent, `paused_until` says until when
    nothing begins."""

    live_sessions: int
    connections: int
    subscriptions: int
    dispatchable: bool
    paused_until: str | None = None


class Pong(Result, frozen=True, kw_only=True, tag="pong"):
    """Somebody is."""


AnyResult = (
    Submitted | Told | Subscribed | Unsubscribed | Taken | Listed | Record | ServerStatus | Pong
)


# --- from the server


class ServerFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Base of what the server says."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection is bounded by. A client that sends faster is read later."""

    message_bytes: int
    frames_per_s: float
    bytes_per_s: float
    subscriptions: int


class Welcome(ServerFrame, frozen=True, kw_only=True, tag="welcome"):
    """The answer to `hello`. `server` is another after each start of the server."""

    server: str
    version: str
    limits: Limits


class Ack(ServerFrame, frozen=True, kw_only=True, tag="ack"):
    """The request with this `id` was carried out."""

    id: RequestId
    result: AnyResult


class Error(ServerFrame, frozen=True, kw_only=True, tag="error"):
    """The request with this `id` was not carried out. Without an `id`: what came was no
    frame; or the events of `session` cannot go on, and it is subscribed to no more."""

    code: ErrorCode
    message: str
    id: RequestId | None = None
    session: SessionId | None = None
    after: Sequence | None = None


class Event(ServerFrame, frozen=True, kw_only=True, tag="event"):
    """Something has happened in a session. Numbers ascend; adjacent deltas may come as one,
    under the number of the last. To resume, name the last `epoch` and `sequence`."""

    session: SessionId
    epoch: Epoch
    sequence: Sequence
    event: AnyEvent


class Lagged(ServerFrame, frozen=True, kw_only=True, tag="lagged"):
    """The client was too slow for a session, and is subscribed to it no more. To go on,
    subscribe again behind this place."""

    session: SessionId
    epoch: Epoch
    after: Sequence


AnyServerFrame = Welcome | Ack | Error | Event | Lagged
