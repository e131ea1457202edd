"""What the actors of one session tell each other.

Every message about a stream, a timer or a tool run carries the attempt that it belongs
to; whoever receives one of a finished attempt drops it (architecture.md, the way of a token).
"""

import msgspec

from midstream.messages.bd_stage import Answer
from midstream.messages.conversation import AnyItem, ModelRequest, ToolCallPart
from midstream.messages.events import SessionEnded
from midstream.messages.record import SessionRecord
from midstream.messages.reply import Reply
from midstream.messages.settle import ToolOutcome
from midstream.messages.stop_message import StopMessageState
from midstream.messages.stream import AnyStreamMessage
from midstream.messages.verdict import Verdict


class Work(msgspec.Struct, frozen=True, tag=True):
    """Base of these messages."""


# --- to StreamMonitor


class StartAttempt(Work, frozen=True):
    """Open a stream. Nothing else is live: the last one has settled. A follow-up is what the
    turn has begun by itself, and is not asked for once the client has gone."""

    attempt: int
    request: ModelRequest
    is_follow_up: bool = False


# --- StreamMonitor to RuleMatcher


class StreamBatch(Work, frozen=True, gc=False):
    """What one read of the stream completed; `arrived_at` is trio time in seconds."""

    attempt: int
    messages: tuple[AnyStreamMessage, ...]
    arrived_at: float


class StreamSettled(Work, frozen=True):
    """The stream of this attempt is over and its connection is closed, whatever the way."""

    attempt: int


# --- Session to RuleMatcher


class WatchAttempt(Work, frozen=True):
    """An attempt begins: forget the passages of the last.

    `turn` counts the model's messages in this conversation, aborted ones too
    (spec/ttsr.md 3.5). `recorded` are the rules whose reminders are in the context, each
    with the turn at which it came there.
    """

    attempt: int
    turn: int
    recorded: dict[str, int]


# --- RuleMatcher to Session


class WatchedBatch(Work, frozen=True, gc=False):
    """A batch with what the rules say about it.

    `aborted_at` is when a verdict of these has closed the stream; trio time, as `arrived_at`.
    """

    attempt: int
    messages: tuple[AnyStreamMessage, ...]
    verdicts: tuple[Verdict, ...]
    arrived_at: float
    aborted_at: float | None = None


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


class StartTimers(Work, frozen=True):
    """Say `RetryDue` after `retry_after_s` if that is not None, and `SettleOverdue` after
    `deadline_s`. Earlier timers are forgotten."""

    attempt: int
    deadline_s: float
    retry_after_s: float | None = None


class LimitAttempt(Work, frozen=True):
    """Say `AttemptOverdue` after `limit_s`. Earlier timers are forgotten."""

    attempt: int
    limit_s: float


class ForgetTimers(Work, frozen=True):
    """Nothing that was scheduled shall come any more."""


class RetryDue(Work, frozen=True):
    """The delay after the abort of this attempt has passed."""

    attempt: int


class SettleOverdue(Work, frozen=True):
    """The aborted stream has not settled within the deadline."""

    attempt: int


class AttemptOverdue(Work, frozen=True):
    """The attempt has taken as long as it may."""

    attempt: int


# --- StreamMonitor to Session


class AttemptHeld(Work, frozen=True):
    """Everybody is paused, so the provider is not asked yet; said again when the reason
    changes."""

    attempt: int
    reason: str


class AttemptReleased(Work, frozen=True):
    """The attempt that was held is let go on."""

    attempt: int


# --- the world to Session


class Interrupt(Work, frozen=True):
    """The user wants the model to stop. What it has said stays in the conversation."""


class Cancel(Work, frozen=True):
    """The session shall end as cancelled."""

    reason: str | None = None


class Detach(Work, frozen=True):
    """The client has gone. Its answer is finished, but nothing is begun by itself any more
    (architecture.md invariant 7)."""


# --- WorkProbe to Session


class WorkKnown(Work, frozen=True):
    """What the task list of the project says (`bd_stage.py`), asked for after `attempt`."""

    attempt: int
    answers: tuple[Answer, ...]
    has_project: bool


# --- Session to ToolRunner, and back


class RunTools(Work, frozen=True):
    """Run the calls of one message, which is complete, clean and on record."""

    attempt: int
    calls: tuple[ToolCallPart, ...]


class CancelTools(Work, frozen=True):
    """Stop whatever runs of this attempt. Its calls are reported on all the same."""

    attempt: int


class FindTools(Work, frozen=True):
    """A runner has gone that may have taken these calls. Its successor has found before this, in
    the mailbox, what was never taken; it reports the others as unknown."""

    attempt: int
    call_ids: tuple[str, ...]


class ToolSettled(Work, frozen=True):
    """What became of a call; said once for each, whatever the way it ended."""

    attempt: int
    call_id: str
    outcome: ToolOutcome


class TimersLost(Work, frozen=True):
    """The RetryScheduler crashed, and its timers with it. Whoever reads and watches the stream is
    restarted with it."""

    reason: str


class ToolsLost(Work, frozen=True):
    """The ToolRunner crashed or was stopped: what it had not reported on will not come."""

    reason: str


# --- the host to ToolRunner


class ToolAnswer(Work, frozen=True):
    """The host answers a call itself. `attempt` tells calls apart whose ids a server uses
    again; None for whichever waits. Answered with whether a call has taken it."""

    call_id: str
    content: str
    is_error: bool
    attempt: int | None
    reply: Reply[bool]


# --- the supervisor's view


class ActorLost(Work, frozen=True):
    """An actor that the live stream needs is gone for now.

    `held_stream` says that it is the one that holds streams; `crashed`, that it did not simply
    stop, as it does when a neighbour has crashed or the session is being stopped.
    `live_attempt` is the one whose stream is open all the same, or 0: a crash is heard of before
    the stream is closed, and what is heard late may find one that the next incarnation holds.
    """

    reason: str
    held_stream: bool
    crashed: bool = True
    live_attempt: int = 0

    def has_closed(self, attempt: int) -> bool:
        """Whether the stream of the attempt is closed by that."""
        return self.held_stream and self.live_attempt != attempt


class StreamClosed(Work, frozen=True):
    """The stream of the attempt is closed, whoever held it and whatever became of them."""

    attempt: int


# --- Ledger to Session


class Recorded(Work, frozen=True):
    """What was asked to be written under `step` is kept. `record` is the session's then: it
    may have been ended by somebody else meanwhile."""

    step: int
    record: SessionRecord | None = None


class RecordFailed(Work, frozen=True):
    """What was asked to be written under `step` is not in the store."""

    step: int
    error: str


# --- Session to Ledger (answered with `Recorded` or `RecordFailed`)


class AcceptPrompt(Work, frozen=True):
    """Put the prompt's items behind the conversation and begin the session's record.

    Here and below, `stop_message` is what is to be remembered of it in the same
    transaction; None to leave it as it is. `version` is that of the conversation as the
    session has read it: it fails if anybody has written there since.
    """

    items: tuple[AnyItem, ...]
    stop_message: StopMessageState | None = None
    version: int | None = None


class AppendItems(Work, frozen=True):
    """Put items behind the conversation; reminders among them become injection records
    of this turn and attempt, in the same transaction."""

    items: tuple[AnyItem, ...]
    turn: int
    attempt: int
    stop_message: StopMessageState | None = None


class FinishSession(Work, frozen=True):
    """Put the last items behind the conversation and end the session's record."""

    items: tuple[AnyItem, ...]
    turn: int
    ended: SessionEnded
    stop_message: StopMessageState | None = None


Recording = AcceptPrompt | AppendItems | FinishSession
