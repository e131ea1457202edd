"""Conversations in a store: what is accepted, said, injected and finished, each atomically.

The functions that make a `ConversationWrite` are pure: from a conversation as it was read
to the operations that change it and the conversation afterwards. So a reminder is never
kept without its injection records, nor a last message without its terminal record. Every
write replaces the conversation's document and requires the writer's fence; who lost the
session, or the conversation to a newer session, gets `FenceLost` and nothing is kept.
`commit_write` carries one out, and decides again when another writer was faster.
"""

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from midstream.messages.conversation import AnyItem, AssistantItem, ToolResultItem
from midstream.messages.errors import FenceLost, MidstreamError, VersionConflict
from midstream.messages.injection import moved
from midstream.messages.record import SessionRecord
from midstream.messages.reducer import reduce
from midstream.messages.transition import (
    AttachRunning,
    Cancel,
    HeartbeatTouch,
    PendingPreWrite,
    Revive,
    Terminal,
)
from midstream.stores.conversation_draft import Claim, ConversationWrite, Draft
from midstream.stores.conversation_load import Conversation, load_conversation
from midstream.stores.sessions import KeptSession, transcript_operations
from midstream.stores.store import Book, Delete, Put, Store, encode


class ConversationBusy(MidstreamError):
    """The conversation has a live session, and may have only one."""


def accept_prompt(
    conversation: Conversation,
    opening: PendingPreWrite | AttachRunning,
    items: Sequence[AnyItem],
    *,
    version: int | None = None,
) -> ConversationWrite:
    """Put the prompt behind the conversation and begin its session, in one write.

    Raises `ConversationBusy` when the last session is live, and when the conversation is no
    longer at the `version` that the prompt was made ready for. A session that was only
    presumed dead loses the conversation to the new one, and cannot come back.
    """
    _require_idle(conversation)
    if version is not None and version != conversation.kept.version:
        problem = "somebody else has spoken there meanwhile; hand the prompt in again"
        raise ConversationBusy(f"{conversation.id}: {problem}")
    record = reduce(None, msgspec.structs.replace(opening, conversation_id=conversation.id))
    draft = Draft(conversation)
    draft.session(record, None)
    draft.items(items)
    return draft.finish(session_id=record.id, durable=True)


def append_items(
    conversation: Conversation,
    claim: Claim,
    items: Sequence[AnyItem],
    *,
    turn: int,
    attempt: int,
    at: str,
) -> ConversationWrite:
    """Put items behind the conversation. The rules of each reminder among them are on
    record from then on, as injected in this `turn` and `attempt`, at the timestamp `at`.

    New output of a recovered session counts as progress. A session that was presumed
    dead is revived by it, and one that was cancelled meanwhile keeps what it had said.
    """
    kept = _claimed(conversation, claim)
    record = _revived(kept.record, claim, at)
    said = any(isinstance(item, AssistantItem | ToolResultItem) for item in items)
    if said and record.recoveries:
        beat = HeartbeatTouch(id=record.id, fence=claim.fence, last_activity_at=at, progressed=True)
        record = reduce(record, beat)
    draft = Draft(conversation, claim)
    draft.session(record, kept)
    draft.items(items)
    draft.reminders(items, claim, turn, attempt, at)
    return draft.finish(turn=turn)


def finish(
    conversation: Conversation,
    claim: Claim,
    ending: Terminal | Cancel,
    items: Sequence[AnyItem] = (),
    *,
    turn: int,
    attempt: int,
    transcript: Sequence[object] = (),
) -> ConversationWrite:
    """Put the last items behind the conversation and end the session, in one write.

    A record that is terminal already stays as it is, and nothing is announced; the items
    are kept, for they were said. `transcript` is for a session that has none yet.
    """
    kept = _claimed(conversation, claim)
    draft = Draft(conversation, claim)
    draft.session(reduce(_revived(kept.record, claim, ending.ended_at), ending), kept)
    draft.items(items)
    draft.reminders(items, claim, turn, attempt, ending.ended_at)
    draft.add(*transcript_operations(claim.session_id, 0, transcript))
    return draft.finish(turn=turn, durable=True)


