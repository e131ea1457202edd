"""What a session outside this process reports about itself, and what it is answered.

The payloads of `session-running`, `session-heartbeat` and `session-record` with the names of
the reference (spec/animator.md 5.5), and the transitions that they ask for. The Ledger
applies them; doors and the dead-letter queue only decode them. Every answer carries the
status that the record has then, so that a session which was cancelled before anybody could
reach its process learns of it from its next report, and stops (spec/animator.md B8). Pure.
"""

from enum import StrEnum
from hashlib import blake2b
from typing import Any

import msgspec

from midstream.messages.record import (
    SessionRecord,
    SessionStatus,
    Shape,
    TerminationDiagnostic,
    TerminationTag,
    TokenUsage,
)
from midstream.messages.transition import (
    Cancel,
    DetachedReady,
    HeartbeatTouch,
    Outcome,
    Terminal,
)
from midstream.messages.usage import UsageSource


class RunningReport(Shape, frozen=True, kw_only=True, tag_field="report", tag="session-running"):
    """The session's process runs; perhaps once more."""

    session_id: str
    started_at: str
    provider: str
    conversation_id: str | None = None
    metadata: dict[str, Any] | None = None
    cancel_handle: dict[str, Any] | None = None

    def transition(self, at: str) -> DetachedReady:
        """What it does to the record at the timestamp `at`."""
        return DetachedReady(
            id=self.session_id,
            started_at=self.started_at,
            provider=self.provider,
            last_activity_at=at,
            conversation_id=self.conversation_id,
            metadata=self.metadata,
            cancel_handle=self.cancel_handle,
        )


class HeartbeatReport(
    Shape, frozen=True, kw_only=True, tag_field="report", tag="session-heartbeat"
):
    """The session lives."""

    session_id: str

    def transition(self, at: str) -> HeartbeatTouch:
        """What it does to the record at the timestamp `at`."""
        return HeartbeatTouch(id=self.session_id, last_activity_at=at)


class ReportedStatus(StrEnum):
    """How a session outside may end (spec/animator.md 5.5; `cancelled`: B7)."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate-limited"
    CANCELLED = "cancelled"


class RecordReport(Shape, frozen=True, kw_only=True, tag_field="report", tag="session-record"):
    """The session has ended. `ended_at` and `retry_after_ms` are ours: when, for a report
    that comes late, and what the provider asked to wait."""

    session_id: str
    status: ReportedStatus
    exit_code: int
    ended_at: str | None = None
    duration_ms: int | None = None
    error: str | None = None
    conversation_id: str | None = None
    provider_session_id: str | None = None
    token_usage: TokenUsage | None = None
    cost_usd: float | None = None
    output: str | None = None
    termination_tag: TerminationTag | None = None
    termination_diagnostic: TerminationDiagnostic | None = None
    transcript: list[Any] | None = None
    retry_after_ms: int | None = None

    @property
    def key(self) -> str:
        """An idempotency key that is bound to the content."""
        digest = blake2b(msgspec.json.encode(self), digest_size=16)
        return f"{self.session_id}/record/{digest.hexdigest()}"

    def transition(self, at: str) -> Terminal | Cancel:
        """What it does to the record when it arrives at the timestamp `at`."""
        ended_at = self.ended_at or at
        if self.status is ReportedStatus.CANCELLED:
            return Cancel(
                id=self.session_id,
                ended_at=ended_at,
                duration_ms=self.duration_ms,
                reason=self.error,
                token_usage=_reported(self.token_usage),
                cost_usd=self.cost_usd,
                output=self.output,
            )
        return Terminal(
            id=self.session_id,
            status=Outcome(self.status.value),
            ended_at=ended_at,
            exit_code=self.exit_code,
            last_activity_at=at,
            duration_ms=self.duration_ms,
            error=self.error,
            conversation_id=self.conversation_id,
            provider_session_id=self.provider_session_id,
            token_usage=_reported(self.token_usage),
            cost_usd=self.cost_usd,
            output=self.output,
            termination_tag=self.termination_tag,
            termination_diagnostic=self.termination_diagnostic,
        )


AnyReport = RunningReport | HeartbeatReport | RecordReport


class ReportAnswer(Shape, frozen=True, kw_only=True):
    """`status` is what the record says now; a terminal one tells a session to stop."""

    ok: bool
    session_id: str
    status: SessionStatus | None = None
    error: str | None = None


def taken(record: SessionRecord) -> ReportAnswer:
    """The answer to a report after which the record is this one."""
    return ReportAnswer(ok=True, session_id=record.id, status=record.status)


def not_taken(session_id: str, error: str) -> ReportAnswer:
    """The answer to a report that was not kept: whoever sent it has to keep it (B6)."""
    return ReportAnswer(ok=False, session_id=session_id, error=error)


def _reported(usage: TokenUsage | None) -> TokenUsage | None:
    """Figures that came without a source were reported by somebody."""
    if usage is None or usage.source is not UsageSource.UNKNOWN:
        return usage
    return msgspec.structs.replace(usage, source=UsageSource.REPORTED)
