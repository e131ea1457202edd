"""The record of one session: what it is, how it went, who owns it.

A record is a value. Only `reduce` (reducer.py) makes the next one from it, and only the
Ledger writes it. JSON is camelCase, so that clients of the reference read it
(spec/animator.md 3.1); what midstream adds to the reference's fields is marked below.
"""

from enum import StrEnum
from typing import Any

import msgspec

from midstream.messages.usage import Usage, UsageSource


class SessionStatus(StrEnum):
    """Where a session is. All but the first two are terminal."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    RATE_LIMITED = "rate-limited"
    CAPPED = "capped"
    """Ours: ended by a budget, which is never `completed` (architecture.md invariant 7)."""
    DEAD_LETTERED = "dead-lettered"
    """Ours: recovered too often without new output (architecture.md invariant 12)."""

    @property
    def is_terminal(self) -> bool:
        return self is not SessionStatus.PENDING and self is not SessionStatus.RUNNING


LIVE_STATUSES = tuple(status.value for status in SessionStatus if not status.is_terminal)
"""What the orphan pass looks for."""


class Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of what travels as camelCase JSON; a field that nobody supplied is absent."""


class Fence(Shape, frozen=True):
    """Who may write the record: an owner, and the number of its acquisition.

    A name alone is no fence, because a restarted owner may bear it again. `token` grows
    by one with each acquisition; a write that carries an older one is refused.
    """

    owner: str
    token: int


class TokenUsage(Shape, frozen=True, kw_only=True):
    """Tokens of a session. `source` (ours) says how well we know; absent means unknown."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    source: UsageSource = UsageSource.UNKNOWN

    @classmethod
    def of(cls, usage: Usage) -> "TokenUsage":
        """The tokens of `usage` in the shape of records, where its cost has a place of its own."""
        figures = msgspec.structs.asdict(usage)
        del figures["cost_usd"]
        return cls(**figures)


class TerminationTag(Shape, frozen=True, kw_only=True):
    """Why a session ended, for machines. `kind` is `rate-limit`, `source` what said so."""

    kind: str
    source: str
    detail: str | None = None


class TerminationDiagnostic(Shape, frozen=True, kw_only=True):
    """What a process left behind that failed by its exit code."""

    exit_code: int
    stderr_excerpt: str | None = None


class SessionRecord(Shape, frozen=True, kw_only=True):
    """One session.

    Timestamps are text in the form of `format_timestamp`. `cancel_handle` is a tagged
    object (`kind`, for a process group `pgid`) that belongs to the provider which wrote
    it. `last_activity_at` comes only from the clock of the host that owns the session.
    """

    id: str
    status: SessionStatus
    started_at: str
    provider: str
    ended_at: str | None = None
    duration_ms: int | None = None
    exit_code: int | None = None
    error: str | None = None
    conversation_id: str | None = None
    provider_session_id: str | None = None
    token_usage: TokenUsage | None = None
    cost_usd: float | None = None
    metadata: dict[str, Any] | None = None
    output: str | None = None
    cancel_handle: dict[str, Any] | None = None
    last_activity_at: str | None = None
    authorized_tools: tuple[str, ...] | None = None
    termination_tag: TerminationTag | None = None
    termination_diagnostic: TerminationDiagnostic | None = None
    fence: Fence | None = None
    """Ours. None for a session that another program owns and reports on."""
    recoveries: int = 0
    """Ours: takeovers since the last new output (architecture.md invariant 12)."""
    presumed_dead: bool = False
    """Ours: the status `failed` is only a conclusion from missed heartbeats. The owner may
    still revoke it (architecture.md invariant 10)."""

    @property
    def is_terminal(self) -> bool:
        return self.status.is_terminal

    def is_revocable_by(self, fence: Fence | None) -> bool:
        """Whether `fence` is the owner of a record that was only presumed to be dead."""
        return self.presumed_dead and fence is not None and fence == self.fence


class Crossing(StrEnum):
    """What a change of a record means to those who hear of sessions."""

    STARTED = "started"
    ENDED = "ended"
    REVIVED = "revived"
    """It was announced as ended by presumption, and lives."""


def crossing(before: SessionRecord | None, after: SessionRecord) -> Crossing | None:
    """What to announce after `after` was written over `before`; None for most changes.

    The one place that knows, so that each is announced once (spec/animator.md B1, B3):
    it looks only at whether the status changed.
    """
    if before is not None and before.status is after.status:
        return None
    if after.is_terminal:
        return Crossing.ENDED
    if before is not None and before.is_terminal:
        return Crossing.REVIVED
    return Crossing.STARTED if after.status is SessionStatus.RUNNING else None
