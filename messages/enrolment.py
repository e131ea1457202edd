"""What is decided about a session before it begins, and how its record begins and ends by it.

An `Enrolment` travels with every step of the session to the Ledger, so that a step can be
written by itself, also later and by another process. Pure.
"""

from typing import Any

import msgspec

from midstream.messages.dispatch import RATE_LIMIT_TAG
from midstream.messages.events import SessionEnded
from midstream.messages.record import (
    Fence,
    SessionRecord,
    SessionStatus,
    TerminationTag,
    TokenUsage,
)
from midstream.messages.reducer import reduce
from midstream.messages.timestamps import format_timestamp, parse_timestamp
from midstream.messages.transition import AttachRunning, Cancel, Outcome, Terminal

DETAIL_LIMIT_CHARS = 200
"""Of what a provider said about its limit (spec/animator.md 8.1)."""

GATE_SOURCE = "dispatch-gate"
"""Source of the tag of a session that was refused; others were told by a provider."""


class Enrolment(msgspec.Struct, frozen=True, kw_only=True):
    """`started_at` is when the session was admitted: by it a probe is told from a straggler
    (spec/animator.md 14.3). `fence` is what all its writes carry. `recoveries` is not 0 for
    a session that was taken over."""

    session_id: str
    conversation_id: str
    provider: str
    started_at: str
    fence: Fence
    metadata: dict[str, Any] | None = None
    recoveries: int = 0


def opening(enrolment: Enrolment) -> AttachRunning:
    """The transition with which the session begins in this process."""
    return AttachRunning(
        id=enrolment.session_id,
        started_at=enrolment.started_at,
        provider=enrolment.provider,
        conversation_id=enrolment.conversation_id,
        metadata=enrolment.metadata,
        fence=enrolment.fence,
    )


def ending(
    enrolment: Enrolment, ended: SessionEnded, at: str, learned: dict[str, Any] | None = None
) -> Terminal | Cancel:
    """The transition with which the session ends as `ended`, at the timestamp `at`. What was
    `learned` on the way is merged into the record's metadata."""
    usage = TokenUsage.of(ended.usage)
    if ended.status is SessionStatus.CANCELLED:
        return Cancel(
            id=enrolment.session_id,
            ended_at=at,
            duration_ms=ended.duration_ms,
            reason=ended.reason,
            token_usage=usage,
            cost_usd=ended.usage.cost_usd,
            output=ended.output,
            metadata=learned,
        )
    tag = None
    if ended.status is SessionStatus.RATE_LIMITED:
        detail = (ended.reason or "")[:DETAIL_LIMIT_CHARS]
        tag = TerminationTag(kind=RATE_LIMIT_TAG, source="stream", detail=detail)
    return Terminal(
        id=enrolment.session_id,
        fence=enrolment.fence,
        status=Outcome(ended.status.value),
        ended_at=at,
        exit_code=0 if ended.status is SessionStatus.COMPLETED else 1,
        last_activity_at=at,
        duration_ms=ended.duration_ms,
        started_at=enrolment.started_at,
        provider=enrolment.provider,
        error=ended.reason,
        conversation_id=enrolment.conversation_id,
        provider_session_id=ended.provider_session_id,
        token_usage=usage,
        cost_usd=ended.usage.cost_usd,
        output=ended.output,
        metadata=learned,
        termination_tag=tag,
    )


def record_unless_kept(enrolment: Enrolment, ended: SessionEnded) -> SessionRecord:
    """The record of a session as it would be, for one that no store has."""
    began = reduce(None, opening(enrolment))
    start_ms = parse_timestamp(enrolment.started_at) or 0
    return reduce(began, ending(enrolment, ended, format_timestamp(start_ms + ended.duration_ms)))


def as_recorded(ended: SessionEnded, record: SessionRecord) -> SessionEnded:
    """How the session ended, when somebody else had ended it before: as its record says."""
    if record.status is ended.status:
        return ended
    return msgspec.structs.replace(
        ended,
        status=record.status,
        reason=record.error,
        duration_ms=ended.duration_ms if record.duration_ms is None else record.duration_ms,
    )


def refused_record(enrolment: Enrolment, reason: str, conversation_id: str | None) -> SessionRecord:
    """The result of a session that was not admitted (spec/animator.md 5.1.0). It is nowhere
    but in the hands of its caller."""
    detail = reason[:DETAIL_LIMIT_CHARS]
    return SessionRecord(
        id=enrolment.session_id,
        status=SessionStatus.RATE_LIMITED,
        started_at=enrolment.started_at,
        ended_at=enrolment.started_at,
        duration_ms=0,
        exit_code=0,
        error=reason,
        provider=enrolment.provider,
        conversation_id=conversation_id,
        metadata=enrolment.metadata,
        termination_tag=TerminationTag(kind=RATE_LIMIT_TAG, source=GATE_SOURCE, detail=detail),
    )
