"""Where a turn stands, and what it is about to do next."""

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from midstream.messages.conversation import AnyItem, AssistantItem, TextPart, ToolCallPart
from midstream.messages.events import SessionEnded
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.record import SessionStatus
from midstream.messages.reply_shape import is_empty_reply, is_natural_stop
from midstream.messages.settle import ToolOutcome
from midstream.messages.stream import StopReason
from midstream.messages.verdict import Verdict
from midstream.messages.work import Recording


class Conclusion(msgspec.Struct, frozen=True):
    """How the session is going to end."""

    status: SessionStatus
    reason: str | None = None
    failure: ProviderFailure | None = None
    stop_reason: StopReason | None = None


class FinishedReply(msgspec.Struct, frozen=True):
    """A message that the model has finished, and when.

    `items` are what it adds to `context`, `now_s` is trio's time and `now_ms` wall time.
    """

    context: Sequence[AnyItem]
    items: Sequence[AnyItem]
    stop_reason: StopReason | None
    now_s: float
    now_ms: int

    @property
    def message(self) -> AssistantItem | None:
        messages = [item for item in self.items if isinstance(item, AssistantItem)]
        return messages[-1] if messages else None

    @property
    def text(self) -> str:
        return "" if self.message is None else reply_text(self.message)

    @property
    def is_natural_stop(self) -> bool:
        return self.stop_reason is not None and is_natural_stop(self.stop_reason, self.message)

    @property
    def is_empty(self) -> bool:
        return is_empty_reply(self.message)


class Retry(msgspec.Struct, frozen=True):
    """After settling: tell the model about these violations and try again. Without any,
    the attempt was lost by a crash and is simply repeated."""

    violations: tuple[Verdict, ...]


class FollowUpFailed(msgspec.Struct, frozen=True):
    """After settling: judge the follow-up that was cut because it took too long."""

    failure: ProviderFailure


class Wait(Enum):
    """What a cut attempt waits for."""

    DELAY = "delay"
    SETTLED = "settled"


class StartNext(msgspec.Struct, frozen=True):
    """Once recorded: the items are context, and the next attempt starts."""

    items: tuple[AnyItem, ...]


class RunNext(msgspec.Struct, frozen=True):
    """Once recorded: the items are context, and these calls are run."""

    items: tuple[AnyItem, ...]
    calls: tuple[ToolCallPart, ...]


class AnswerNow(msgspec.Struct, frozen=True):
    """Once recorded: the session is answered with this text, without asking a model."""

    text: str


class EndNow(msgspec.Struct, frozen=True):
    """Once recorded: the session is over."""

    ended: SessionEnded


class Submitting(msgspec.Struct, frozen=True):
    """The prompt is being made ready. Nothing of it is on record."""


class Streaming(msgspec.Struct, frozen=True):
    attempt: int


class Settling(msgspec.Struct, frozen=True):
    attempt: int
    waits: frozenset[Wait]
    then: Retry | FollowUpFailed | Conclusion


class Writing(msgspec.Struct, frozen=True):
    """A write is under way. `stop` is set when a stop was asked for meanwhile."""

    step: int
    recording: Recording
    then: StartNext | RunNext | AnswerNow | EndNow
    stop: Conclusion | None = None


class RunningCalls(msgspec.Struct, frozen=True):
    """The calls of a message that is on record. `outcomes` has, by call id, what is known
    of those that are over. `stop` is set when a stop was asked for meanwhile."""

    attempt: int
    calls: tuple[ToolCallPart, ...]
    outcomes: Mapping[str, ToolOutcome]
    since: float
    stop: Conclusion | None = None


class AskingWork(msgspec.Struct, frozen=True):
    """A reply is finished and not on record yet: the task list decides what follows."""

    attempt: int
    reply: FinishedReply


class Over(msgspec.Struct, frozen=True):
    pass


Phase = Submitting | Streaming | Settling | Writing | RunningCalls | AskingWork | Over

_STATUS_OF_FAILURE = {
    FailureKind.RATE_LIMITED: SessionStatus.RATE_LIMITED,
    FailureKind.OVERLOADED: SessionStatus.RATE_LIMITED,
    FailureKind.TIMEOUT: SessionStatus.TIMEOUT,
}


def status_of(failure: ProviderFailure) -> SessionStatus:
    """How a session ends that ends by this failure."""
    return _STATUS_OF_FAILURE.get(failure.kind, SessionStatus.FAILED)


def reply_text(item: AnyItem) -> str:
    """The prose of a message of the model; empty for any other item."""
    parts = item.parts if isinstance(item, AssistantItem) else ()
    return "".join(part.text for part in parts if isinstance(part, TextPart))
