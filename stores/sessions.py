"""Session records in a store: one transition in, one atomic write out.

The Ledger calls it. `write_transition` is pure: it reduces, and says which operations
keep the result, the writer's fence among them. `apply_transition` reads, writes, and
begins again when another writer was faster; so a cancel from another host and a heartbeat
from this one never overwrite each other.
"""

from collections.abc import Callable, Sequence

import msgspec

from midstream.messages.errors import FenceLost, RecordError, StoreError, VersionConflict
from midstream.messages.record import Crossing, SessionRecord, crossing
from midstream.messages.reducer import reduce
from midstream.messages.transition import AnyTransition, OwnersTransition, Recover, Revive
from midstream.stores.conversation_meta import load_meta
from midstream.stores.store import (
    Append,
    Book,
    Clear,
    Log,
    Operation,
    Put,
    RequireFence,
    Store,
    encode,
)
from midstream.stores.untold import untold


class KeptSession(msgspec.Struct, frozen=True):
    """A record and the version at which the store has it."""

    record: SessionRecord
    version: int


class SessionWrite(msgspec.Struct, frozen=True):
    """What a transition does: to the record, to those who listen, and to the store."""

    before: SessionRecord | None
    after: SessionRecord
    version: int
    """The version of the record once `operations` are committed."""
    crossing: Crossing | None
    operations: tuple[Operation, ...]

    @property
    def durable(self) -> bool:
        """Beginnings and ends survive the loss of power; heartbeats need not."""
        return self.before is None or self.after.is_terminal


def write_transition(kept: KeptSession | None, transition: AnyTransition) -> SessionWrite:
    """Raises what `reduce` raises. Without a change there is nothing to write."""
    before = None if kept is None else kept.record
    version = 0 if kept is None else kept.version
    after = reduce(before, transition)
    if after is before:
        return SessionWrite(before, after, version, None, ())
    put = Put(Book.SESSIONS, after.id, encode(after), version)
    guards = () if before is None else required_fence(transition)
    crossed = crossing(before, after)
    operations = (*guards, put, *untold(before, crossed, after, version + 1))
    return SessionWrite(before, after, version + 1, crossed, operations)


def required_fence(transition: AnyTransition) -> tuple[RequireFence, ...]:
    """The predicate of an owner's write; others have none."""
    if not isinstance(transition, OwnersTransition) or transition.fence is None:
        return ()
    return (RequireFence(transition.id, transition.fence.token),)


def transcript_operations(
    session_id: str, kept_entries: int, entries: Sequence[object]
) -> tuple[Operation, ...]:
    """Keep a transcript unless one at least as long is there (spec/animator.md 14.13)."""
    if len(entries) <= kept_entries:
        return ()
    encoded = tuple(encode(entry) for entry in entries)
    append = Append(Log.TRANSCRIPTS, session_id, encoded, 0)
    return (Clear(Log.TRANSCRIPTS, session_id, kept_entries), append) if kept_entries else (append,)


async def load_session(store: Store, id: str) -> KeptSession | None:
    """The record, or None. Raises `StoreError`."""
    stored = await store.get(Book.SESSIONS, id)
    return None if stored is None else KeptSession(stored.decode(SessionRecord), stored.version)


class Seen(msgspec.Struct, frozen=True):
    """What is believed of a session without reading it: how it was written last, or None for
    one that is new."""

    kept: KeptSession | None


async def apply_transition(
    store: Store,
    transition: AnyTransition,
    *,
    transcript: Sequence[object] = (),
    key: str | None = None,
    check: Callable[[SessionRecord | None], None] | None = None,
    seen: Seen | None = None,
) -> SessionWrite:
    """Apply `transition` to the record in the store, with the transcript in the same
    commit. The answer says what there is to announce; it is the only one who may.

    A transition that finds a terminal record changes nothing, but its transcript is kept
    (spec/animator.md 5.6). A `key` makes it safe to send again after a crash: what was
    applied once is not applied, and not announced, again. `check` sees the record that the
    transition will be applied to and raises if it must not be. `seen` saves reading the
    record, where nothing has changed since: only what changes it is decided by that, and the
    commit finds out. An answer that is lost is asked for once more, if there is something to
    announce. Raises `StoreError`, what `reduce` raises, and what `check` raises.
    """
    while True:
        believed, seen = seen, None
        kept = await load_session(store, transition.id) if believed is None else believed.kept
        if check is not None:
            check(kept.record if kept is not None else None)
        try:
            write = write_transition(kept, transition)
        except (RecordError, FenceLost):
            if believed is None:
                raise
            continue
        if believed is not None and not write.operations:
            continue
        operations = write.operations + await _return_guard(store, write, transition)
        if transcript:
            length = await store.length(Log.TRANSCRIPTS, transition.id)
            operations += transcript_operations(transition.id, length, transcript)
        try:
            is_old = await _commit_twice(store, write, operations, key)
        except VersionConflict:
            continue  # another writer was faster, so the record has moved on
        return await _as_it_is(store, write) if is_old else write


async def _commit_twice(
    store: Store, write: SessionWrite, operations: Sequence[Operation], key: str | None
) -> bool:
    """Whether this was committed by an earlier call. Whoever does not know that he has written
    something tells nobody of it, so an answer that is lost is asked for once more."""
    try:
        return (await store.commit(operations, key=key, durable=write.durable)).replayed
    except VersionConflict:
        raise
    except StoreError:
        if write.crossing is None:
            raise
    try:
        await store.commit(operations, key=key, durable=write.durable)
    except VersionConflict:
        kept = await load_session(store, write.after.id)
        if kept != KeptSession(write.after, write.version):
            raise
    return False


async def _return_guard(
    store: Store, write: SessionWrite, transition: AnyTransition
) -> tuple[Operation, ...]:
    """A session that comes back from the dead must still have its conversation.

    A newer session may have been accepted there since. Writing the conversation's document
    again, unchanged, makes that a conflict (architecture.md invariant 1).
    """
    conversation_id = write.after.conversation_id
    if not write.operations or not isinstance(transition, Revive | Recover) or not conversation_id:
        return ()
    kept = await load_meta(store, conversation_id)
    if kept.version == 0:
        return ()
    if kept.meta.session_id != transition.id:
        raise FenceLost(
            f"{transition.id} lost conversation {conversation_id} to {kept.meta.session_id}"
        )
    return (kept.put(kept.meta),)


async def _as_it_is(store: Store, write: SessionWrite) -> SessionWrite:
    """The answer for a transition that had been applied before: nothing to announce."""
    kept = await load_session(store, write.after.id)
    if kept is None:
        return SessionWrite(write.before, write.after, write.version, None, ())
    return SessionWrite(kept.record, kept.record, kept.version, None, ())
