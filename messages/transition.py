"""What can happen to a session's record: a tagged union, one struct for each cause.

`reduce` (reducer.py) applies them. They are JSON too (`kind` is the tag), because a
transition that the store could not take waits in the dead-letter queue as one of these.
Timestamps are text; any ISO-8601 form will do. Sources: spec/animator.md 4 and 14,
architecture.md invariants.
"""

from enum import StrEnum
from typing import Any

from midstream.messages.record import (
    Fence,
    Shape,
    TerminationDiagnostic,
    TerminationTag,
    TokenUsage,
)

MAX_RECOVERIES = 5
"""Recoveries without new output, then a session is dead-lettered (architecture.md invariant 12)."""


class Transition(Shape, frozen=True, kw_only=True, tag_field="kind"):
    """Base of all transitions; `id` is the session's."""

    id: str


class OwnersTransition(Transition, frozen=True, kw_only=True):
    """Base of what only the owner may write. `fence` is None where nobody owns it."""

    fence: Fence | None = None


class PendingPreWrite(OwnersTransition, frozen=True, kw_only=True, tag="pending-pre-write"):
    """The session is about to be launched."""

    started_at: str
    provider: str
    last_activity_at: str
    conversation_id: str | None = None
    metadata: dict[str, Any] | None = None
    authorized_tools: tuple[str, ...] | None = None


class AttachRunning(OwnersTransition, frozen=True, kw_only=True, tag="attach-running"):
    """The session runs in this process. Its heartbeat is not this transition's business."""

    started_at: str
    provider: str
    conversation_id: str | None = None
    metadata: dict[str, Any] | None = None
    cancel_handle: dict[str, Any] | None = None


class DetachedReady(OwnersTransition, frozen=True, kw_only=True, tag="detached-ready"):
    """A session outside this process reports that it runs, perhaps once more."""

    started_at: str
    provider: str
    last_activity_at: str
    conversation_id: str | None = None
    metadata: dict[str, Any] | None = None
    cancel_handle: dict[str, Any] | None = None


class HeartbeatTouch(OwnersTransition, frozen=True, kw_only=True, tag="heartbeat-touch"):
    """The session lives. `progressed` says that there is new output, kept in the store,
    since the last recovery: it sets the count of recoveries back."""

    last_activity_at: str
    progressed: bool = False


class Outcome(StrEnum):
    """How a session may say that it ended. A cancel is a transition of its own."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate-limited"
    CAPPED = "capped"


class Terminal(OwnersTransition, frozen=True, kw_only=True, tag="terminal"):
    """The session ended by itself. What is None was not supplied and changes nothing.

    `duration_ms` None is counted from the start of the record. `started_at` and `provider`
    serve a report of a session that has no record (spec/animator.md 5.6); there they
    default to `ended_at` and `unknown`.
    """

    status: Outcome
    ended_at: str
    exit_code: int
    last_activity_at: str
    duration_ms: int | None = None
    started_at: str | None = None
    provider: str | None = None
    error: str | None = None
    conversation_id: str | None = None
    provider_session_id: str | None = None
    token_usage: TokenUsage | None = None
    cost_usd: float | None = None
    output: str | None = None
    metadata: dict[str, Any] | None = None
    termination_tag: TerminationTag | None = None
    termination_diagnostic: TerminationDiagnostic | None = None


class Cancel(Transition, frozen=True, kw_only=True, tag="cancel"):
    """Somebody stopped the session. Anybody may, from any host.

    The owner also says what the session has cost and said until then; the reference loses
    that, and what an abort costs must never be a silent zero (architecture.md, the way of a token).
    """

    ended_at: str
    duration_ms: int | None = None
    reason: str | None = None
    token_usage: TokenUsage | None = None
    cost_usd: float | None = None
    output: str | None = None
    metadata: dict[str, Any] | None = None


class OrphanFailed(Transition, frozen=True, kw_only=True, tag="orphan-failed"):
    """The session's heartbeat was missed: it is presumed dead, which its owner may revoke."""

    ended_at: str
    error: str
    exit_code: int = 1
    duration_ms: int | None = None


class Revive(OwnersTransition, frozen=True, kw_only=True, tag="revive"):
    """The owner of a session that was presumed dead says that it lives."""

    last_activity_at: str


class Recover(Transition, frozen=True, kw_only=True, tag="recover"):
    """`owner` takes the session over and redoes its work, under the next fence token.

    A session that was recovered `max_recoveries` times without new output is not run
    again but dead-lettered. Two who try at once are told apart by the store's version.
    """

    owner: str
    at: str
    max_recoveries: int = MAX_RECOVERIES


AnyTransition = (
    PendingPreWrite
    | AttachRunning
    | DetachedReady
    | HeartbeatTouch
    | Terminal
    | Cancel
    | OrphanFailed
    | Revive
    | Recover
)
