"""One websocket connection as a pure state machine: messages in, effects out.

    AWAITING_HELLO ──hello──▶ OPEN ──▶ CLOSED
          │                                ▲
          └──────── anything else ─────────┘

It knows who may come in and what the client follows, and answers whatever is no frame. It
does no I/O, has no clock and never raises; `websocket.py` feeds it and carries out what it
answers.
"""

from enum import Enum, auto

import msgspec

from midstream.doors.websocket_access import Access
from midstream.messages import wire
from midstream.messages.wire import Capability, CloseCode, ErrorCode
from midstream.messages.wire_codec import Codec, WireError

BAD_FRAMES_LIMIT = 16
"""Messages in a row that are no frames; a client that errs now and then has time to notice."""


class Phase(Enum):
    """See the module."""

    AWAITING_HELLO = auto()
    OPEN = auto()
    CLOSED = auto()


class Send(msgspec.Struct, frozen=True):
    """Say this."""

    frame: wire.AnyServerFrame


class Close(msgspec.Struct, frozen=True):
    """Close the connection. Nothing follows."""

    code: CloseCode
    reason: str


class Admit(msgspec.Struct, frozen=True):
    """The client has said who it is: more may come from it from now on."""


class Carry(msgspec.Struct, frozen=True):
    """Carry out this request, and answer it."""

    request: wire.Submit | wire.Interrupt | wire.Cancel | wire.ToolResult | wire.List | wire.Status


class Follow(msgspec.Struct, frozen=True):
    """Begin to send the events of a session, and answer the request."""

    request: wire.Subscribe


class Unfollow(msgspec.Struct, frozen=True):
    """Send no more of a session, then answer the request."""

    request: wire.Unsubscribe


Effect = Send | Close | Admit | Carry | Follow | Unfollow


class Connection:
    """See the module."""

    def __init__(
        self, access: Access, codec: Codec[wire.AnyClientFrame], welcome: wire.Welcome
    ) -> None:
        self.phase = Phase.AWAITING_HELLO
        self.client: str | None = None
        """The name of the client over its connections, if it has one."""
        self._access = access
        self._codec = codec
        self._welcome = welcome
        self._wants_deltas = False
        self._followed: set[str] = set()
        self._bad_frames = 0

    def receive(self, message: str | bytes) -> list[Effect]:
        """What to do about a message."""
        if self.phase is Phase.CLOSED:
            return []
        try:
            frame = self._codec.decode(message)
        except WireError as error:
            return self._on_bad_frame(error)
        self._bad_frames = 0
        if self.phase is Phase.AWAITING_HELLO:
            return self._on_first(frame)
        return self._on_frame(frame)

    def shows(self, frame: wire.Event) -> bool:
        """Whether the client is to get this event."""
        return self._wants_deltas or frame.event.__struct_config__.tag not in wire.DELTA_EVENTS

    def may_follow(self) -> bool:
        """Whether one more session can be followed."""
        return len(self._followed) < self._welcome.limits.subscriptions

    def begin_to_follow(self, session: str) -> None:
        """The events of a session that was submitted here are sent from now on."""
        self._followed.add(session)

    def stop_following(self, session: str) -> None:
        """The events of a session have come to an end, whatever the way."""
        self._followed.discard(session)

    def close(self, code: CloseCode, reason: str) -> list[Effect]:
        """End the connection from this side."""
        if self.phase is Phase.CLOSED:
            return []
        self.phase = Phase.CLOSED
        return [Close(code, reason)]

    def _on_bad_frame(self, error: WireError) -> list[Effect]:
        if error.is_kind:
            return self.close(CloseCode.UNSUPPORTED, str(error))
        code = ErrorCode.BAD_FRAME if error.id is None else ErrorCode.BAD_REQUEST
        answer = Send(wire.Error(code=code, message=str(error), id=error.id))
        if self.phase is Phase.AWAITING_HELLO:
            return [answer, *self.close(CloseCode.POLICY, "the first frame has to be hello")]
        self._bad_frames += 1
        if self._bad_frames >= BAD_FRAMES_LIMIT:
            return [answer, *self.close(CloseCode.POLICY, "too many messages that are no frames")]
        return [answer]

    def _on_first(self, frame: wire.AnyClientFrame) -> list[Effect]:
        if not isinstance(frame, wire.Hello):
            return self.close(CloseCode.POLICY, "the first frame has to be hello")
        if not self._access.admits(frame.token):
            refusal = wire.Error(code=ErrorCode.UNAUTHORIZED, message="the token is not right")
            return [Send(refusal), *self.close(CloseCode.UNAUTHORIZED, "unauthorized")]
        self.phase = Phase.OPEN
        self.client = frame.client
        self._wants_deltas = Capability.DELTAS in frame.capabilities
        return [Admit(), Send(self._welcome)]

    def _on_frame(self, frame: wire.AnyClientFrame) -> list[Effect]:
        match frame:
            case wire.Hello():
                message = "hello was said before"
                return [Send(wire.Error(code=ErrorCode.BAD_FRAME, message=message))]
            case wire.Ping(id=id):
                return [Send(wire.Ack(id=id, result=wire.Pong()))]
            case wire.Subscribe():
                return self._on_subscribe(frame)
            case wire.Unsubscribe():
                return [Unfollow(frame)]
            case wire.Submit() if frame.follow and not self.may_follow():
                return [self._too_many(frame.id)]
            case _:
                return [Carry(frame)]

    def _on_subscribe(self, frame: wire.Subscribe) -> list[Effect]:
        if frame.session in self._followed:
            message = f"{frame.session} is subscribed to already"
            error = wire.Error(code=ErrorCode.BAD_REQUEST, message=message, id=frame.id)
            return [Send(error)]
        if not self.may_follow():
            return [self._too_many(frame.id)]
        self._followed.add(frame.session)
        return [Follow(frame)]

    def _too_many(self, id: int) -> Send:
        most = self._welcome.limits.subscriptions
        message = f"no more than {most} sessions can be subscribed to on one connection"
        return Send(wire.Error(code=ErrorCode.TOO_MANY, message=message, id=id))
