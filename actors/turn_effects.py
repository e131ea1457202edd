"""What a turn answers: things to do, in this order, carried out by `Session`."""

import msgspec

from midstream.messages.conversation import ModelRequest, ToolCallPart
from midstream.messages.events import AnyEvent
from midstream.messages.work import Recording


class Abort(msgspec.Struct, frozen=True):
    """Close the connection of this attempt, before anything else is done."""

    attempt: int


class Start(msgspec.Struct, frozen=True):
    """Watch and open the stream of this attempt."""

    attempt: int
    turn: int
    recorded: dict[str, int]
    request: ModelRequest
    is_follow_up: bool


class SetTimers(msgspec.Struct, frozen=True):
    attempt: int
    deadline_s: float
    retry_after_s: float | None = None


class LimitTo(msgspec.Struct, frozen=True):
    """Say so when the attempt has taken `limit_s`."""

    attempt: int
    limit_s: float


class DropTimers(msgspec.Struct, frozen=True):
    pass


class AskForWork(msgspec.Struct, frozen=True):
    """Ask the task list of the project; the answer carries `attempt`."""

    attempt: int


class Record(msgspec.Struct, frozen=True):
    """Write this; the answer carries `step`."""

    step: int
    recording: Recording


class RunCalls(msgspec.Struct, frozen=True):
    """Run these side by side; each is answered with a `ToolSettled`."""

    attempt: int
    calls: tuple[ToolCallPart, ...]


class FindCalls(msgspec.Struct, frozen=True):
    """Ask which of these calls have gone with the runner that had them."""

    attempt: int
    call_ids: tuple[str, ...]


class StopCalls(msgspec.Struct, frozen=True):
    """Stop what runs; what it came to is still to be said of each call."""

    attempt: int


class Publish(msgspec.Struct, frozen=True):
    events: tuple[AnyEvent, ...]


class Leave(msgspec.Struct, frozen=True):
    """The session is over and on record."""


Effect = (
    Abort
    | Start
    | SetTimers
    | LimitTo
    | DropTimers
    | AskForWork
    | Record
    | RunCalls
    | FindCalls
    | StopCalls
    | Publish
    | Leave
)
