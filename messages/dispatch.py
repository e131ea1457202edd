"""May anyone dispatch now? The shared pause, and the pure machine that decides on it.

`DispatchStatus` is one document for all hosts; the BackoffMachine actor is its only
writer and does what `decide` says. Promises: while a window is open nothing passes; an
open window only ever grows; whether a session is a probe is judged from its record (it
started after the pause began), so a restart forgets nothing; a user's cancel and a lost
host say nothing about quota and change nothing. Times are milliseconds since 1970.

Sources: spec/animator.md 6, B9, B10, B17, 14.3 to 14.7; architecture.md invariant 8.
"""

from enum import StrEnum
from typing import NamedTuple, assert_never

import msgspec

from midstream.messages.backoff import BackoffSettings, window_ms
from midstream.messages.record import SessionRecord, SessionStatus, Shape, TerminationTag
from midstream.messages.timestamps import format_timestamp, parse_timestamp

DISPATCH_STATUS_ID = "dispatch-status"
RATE_LIMIT_TAG = "rate-limit"

GATEWAY_TRIGGER = "gateway"
"""`metadata.trigger` of a request that went through the HTTP gateway."""


class DispatchState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"


class DispatchStatus(Shape, frozen=True, kw_only=True):
    """The document. A paused one stays paused after its window, until a probe has ended."""

    id: str
    state: DispatchState
    backoff_level: int
    paused_since: str | None = None
    paused_until: str | None = None
    pause_reason: str | None = None
    backoff_last_hit_at: str | None = None
    last_triggering_session: str | None = None
    probes: tuple[str, ...] = ()
    """Ours: sessions that probe now, where `probe_limit` bounds them; and always those that
    began before the pause and ask their provider again after its window."""


NEVER_PAUSED = DispatchStatus(id=DISPATCH_STATUS_ID, state=DispatchState.RUNNING, backoff_level=0)
"""What an absent document means."""


def is_dispatchable(status: DispatchStatus, now_ms: int) -> bool:
    """Whether the window is closed: no pause, or one that is over at `now_ms`.

    A `paused_until` that is no instant does not pause anybody for ever: see
    `malformed_pause`.
    """
    if status.state is DispatchState.RUNNING:
        return True
    until_ms = parse_timestamp(status.paused_until)
    return until_ms is None or until_ms <= now_ms


def malformed_pause(status: DispatchStatus) -> str | None:
    """The warning that a pause without a readable end deserves, or None."""
    if status.paused_until is None or parse_timestamp(status.paused_until) is not None:
        return None
    return f"pausedUntil of the dispatch status is no instant: {status.paused_until!r}"


class DispatchEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of what the machine hears."""


class QuotaSpent(DispatchEvent, frozen=True, kw_only=True, tag="quota_spent"):
    """A session was told that the quota is spent. `retry_after_ms` is what the provider
    asked for, if it did."""

    session_id: str
    started_at: str
    reason: str = "rate limited"
    retry_after_ms: int | None = None


class OtherEnd(DispatchEvent, frozen=True, kw_only=True, tag="other_end"):
    """A session ended in another way, so the provider does answer."""

    session_id: str
    started_at: str


class NeutralEnd(DispatchEvent, frozen=True, kw_only=True, tag="neutral_end"):
    """A session ended, or was admitted and never began, and nobody learned anything."""

    session_id: str


class Booted(DispatchEvent, frozen=True, kw_only=True, tag="booted"):
    """The first event after a start."""


class DispatchAsked(DispatchEvent, frozen=True, kw_only=True, tag="dispatch_asked"):
    """A session wants to start. Whoever is admitted must report an end, whatever it is.

    One that `has_begun` was admitted before the pause, and wants to ask its provider again.
    """

    session_id: str
    has_begun: bool = False


AnyDispatchEvent = QuotaSpent | OtherEnd | NeutralEnd | Booted | DispatchAsked


def end_of(
    record: SessionRecord,
    late_tag: TerminationTag | None = None,
    retry_after_ms: int | None = None,
) -> QuotaSpent | OtherEnd | NeutralEnd:
    """What the end of `record` says about the quota.

    `late_tag` is that of a report which came too late to change the record: a spent quota
    is true whoever was first (14.7).
    """
    if (record.metadata or {}).get("trigger") == GATEWAY_TRIGGER:
        # Its clients bring keys of their own: the gateway has a window for each of them.
        return NeutralEnd(session_id=record.id)
    late = late_tag is not None and late_tag.kind == RATE_LIMIT_TAG
    if late or record.status is SessionStatus.RATE_LIMITED:
        tag = late_tag if late else record.termination_tag
        detail = tag.detail if tag is not None else None
        return QuotaSpent(
            session_id=record.id,
            started_at=record.started_at,
            reason=detail or record.error or "rate limited",
            retry_after_ms=retry_after_ms,
        )
    silent = (SessionStatus.CANCELLED, SessionStatus.DEAD_LETTERED)
    if record.presumed_dead or record.status in silent:
        return NeutralEnd(session_id=record.id)
    return OtherEnd(session_id=record.id, started_at=record.started_at)


class DispatchEffect(msgspec.Struct, frozen=True, kw_only=True, tag_field="effect"):
    """Base of what the actor has to do beside keeping the status."""


class Admitted(DispatchEffect, frozen=True, kw_only=True, tag="admitted"):
    """The session may start."""

    session_id: str


class Refused(DispatchEffect, frozen=True, kw_only=True, tag="refused"):
    """The session may not: no record, no event (architecture.md invariant 8)."""

    session_id: str
    reason: str


class Paused(DispatchEffect, frozen=True, kw_only=True, tag="paused"):
    """A window opened, or an open one grew."""

    until: str
    level: int
    reason: str


class Resumed(DispatchEffect, frozen=True, kw_only=True, tag="resumed"):
    """The pause is over."""


class Warned(DispatchEffect, frozen=True, kw_only=True, tag="warned"):
    """Something for the log."""

    message: str


AnyDispatchEffect = Admitted | Refused | Paused | Resumed | Warned


class Decision(NamedTuple):
    """The next status (the same object when nothing is to be written) and the effects."""

    status: DispatchStatus
    effects: tuple[AnyDispatchEffect, ...] = ()


def decide(
    status: DispatchStatus, event: AnyDispatchEvent, now_ms: int, settings: BackoffSettings
) -> Decision:
    """What `event` does to the shared pause (the table of spec/animator.md 6)."""
    match event:
        case QuotaSpent():
            return _quota_spent(status, event, now_ms, settings)
        case OtherEnd():
            return _other_end(status, event, now_ms)
        case NeutralEnd():
            return Decision(_without_probe(status, event.session_id))
        case Booted():
            return _booted(status, now_ms, settings)
        case DispatchAsked():
            return _asked(status, event, now_ms, settings)
        case _:
            assert_never(event)


def _quota_spent(
    status: DispatchStatus, event: QuotaSpent, now_ms: int, settings: BackoffSettings
) -> Decision:
    hit_at = format_timestamp(now_ms)
    last = (status.last_triggering_session, status.backoff_last_hit_at)
    if status.state is DispatchState.RUNNING and last == (event.session_id, hit_at):
        # It was kept, and nobody said so; its pause is over.
        return Decision(status)
    noted = msgspec.structs.replace(
        _without_probe(status, event.session_id),
        backoff_last_hit_at=hit_at,
        last_triggering_session=event.session_id,
    )
    asked_ms = now_ms + max(0, event.retry_after_ms or 0)
    if status.state is DispatchState.RUNNING:
        # Level 0, except for a level that a restart has kept.
        return _paused(noted, event, status.backoff_level, now_ms, asked_ms, settings)
    if is_probe(status, event.session_id, event.started_at, now_ms):
        return _paused(noted, event, status.backoff_level + 1, now_ms, asked_ms, settings)
    until_ms = parse_timestamp(status.paused_until)
    if event.retry_after_ms is None or (until_ms is not None and asked_ms <= until_ms):
        return Decision(noted)
    until = format_timestamp(asked_ms)
    grown = msgspec.structs.replace(noted, paused_until=until)
    return Decision(grown, (Paused(until=until, level=status.backoff_level, reason=event.reason),))


def _paused(
    noted: DispatchStatus,
    event: QuotaSpent,
    level: int,
    now_ms: int,
    asked_ms: int,
    settings: BackoffSettings,
) -> Decision:
    """A new window, where none is open: never shorter than the provider asked."""
    until = format_timestamp(max(now_ms + window_ms(level, settings), asked_ms))
    paused = msgspec.structs.replace(
        noted,
        state=DispatchState.PAUSED,
        backoff_level=level,
        paused_since=format_timestamp(now_ms),
        paused_until=until,
        pause_reason=event.reason,
        probes=(),
    )
    return Decision(paused, (Paused(until=until, level=level, reason=event.reason),))


def _other_end(status: DispatchStatus, event: OtherEnd, now_ms: int) -> Decision:
    if status.state is DispatchState.RUNNING:
        return Decision(_resumed(status, level=0) if status.backoff_level else status)
    if not is_probe(status, event.session_id, event.started_at, now_ms):
        return Decision(_without_probe(status, event.session_id))
    return Decision(_resumed(status, level=0), (Resumed(),))


def _booted(status: DispatchStatus, now_ms: int, settings: BackoffSettings) -> Decision:
    if status.state is DispatchState.RUNNING or not is_dispatchable(status, now_ms):
        return Decision(status)
    warning = malformed_pause(status)
    level = status.backoff_level if settings.keep_level_on_boot else 0
    effects = (Resumed(),) if warning is None else (Warned(message=warning), Resumed())
    return Decision(_resumed(status, level), effects)


def _asked(
    status: DispatchStatus, asked: DispatchAsked, now_ms: int, settings: BackoffSettings
) -> Decision:
    session_id = asked.session_id
    if not is_dispatchable(status, now_ms):
        return Decision(status, (Refused(session_id=session_id, reason=refusal(status)),))
    warning = malformed_pause(status)
    warned = () if warning is None else (Warned(message=warning),)
    admitted = (*warned, Admitted(session_id=session_id))
    if status.state is DispatchState.RUNNING or session_id in status.probes:
        return Decision(status, admitted)
    limit = settings.probe_limit
    if not limit and not asked.has_begun:
        return Decision(status, admitted)
    if limit and len(status.probes) >= limit:
        reason = f"{refusal(status)}; waiting for {', '.join(status.probes)}"
        return Decision(status, (*warned, Refused(session_id=session_id, reason=reason)))
    probing = msgspec.structs.replace(status, probes=(*status.probes, session_id))
    return Decision(probing, admitted)


def refusal(status: DispatchStatus) -> str:
    """Why nobody may dispatch, for the result of a refused session."""
    return f"{status.pause_reason or 'rate limited'} (paused until {status.paused_until})"


def is_probe(status: DispatchStatus, session_id: str, started_at: str, now_ms: int) -> bool:
    """Whether a session was dispatched after the pause began (14.3) and its window ended.

    What ends in an open window was dispatched before its host had heard of the pause, or
    of its growth, and must neither close the window nor escalate. One that began before the
    pause, and was let go on after its window, is among the `probes`. A pause without a
    readable beginning is ended or renewed by any session.
    """
    if not is_dispatchable(status, now_ms):
        return False
    since_ms, started_ms = parse_timestamp(status.paused_since), parse_timestamp(started_at)
    if since_ms is None or session_id in status.probes:
        return True
    return started_ms is not None and started_ms > since_ms


def _resumed(status: DispatchStatus, level: int) -> DispatchStatus:
    """Running again; who hit the limit last, and when, stays for the audit."""
    return msgspec.structs.replace(
        status,
        state=DispatchState.RUNNING,
        backoff_level=level,
        paused_since=None,
        paused_until=None,
        pause_reason=None,
        probes=(),
    )


def _without_probe(status: DispatchStatus, session_id: str) -> DispatchStatus:
    if session_id not in status.probes:
        return status
    left = tuple(probe for probe in status.probes if probe != session_id)
    return msgspec.structs.replace(status, probes=left)
