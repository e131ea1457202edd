"""What the outside hears of a session, in order, each event with its own number.

Handles, the websocket and the command line all show these. They carry no secrets and no
provider types. A consumer that missed some asks again with the last number that it saw.
"""

import msgspec

from midstream.messages.alert import Alert
from midstream.messages.blocked_report import BlockedReport
from midstream.messages.continuation import ComparisonRecord
from midstream.messages.failure import ProviderFailure
from midstream.messages.record import SessionStatus
from midstream.messages.stop_message import StopMessageState
from midstream.messages.stream import StopReason
from midstream.messages.usage import Usage
from midstream.messages.verdict import Verdict


class Event(msgspec.Struct, frozen=True, tag_field="event", gc=False):
    """Base of all events of a session. Values without cycles, as stream messages are."""


class SessionStarted(Event, frozen=True, tag="session.started"):
    """The prompt was accepted and is on record."""

    conversation_id: str
    provider: str
    model: str


class AlertRaised(Event, frozen=True, tag="alert"):
    """A person has to be told, although nothing stops. May come before the session starts."""

    alert: Alert


class StopMessageChanged(Event, frozen=True, tag="stop_message.changed"):
    """Directives in the prompt have set, changed or cleared what the session continues
    with; `state` is what it is now."""

    state: StopMessageState


class LocalAnswer(Event, frozen=True, tag="local_answer"):
    """The prompt was nothing but directives, and was answered without asking a model."""

    text: str


class AttemptStarted(Event, frozen=True, tag="attempt.started"):
    """A stream is being asked for. Attempts count from 1 within a session."""

    attempt: int


class AttemptPaused(Event, frozen=True, tag="attempt.paused"):
    """The provider's quota is spent, for everybody: the attempt waits, and goes on by itself
    when the window that `reason` tells of is over."""

    attempt: int
    reason: str


class Text(Event, frozen=True, tag="text"):
    """The model's prose, as it comes."""

    attempt: int
    text: str


class Thinking(Event, frozen=True, tag="thinking"):
    """The model's reasoning, as it comes."""

    attempt: int
    text: str


class ToolUse(Event, frozen=True, tag="tool_use"):
    """The model has completed a tool call; `arguments` is JSON text."""

    attempt: int
    call_id: str
    tool: str
    arguments: str


class ToolWanted(Event, frozen=True, tag="tool.wanted"):
    """The host is to answer this call now: its message is complete, clean and on record.

    Before this, a call that was shown may still be retracted.
    """

    attempt: int
    call_id: str
    tool: str
    arguments: str


class ToolResult(Event, frozen=True, tag="tool_result"):
    """A tool call was answered, or it is known that it was not, or may not have been, run."""

    call_id: str
    tool: str
    content: str
    is_error: bool = False


class RuleTriggered(Event, frozen=True, tag="ttsr_triggered"):
    """A rule matched: which, where, why, and what is done about it.

    `latency_us` is the time from the arrival of the bytes that completed the match to the
    abort, in microseconds; None where nothing was aborted.
    """

    attempt: int
    verdict: Verdict
    latency_us: int | None = None


class Retracted(Event, frozen=True, tag="retracted"):
    """Everything that was shown of this attempt is void; drop it."""

    attempt: int
    reason: str


class AttemptDiscarded(Event, frozen=True, tag="attempt.discarded"):
    """A retracted attempt has settled; this is what it has cost for nothing."""

    attempt: int
    usage: Usage


class ReminderInjected(Event, frozen=True, tag="reminder.injected"):
    """The model will be told, in the next attempt, about the rules that it broke."""

    rules: tuple[str, ...]
    text: str


class RetryScheduled(Event, frozen=True, tag="retry.scheduled"):
    """The attempt was cut; the next starts when this delay has passed and it has settled."""

    attempt: int
    delay_s: float


class RuleSuspended(Event, frozen=True, tag="rule.suspended"):
    """A rule is not watched any more in this session, and why."""

    rule: str
    condition: str
    reason: str


class PassageCapped(Event, frozen=True, tag="passage.capped"):
    """A passage is longer than the limit; conditions that need its text stop there."""

    attempt: int
    source: str
    limit_chars: int


class AttemptLost(Event, frozen=True, tag="attempt.lost"):
    """An attempt ended by a crash on our side; it is tried again within the budget."""

    attempt: int
    reason: str


class ContinuationDecided(Event, frozen=True, tag="continuation.decided"):
    """A reply was finished: whether it is continued by itself, and the reason if not.

    `attempt` is the one that finished. Said in conversations that have a stopMessage, or
    had one.
    """

    attempt: int
    record: ComparisonRecord
    text: str | None = None
    """What the model is told in the user's name; None if it is not continued."""


class WorkBlocked(Event, frozen=True, tag="work.blocked"):
    """The model reports that it cannot go on, and why."""

    attempt: int
    report: BlockedReport


class SessionEnded(Event, frozen=True, tag="session.ended"):
    """The one terminal event of a session."""

    status: SessionStatus
    output: str
    stop_reason: StopReason | None = None
    reason: str | None = None
    failure: ProviderFailure | None = None
    usage: Usage = Usage()
    attempts: int = 0
    duration_ms: int = 0
    provider_session_id: str | None = None
    """The provider's own session, where it keeps conversations itself."""


AnyEvent = (
    SessionStarted
    | AlertRaised
    | StopMessageChanged
    | LocalAnswer
    | AttemptStarted
    | AttemptPaused
    | Text
    | Thinking
    | ToolUse
    | ToolWanted
    | ToolResult
    | RuleTriggered
    | Retracted
    | ReminderInjected
    | RetryScheduled
    | RuleSuspended
    | PassageCapped
    | AttemptLost
    | ContinuationDecided
    | WorkBlocked
    | AttemptDiscarded
    | SessionEnded
)


class SessionEvent(msgspec.Struct, frozen=True, gc=False):
    """An event with its place: sequence numbers count from 1 within a session.

    `epoch` tells events apart whose number was used again after a host was lost
    (`event_log.Position`).
    """

    session_id: str
    sequence: int
    event: AnyEvent
    epoch: int = 1