def replace_context(
    conversation: Conversation, items: Sequence[AnyItem], claim: Claim | None = None
) -> ConversationWrite:
    """Make `items` the context: a compaction, or an undo. The old ones stay in the log.

    Rules whose reminder is not among `items` are re-armed. Between sessions no claim is
    needed; raises `ConversationBusy` when there is a live session and no claim on it.
    """
    if claim is None:
        _require_idle(conversation)
    else:
        _claimed(conversation, claim)
    old, old_start = conversation.items, conversation.kept.meta.start
    start = conversation.length
    draft = Draft(replace(conversation, injections=()), claim)
    draft.items(items)
    draft.add(*(Delete(Book.INJECTIONS, record.id, 1) for record in conversation.injections))
    for record in moved(conversation.injections, old, old_start, items, start):
        draft.injection(record)
    write = draft.finish(start=start, durable=True)
    return replace(write, conversation=replace(write.conversation, items=tuple(items)))


def keep_state(
    conversation: Conversation, name: str, state: object | None, claim: Claim | None = None
) -> ConversationWrite:
    """Keep what somebody knows of the conversation, under a name; None forgets it.

    With a claim it is a write of that session, and needs its fence.
    """
    if claim is not None:
        _claimed(conversation, claim)
    states = {**conversation.kept.meta.states, name: encode(state)}
    if state is None:
        del states[name]
    return Draft(conversation, claim).finish(states=states)


def also_keep(write: ConversationWrite, name: str, state: object) -> ConversationWrite:
    """The same write, keeping `state` under a name as well (see `keep_state`)."""
    *others, document = write.operations
    kept = write.conversation.kept
    meta = msgspec.structs.replace(kept.meta, states={**kept.meta.states, name: encode(state)})
    conversation = replace(write.conversation, kept=kept._replace(meta=meta))
    assert isinstance(document, Put)
    assert document.book is Book.CONVERSATIONS
    document = msgspec.structs.replace(document, document=encode(meta))
    return replace(write, operations=(*others, document), conversation=conversation)


async def commit_write(
    store: Store,
    conversation: Conversation,
    decide: Callable[[Conversation], ConversationWrite],
    *,
    key: str | None = None,
) -> ConversationWrite:
    """Commit what `decide` makes of the conversation; the write that was committed.

    When another writer was faster, the conversation is read again and `decide` called
    again, so `decide` must not have effects. A write that had been applied before, under
    the same `key` (its own by default), is answered without anything to announce.

    Raises `StoreError`, and what `decide` raises; `VersionConflict` only when the
    conversation has not changed, so that deciding again would not help.
    """
    while True:
        write = decide(conversation)
        try:
            receipt = await store.commit(
                write.operations, key=key or write.key, durable=write.durable
            )
        except VersionConflict:
            fresh = await load_conversation(store, conversation.id, conversation)
            if (fresh.kept, fresh.session) == (conversation.kept, conversation.session):
                raise
            conversation = fresh
            continue
        if not receipt.replayed:
            return write
        return ConversationWrite((), await load_conversation(store, conversation.id))


def _require_idle(conversation: Conversation) -> None:
    last = conversation.session
    if last is not None and not last.record.is_terminal:
        raise ConversationBusy(f"{conversation.id}: session {last.record.id} is live")


def _claimed(conversation: Conversation, claim: Claim) -> KeptSession:
    """The session of the claim, which must be the last of the conversation and its own."""
    kept = conversation.session
    if kept is None or kept.record.id != claim.session_id:
        newer = "nobody" if kept is None else f"session {kept.record.id}"
        raise FenceLost(f"{conversation.id}: {claim.session_id} lost the conversation to {newer}")
    if kept.record.fence != claim.fence:
        raise FenceLost(
            f"{claim.session_id}: {claim.fence} has lost the session to {kept.record.fence}"
        )
    return kept


def _revived(record: SessionRecord, claim: Claim, at: str) -> SessionRecord:
    """What its owner writes after all takes the mark of death from a session."""
    if not record.is_revocable_by(claim.fence):
        return record
    return reduce(record, Revive(id=record.id, fence=claim.fence, last_activity_at=at))
