"""Where a turn stands, and what it is about to do next."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from midstream.messages.conversation import AnyItem, ToolCallPart
from midstream.messages.events import SessionEnded
from midstream.messages.failure import ProviderFailure
from midstream.messages.record import SessionStatus
from midstream.messages.settle import ToolOutcome
from midstream.messages.stream import StopReason
from midstream.messages.verdict import Verdict
from midstream.messages.work import Recording


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How the session is going to end."""

    status: SessionStatus
    reason: str | None = None
    failure: ProviderFailure | None = None
    stop_reason: StopReason | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """After settling: tell the model about these violations and try again. Without any,
    the attempt was lost by a crash and is simply repeated."""

    violations: tuple[Verdict, ...]


class Wait(Enum):
    """What a cut attempt waits for."""

    DELAY = "delay"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class StartNext:
    """Once recorded: the items are context, and the next attempt starts."""

    items: tuple[AnyItem, ...]


@dataclass(frozen=True, slots=True)
class RunNext:
    """Once recorded: the items are context, and these calls are run."""

    items: tuple[AnyItem, ...]
    calls: tuple[ToolCallPart, ...]


@dataclass(frozen=True, slots=True)
class EndNow:
    """Once recorded: the session is over."""

    ended: SessionEnded


@dataclass(frozen=True, slots=True)
class Streaming:
    attempt: int


@dataclass(frozen=True, slots=True)
class Settling:
    attempt: int
    waits: frozenset[Wait]
    then: Retry | Conclusion


@dataclass(frozen=True, slots=True)
class Writing:
    """A write is under way. `stop` is set when a stop was asked for meanwhile."""

    step: int
    recording: Recording
    then: StartNext | RunNext | EndNow
    stop: Conclusion | None = None


@dataclass(frozen=True, slots=True)
class RunningCalls:
    """The calls of a message that is on record. `outcomes` has, by call id, what is known
    of those that are over. `stop` is set when a stop was asked for meanwhile."""

    attempt: int
    calls: tuple[ToolCallPart, ...]
    outcomes: Mapping[str, ToolOutcome]
    since: float
    stop: Conclusion | None = None


@dataclass(frozen=True, slots=True)
class Over:
    pass


Phase = Streaming | Settling | Writing | RunningCalls | Over
