"""What can go wrong for a client, beside what the server refuses."""

from midstream.actors.announcer import UnknownSession
from midstream.actors.event_channel import GapError
from midstream.messages import wire
from midstream.messages.errors import MidstreamError, StoreError
from midstream.messages.event_log import Position
from midstream.messages.wire import ErrorCode
from midstream.stores.conversations import ConversationBusy


class CannotConnect(MidstreamError):
    """There is no server at that place, or it does not let this client in."""


class ConnectionLost(MidstreamError):
    """The connection is gone for good, because the client was closed or gave up."""


class OutcomeUnknown(MidstreamError):
    """The connection broke before the answer came, and then the server was another: whether
    the request was carried out cannot be known from here. Look before you send it again."""


class EventsLost(MidstreamError):
    """The host of a session was lost, and with it what it had said last and not kept.

    What was seen behind `position` is not on record: forget it. The iterator that raised
    this goes on from there.
    """

    def __init__(self, session_id: str, position: Position) -> None:
        self.position = position
        super().__init__(
            f"the host of {session_id} was lost; forget its events behind number "
            f"{position.sequence} of epoch {position.epoch}"
        )


class RequestRefused(MidstreamError):
    """The server did not carry out a request; `code` says why."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        self.code = code
        super().__init__(message)


class Paused(RequestRefused):
    """The provider's quota is spent: nothing began, and nothing is on record."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.PAUSED, message)


def error_of(frame: wire.Error) -> MidstreamError:
    """The error that a frame stands for: ours, where we have one."""
    match frame.code:
        case ErrorCode.UNKNOWN_SESSION:
            return UnknownSession(frame.message)
        case ErrorCode.BUSY:
            return ConversationBusy(frame.message)
        case ErrorCode.GAP:
            return GapError(frame.message, frame.after)
        case ErrorCode.STORE:
            return StoreError(frame.message)
        case ErrorCode.PAUSED:
            return Paused(frame.message)
        case code:
            return RequestRefused(code, frame.message)
