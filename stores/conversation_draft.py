"""How a write of a conversation is put together: guards first, its document last.

A draft grows part by part and knows, after each, how the conversation will look; `finish`
closes it. Pure, and used by conversations.py alone.
"""

from collections.abc import Sequence
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from midstream.messages.conversation import AnyItem, ReminderItem
from midstream.messages.injection import InjectionRecord
from midstream.messages.record import Crossing, Fence, SessionRecord, crossing
from midstream.stores.conversation_load import Conversation
from midstream.stores.conversation_meta import KeptMeta
from midstream.stores.sessions import KeptSession
from midstream.stores.store import Append, Book, Log, Operation, Put, RequireFence, encode
from midstream.stores.untold import untold


class Claim(msgspec.Struct, frozen=True):
    """What a session writes under: its id, and the fence that it was given."""

    session_id: str
    fence: Fence

    @property
    def guard(self) -> RequireFence:
        """The predicate of every write of this session."""
        return RequireFence(self.session_id, self.fence.token)


class ConversationWrite(msgspec.Struct, frozen=True):
    """Operations to commit, and the conversation once they are. `crossing` is what there
    is to announce then; `durable` is for `Store.commit`."""

    operations: tuple[Operation, ...]
    conversation: Conversation
    crossing: Crossing | None = None
    durable: bool = False

    @property
    def key(self) -> str:
        """An idempotency key that is bound to the content: the same write has the same
        key, and no other write has it, so a retry is never taken for something else."""
        digest = blake2b(msgspec.json.encode(self.operations), digest_size=16)
        return f"{self.conversation.id}/{digest.hexdigest()}"

    def plus(self, *operations: Operation) -> "ConversationWrite":
        """The same write with more operations, such as its events."""
        return replace(self, operations=(*self.operations, *operations))


class Draft:
    """A write in the making."""

    def __init__(self, conversation: Conversation, claim: Claim | None = None) -> None:
        self.conversation = conversation
        self._operations: list[Operation] = [] if claim is None else [claim.guard]
        self._crossing: Crossing | None = None

    def add(self, *operations: Operation) -> None:
        """Operations that change nothing that a `Conversation` shows."""
        self._operations += operations

    def session(self, record: SessionRecord, kept: KeptSession | None) -> None:
        """Keep the record; `kept` is what it replaces, and nothing is done if that is it."""
        if kept is not None and kept.record is record:
            return
        version = 0 if kept is None else kept.version
        self.add(Put(Book.SESSIONS, record.id, encode(record), version))
        before = None if kept is None else kept.record
        self._crossing = crossing(before, record)
        self.add(*untold(before, self._crossing, record, version + 1))
        session = KeptSession(record, version + 1)
        self.conversation = replace(self.conversation, session=session)

    def items(self, items: Sequence[AnyItem]) -> None:
        """Put items behind the conversation."""
        conversation = self.conversation
        if not items:
            return
        entries = tuple(encode(item) for item in items)
        self.add(Append(Log.ITEMS, conversation.id, entries, conversation.length))
        self.conversation = replace(conversation, items=(*conversation.items, *items))

    def reminders(
        self, items: Sequence[AnyItem], claim: Claim, turn: int, attempt: int, at: str
    ) -> None:
        """Record the rules of the reminders among the last `items` of the conversation."""
        conversation = self.conversation
        for position, item in enumerate(items, conversation.length - len(items)):
            if isinstance(item, ReminderItem):
                for rule in dict.fromkeys(item.rules):
                    self.injection(
                        InjectionRecord(
                            conversation_id=conversation.id,
                            session_id=claim.session_id,
                            rule=rule,
                            turn=turn,
                            attempt=attempt,
                            position=position,
                            recorded_at=at,
                        )
                    )

    def injection(self, record: InjectionRecord) -> None:
        """Keep the record of a reminder that is in the conversation."""
        self.add(Put(Book.INJECTIONS, record.id, encode(record), 0))
        injections = (*self.conversation.injections, record)
        self.conversation = replace(self.conversation, injections=injections)

    def finish(self, *, durable: bool = False, **changes: object) -> ConversationWrite:
        """The write, with these changes of the conversation's document."""
        kept = self.conversation.kept
        meta = msgspec.structs.replace(kept.meta, **changes)
        self.add(kept.put(meta))
        conversation = replace(self.conversation, kept=KeptMeta(meta, kept.version + 1))
        return ConversationWrite(tuple(self._operations), conversation, self._crossing, durable)
