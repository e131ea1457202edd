"""What a turn answers: things to do, in this order, carried out by `Session`."""

from dataclasses import dataclass

from midstream.messages.conversation import ModelRequest, ToolCallPart
from midstream.messages.events import AnyEvent
from midstream.messages.work import Recording


@dataclass(frozen=True, slots=True)
class Abort:
    """Close the connection of this attempt, before anything else is done."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Start:
    """Watch and open the stream of this attempt."""

    attempt: int
    turn: int
    recorded: dict[str, int]
    request: ModelRequest


@dataclass(frozen=True, slots=True)
class SetTimers:
    attempt: int
    deadline_s: float
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class LimitTo:
    """Say so when the attempt has taken `limit_s`."""

    attempt: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class DropTimers:
    pass


@dataclass(frozen=True, slots=True)
class AskForWork:
    """Ask the task list of the project; the answer carries `attempt`."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Record:
    """Write this; the answer carries `step`."""

    step: int
    recording: Recording


@dataclass(frozen=True, slots=True)
class RunCalls:
    """Run these side by side; each is answered with a `ToolSettled`."""

    attempt: int
    calls: tuple[ToolCallPart, ...]


@dataclass(frozen=True, slots=True)
class StopCalls:
    """Stop what runs; what it came to is still to be said of each call."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Publish:
    events: tuple[AnyEvent, ...]


@dataclass(frozen=True, slots=True)
class Leave:
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
    | StopCalls
    | Publish
    | Leave
)
