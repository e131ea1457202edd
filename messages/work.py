"""What the actors of one session tell each other.

Every message about a stream, a timer or a tool run carries the attempt that it belongs
to; whoever receives one of a finished attempt drops it (design.md section 4).
"""

from typing import Any

import msgspec

from midstream.messages.conversation import ModelRequest
from midstream.messages.stream import AnyStreamMessage
from midstream.messages.verdict import Verdict


class Work(msgspec.Struct, frozen=True, tag=True):
    """Base of these messages."""


# --- to StreamMonitor


class StartAttempt(Work, frozen=True):
    """Open a stream. Nothing else is live: the last one has settled."""

    attempt: int
    request: ModelRequest


class AbortAttempt(Work, frozen=True):
    """Close the connection of this attempt now; ignored if it is not the live one."""

    attempt: int


# --- StreamMonitor to RuleMatcher


class StreamBatch(Work, frozen=True):
    """What one read of the stream completed; `arrived_at` is trio time in seconds."""

    attempt: int
    messages: tuple[AnyStreamMessage, ...]
    arrived_at: float


class StreamSettled(Work, frozen=True):
    """The stream of this attempt is over and its connection is closed, whatever the way."""

    attempt: int


# --- Session to RuleMatcher


class WatchAttempt(Work, frozen=True):
    """An attempt begins: forget the passages of the last. `turn` counts the model's
    messages in this conversation, aborted ones too (spec/ttsr.md 3.5)."""

    attempt: int
    turn: int


class RemindersDelivered(Work, frozen=True):
    """These rules' reminders are in the context and on record, since `turn`."""

    rules: tuple[str, ...]
    turn: int


class RemindersLost(Work, frozen=True):
    """These rules' reminders did not reach the context; the rules are free again."""

    rules: tuple[str, ...]


# --- RuleMatcher to Session


class WatchedBatch(Work, frozen=True):
    """A batch with what the rules say about it."""

    attempt: int
    messages: tuple[AnyStreamMessage, ...]
    verdicts: tuple[Verdict, ...]
    arrived_at: float


class WatchedEnd(Work, frozen=True):
    """`StreamSettled`, behind everything that the stream said."""

    attempt: int


class ConditionSuspended(Work, frozen=True):
    """A condition took too long and is not evaluated any more in this session."""

    attempt: int
    rule: str
    condition: str
    reason: str


class PassageOverflowed(Work, frozen=True):
    """A passage has reached its cap."""

    attempt: int
    source: str
    limit_chars: int


# --- Session to RetryScheduler, and back


class ScheduleRetry(Work, frozen=True):
    """Say `RetryDue` after `delay_s`, and `SettleOverdue` after `deadline_s`."""

    attempt: int
    delay_s: float
    deadline_s: float


class ForgetTimers(Work, frozen=True):
    """Nothing that was scheduled shall come any more."""


class RetryDue(Work, frozen=True):
    """The delay after the abort of this attempt has passed."""

    attempt: int


class SettleOverdue(Work, frozen=True):
    """The aborted stream has not settled within the deadline."""

    attempt: int


# --- the world to Session


class Interrupt(Work, frozen=True):
    """The user wants the model to stop. What it has said stays in the conversation."""


class Cancel(Work, frozen=True):
    """The session shall end as cancelled."""

    reason: str | None = None


# --- Session to ToolRunner, and back


class RunTool(Work, frozen=True):
    """Run one complete and clean call."""

    attempt: int
    call_id: str
    tool: str
    arguments: str


class CancelTools(Work, frozen=True):
    """Stop whatever runs."""

    attempt: int


class ToolFinished(Work, frozen=True):
    """A call was answered, or could not be. `content` is text for the model."""

    attempt: int
    call_id: str
    tool: str
    content: str
    is_error: bool = False


class ToolAnswer(Work, frozen=True):
    """The host answers a call itself."""

    call_id: str
    content: str
    is_error: bool = False


# --- Ledger to Session


class Recorded(Work, frozen=True):
    """What was asked to be written under `step` is in the store."""

    step: int
    result: Any = None


class RecordFailed(Work, frozen=True):
    """What was asked to be written under `step` is not in the store."""

    step: int
    error: str
