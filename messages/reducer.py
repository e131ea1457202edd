"""How a session record changes: the pure function that applies a transition to it.

`reduce(existing, transition)` is the only maker of records. It reads no clock, does no
I/O, announces nothing and never changes what it is given. Its rules, in this order:

1. A terminal record never changes: the same object comes back, whatever the transition.
   So a cancel that was written first wins over every later report. The one exception is
   a record that is only *presumed* dead, because its owner's heartbeat was missed: its
   own owner may revoke that (`Revive`), and a new owner may redo the work (`Recover`),
   after which the old one has lost its fence (architecture.md invariant 10). A session outside,
   which nobody owns, revokes it by any report about itself.
2. What an owner writes carries its fence, and must find that fence on the record. Others
   may cancel, presume dead and recover; nothing else.
3. Start time and provider are never changed. Metadata is merged key by key, in depth.

Sources: spec/animator.md 4 and 14, architecture.md invariants.
"""

from typing import Any, TypeVar, assert_never, cast

import msgspec

from midstream.messages.errors import FenceLost, RecordError
from midstream.messages.record import Fence, SessionRecord, SessionStatus
from midstream.messages.timestamps import canonical_timestamp, duration_ms
from midstream.messages.transition import (
    AnyTransition,
    AttachRunning,
    Cancel,
    DetachedReady,
    HeartbeatTouch,
    OrphanFailed,
    Outcome,
    OwnersTransition,
    PendingPreWrite,
    Recover,
    Revive,
    Terminal,
    Transition,
)

T = TypeVar("T")


def reduce(existing: SessionRecord | None, transition: AnyTransition) -> SessionRecord:
    """The record after `transition`; the same object when nothing changes.

    Raises `RecordError` when the transition needs a record and there is none, or is for
    another session, and `FenceLost` when its writer is not the owner (any more).
    """
    if existing is not None and existing.id != transition.id:
        raise RecordError(f"{_name(transition)} of {transition.id} does not fit {existing.id}")
    if existing is not None and existing.is_terminal:
        return _reopen(existing, transition)
    if existing is not None and isinstance(transition, OwnersTransition):
        _require_owner(existing, transition)
    match transition:
        case PendingPreWrite():
            return _pending(existing, transition)
        case AttachRunning() | DetachedReady():
            return _running(existing, transition)
        case HeartbeatTouch():
            return _touched(_required(existing, transition), transition)
        case Terminal():
            return _ended(existing, transition)
        case Cancel():
            return _cancelled(_required(existing, transition), transition)
        case OrphanFailed():
            return _orphaned(_required(existing, transition), transition)
        case Revive():
            return _required(existing, transition)
        case Recover():
            return _recovered(_required(existing, transition), transition)
        case _:
            assert_never(transition)


def _reopen(existing: SessionRecord, transition: AnyTransition) -> SessionRecord:
    """The ways out of a presumed death; a real end has none.

    A session that nobody owns takes the mark back by whatever it reports about itself, also
    by its end, and may still be cancelled; one with an owner has to be revived first.
    """
    if not existing.presumed_dead:
        return existing
    match transition:
        case Recover():
            return _recovered(existing, transition)
        case Revive() if existing.is_revocable_by(transition.fence):
            return _alive_again(existing, transition.last_activity_at)
        case HeartbeatTouch() | DetachedReady() | Terminal() if (
            existing.fence is None and transition.fence is None
        ):
            return reduce(_alive_again(existing, transition.last_activity_at), transition)
        case Cancel() if existing.fence is None:
            return reduce(_alive_again(existing, transition.ended_at), transition)
        case _:
            return existing


def _pending(existing: SessionRecord | None, change: PendingPreWrite) -> SessionRecord:
    base = existing or _born(change)
    return msgspec.structs.replace(
        base,
        status=SessionStatus.PENDING,
        last_activity_at=canonical_timestamp(change.last_activity_at),
        conversation_id=_supplied(change.conversation_id, base.conversation_id),
        metadata=_merged(base.metadata, change.metadata),
        authorized_tools=_supplied(change.authorized_tools, base.authorized_tools),
        fence=base.fence or change.fence,
    )


def _running(
    existing: SessionRecord | None, change: AttachRunning | DetachedReady
) -> SessionRecord:
    base = existing or _born(change)
    handle = _next_handle(base.cancel_handle, change.cancel_handle)
    beat = base.last_activity_at
    if isinstance(change, DetachedReady):
        beat = canonical_timestamp(change.last_activity_at)
        if base.status is SessionStatus.RUNNING:
            return msgspec.structs.replace(base, last_activity_at=beat, cancel_handle=handle)
    return msgspec.structs.replace(
        base,
        status=SessionStatus.RUNNING,
        last_activity_at=beat,
        conversation_id=_supplied(change.conversation_id, base.conversation_id),
        metadata=_merged(base.metadata, change.metadata),
        cancel_handle=handle,
        fence=base.fence or change.fence,
    )


def _touched(existing: SessionRecord, change: HeartbeatTouch) -> SessionRecord:
    return msgspec.structs.replace(
        existing,
        last_activity_at=canonical_timestamp(change.last_activity_at),
        recoveries=0 if change.progressed else existing.recoveries,
    )


