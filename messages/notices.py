"""What becomes known of sessions as a whole: begun, ended, or not recorded.

The Ledger is the only one that says these, from what it has written, so each crossing of a
record is told once, whichever path led there (spec/animator.md 9, B1, B3). They are what a
host subscribes to that runs many sessions; what one session says is in `events.py`.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from midstream.messages.record import Crossing, SessionRecord, SessionStatus, Shape


class SessionNotice(Shape, frozen=True, kw_only=True, tag_field="event"):
    """Base of all notices."""

    session_id: str


class Began(SessionNotice, frozen=True, kw_only=True, tag="animator.session.started"):
    """The session runs. `anima` is its role, `trigger` what asked for it, if known."""

    anima: str | None = None
    trigger: str | None = None


class Ended(SessionNotice, frozen=True, kw_only=True, tag="animator.session.ended"):
    """The session has ended, and its record is terminal. `status` is ours."""

    status: SessionStatus
    anima: str | None = None
    trigger: str | None = None
    exit_code: int | None = None
    duration_ms: int | None = None
    cost_usd: float | None = None
    error: str | None = None


class Revived(SessionNotice, frozen=True, kw_only=True, tag="animator.session.revived"):
    """Ours: the session was announced as ended because its heartbeat was missed, and lives;
    or another host has taken it over."""


class DeadLettered(SessionNotice, frozen=True, kw_only=True, tag="animator.session.dead-lettered"):
    """Ours: the session was recovered too often without new output, and is given up.

    Comes behind its `Ended` (architecture.md invariant 12).
    """

    recoveries: int


class Phase(StrEnum):
    """Which write failed."""

    INSERT = "insert"
    """The session's first record."""
    UPDATE_ROW = "update-row"
    """Its terminal record."""
    WRITE_RECORD = "write-record"
    """What was said: items of the conversation, or a transcript."""


class RecordFailed(SessionNotice, frozen=True, kw_only=True, tag="animator.session.record-failed"):
    """A write failed. It may wait in the dead-letter queue."""

    phase: Phase
    error: str


AnyNotice = Began | Ended | Revived | DeadLettered | RecordFailed


class Notice(msgspec.Struct, frozen=True):
    """A notice with its number; they count from 1 within a runtime."""

    sequence: int
    notice: AnyNotice


def notices_of(
    before: SessionRecord | None, crossing: Crossing | None, record: SessionRecord
) -> tuple[AnyNotice, ...]:
    """What there is to say after `record` was written over `before`, with this crossing."""
    match crossing:
        case None:
            return ()
        case Crossing.STARTED:
            began = Began(
                session_id=record.id,
                anima=_text(record, "role"),
                trigger=_text(record, "trigger"),
            )
            return (began,)
        case Crossing.REVIVED:
            return (Revived(session_id=record.id),)
        case Crossing.ENDED if before is not None and before.is_terminal:
            # Presumed dead, and ended otherwise: the first end is taken back before.
            return (Revived(session_id=record.id), *_ended(record))
        case Crossing.ENDED:
            return _ended(record)


def notices_say(notices: Sequence[AnyNotice], record: SessionRecord) -> bool:
    """Whether these are the last notices of a session that has this record now."""
    ends = [notice for notice in notices if isinstance(notice, Ended)]
    if ends:
        return ends[-1].status is record.status
    return not record.is_terminal


def _ended(record: SessionRecord) -> tuple[AnyNotice, ...]:
    ended = Ended(
        session_id=record.id,
        status=record.status,
        anima=_text(record, "role"),
        trigger=_text(record, "trigger"),
        exit_code=record.exit_code,
        duration_ms=record.duration_ms,
        cost_usd=record.cost_usd,
        error=record.error,
    )
    if record.status is SessionStatus.DEAD_LETTERED:
        return (ended, DeadLettered(session_id=record.id, recoveries=record.recoveries))
    return (ended,)


def _text(record: SessionRecord, key: str) -> str | None:
    value = (record.metadata or {}).get(key)
    return value if isinstance(value, str) else None