def _ended(existing: SessionRecord | None, change: Terminal) -> SessionRecord:
    base = existing or SessionRecord(
        id=change.id,
        status=SessionStatus.PENDING,
        started_at=canonical_timestamp(change.started_at or change.ended_at),
        provider=change.provider or "unknown",
        fence=change.fence,
    )
    provider_session_id = _supplied(change.provider_session_id, base.provider_session_id)
    diagnostic = change.termination_diagnostic if change.status is Outcome.FAILED else None
    return msgspec.structs.replace(
        base,
        status=SessionStatus(change.status.value),
        ended_at=canonical_timestamp(change.ended_at),
        duration_ms=_duration(base, change.ended_at, change.duration_ms),
        exit_code=change.exit_code,
        last_activity_at=canonical_timestamp(change.last_activity_at),
        error=_supplied(change.error, base.error),
        # Promotion belongs here, or one path to the end forgets it (spec/animator.md B3).
        conversation_id=change.conversation_id or base.conversation_id or provider_session_id,
        provider_session_id=provider_session_id,
        token_usage=_supplied(change.token_usage, base.token_usage),
        cost_usd=_supplied(change.cost_usd, base.cost_usd),
        output=_supplied(change.output, base.output),
        metadata=_merged(base.metadata, change.metadata),
        termination_tag=_supplied(change.termination_tag, base.termination_tag),
        termination_diagnostic=diagnostic,
    )


def _cancelled(existing: SessionRecord, change: Cancel) -> SessionRecord:
    return msgspec.structs.replace(
        existing,
        status=SessionStatus.CANCELLED,
        ended_at=canonical_timestamp(change.ended_at),
        duration_ms=_duration(existing, change.ended_at, change.duration_ms),
        error=change.reason or existing.error,
        token_usage=_supplied(change.token_usage, existing.token_usage),
        cost_usd=_supplied(change.cost_usd, existing.cost_usd),
        output=_supplied(change.output, existing.output),
        metadata=_merged(existing.metadata, change.metadata),
    )


def _orphaned(existing: SessionRecord, change: OrphanFailed) -> SessionRecord:
    return msgspec.structs.replace(
        existing,
        status=SessionStatus.FAILED,
        ended_at=canonical_timestamp(change.ended_at),
        duration_ms=_duration(existing, change.ended_at, change.duration_ms),
        exit_code=change.exit_code,
        error=change.error,
        presumed_dead=True,
    )


def _alive_again(existing: SessionRecord, at: str) -> SessionRecord:
    """A presumed death taken back: nothing of the mark stays."""
    return msgspec.structs.replace(
        existing,
        status=SessionStatus.RUNNING,
        ended_at=None,
        duration_ms=None,
        exit_code=None,
        error=None,
        last_activity_at=canonical_timestamp(at),
        presumed_dead=False,
    )


def _recovered(existing: SessionRecord, change: Recover) -> SessionRecord:
    token = existing.fence.token + 1 if existing.fence is not None else 1
    taken = msgspec.structs.replace(
        _alive_again(existing, change.at), fence=Fence(owner=change.owner, token=token)
    )
    if existing.recoveries < change.max_recoveries:
        return msgspec.structs.replace(taken, recoveries=existing.recoveries + 1)
    return msgspec.structs.replace(
        taken,
        status=SessionStatus.DEAD_LETTERED,
        ended_at=canonical_timestamp(change.at),
        duration_ms=_duration(existing, change.at, None),
        exit_code=1,
        error=f"recovered {existing.recoveries} times without new output",
    )


def _born(change: PendingPreWrite | AttachRunning | DetachedReady) -> SessionRecord:
    return SessionRecord(
        id=change.id,
        status=SessionStatus.PENDING,
        started_at=canonical_timestamp(change.started_at),
        provider=change.provider,
        fence=change.fence,
    )


def _required(existing: SessionRecord | None, transition: AnyTransition) -> SessionRecord:
    if existing is None:
        raise RecordError(f"{_name(transition)}: there is no session {transition.id}")
    return existing


def _require_owner(existing: SessionRecord, transition: OwnersTransition) -> None:
    if existing.fence is None or existing.fence == transition.fence:
        return
    writer = "nobody" if transition.fence is None else _describe(transition.fence)
    raise FenceLost(
        f"{_name(transition)} of {transition.id} by {writer}: "
        f"the session belongs to {_describe(existing.fence)}"
    )


def _describe(fence: Fence) -> str:
    return f"{fence.owner} (token {fence.token})"


def _name(transition: Transition) -> str:
    return str(transition.__struct_config__.tag)


def _duration(existing: SessionRecord, ended_at: str, given_ms: int | None) -> int:
    if given_ms is not None:
        return max(0, given_ms)
    return duration_ms(existing.started_at, ended_at)


def _supplied(new: T | None, old: T | None) -> T | None:
    return old if new is None else new


def _next_handle(old: dict[str, Any] | None, new: dict[str, Any] | None) -> dict[str, Any] | None:
    """The handle of another process inherits nothing; the same one is added to (14.2)."""
    if old is None or new is None:
        return _supplied(new, old)
    same = all(old.get(key) == new.get(key, old.get(key)) for key in ("kind", "pgid"))
    return {**old, **new} if same else new


def _merged(old: dict[str, Any] | None, new: dict[str, Any] | None) -> dict[str, Any] | None:
    """Objects are merged in depth; lists and scalars are replaced (spec/animator.md 14.1)."""
    if old is None or new is None:
        return _supplied(new, old)
    merged = dict(old)
    for key, value in new.items():
        kept = merged.get(key)
        if isinstance(kept, dict) and isinstance(value, dict):
            value = _merged(cast("dict[str, Any]", kept), cast("dict[str, Any]", value))
        merged[key] = value
    return merged
