"""StoreWatch: what stores are given, held against the invariants with each commit.

It follows the records of sessions, the shared pause (`pause_watch.py`), every conversation with
its reminders and its stopMessage, and the logs of events, from the operations that were committed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    TextPart,
    ToolResultItem,
)
from midstream.messages.dispatch import DISPATCH_STATUS_ID, DispatchStatus
from midstream.messages.event_log import BEGINNING, Block, Position
from midstream.messages.injection import InjectionRecord
from midstream.messages.record import SessionRecord, SessionStatus
from midstream.messages.stop_message import StopMessageState
from midstream.messages.stop_message_codec import STATE_NAME, decode_state
from midstream.messages.timestamps import parse_timestamp
from midstream.messages.transition import MAX_RECOVERIES
from midstream.stores.conversation_meta import ConversationMeta
from midstream.stores.state import GUILD_HEARTBEAT_ID, GuildHeartbeat
from midstream.stores.store import Append, Book, Delete, Log, Operation, Put
from midstream.stores.untold import UNTOLD_PREFIX
from midstream.testing.invariants import InvariantBroken, is_automatic, reminded_of
from midstream.testing.pause_watch import PauseWatch
from midstream.testing.transcript_rules import violations

_ITEM = msgspec.json.Decoder[AnyItem](AnyItem)

SILENCE_MS = 90_000
"""After so much silence a session may be presumed dead (spec/animator.md 7)."""

BEAT_MS = 35_000
"""Hosts beat every 30 seconds; what takes longer is a time in which nobody has listened."""

BURIED = "the scenario says that its host is dead"
"""The error of a mark that nobody has to have waited for."""


@dataclass
class KeptConversation:
    """One conversation, as the store has it."""

    items: list[AnyItem] = field(default_factory=list[AnyItem])
    said_by: list[str | None] = field(default_factory=list[str | None])
    """The session that each of the items belongs to."""
    injections: dict[str, InjectionRecord] = field(default_factory=dict[str, InjectionRecord])
    meta: ConversationMeta | None = None
    stop_message: StopMessageState | None = None

    @property
    def context(self) -> tuple[AnyItem, ...]:
        """What of it a request would hold."""
        return tuple(self.items[self.meta.start if self.meta is not None else 0 :])


class StoreWatch:
    """See the module. `records` are those of all sessions, by id; conversations have to be valid
    for the provider of `format`."""

    def __init__(self, format: str = "anthropic") -> None:
        self._format = format
        self.records: dict[str, SessionRecord] = {}
        self.conversations: dict[str, KeptConversation] = {}
        self.pause = PauseWatch(self.records)
        self.untold: set[str] = set()
        """The entries of what is not told yet, or is told and not taken out yet."""
        self._logged: dict[str, Position] = {}
        """How far the event log of each session goes."""
        self._writer: object = None
        self._owners: dict[str, object] = {}
        """Who has written the fence of each session last."""
        self._beat_ms: int | None = None
        self._heard_since_ms = 0
        """Since when hosts have beaten without a gap."""
        self._idle_takeovers: Counter[str] = Counter()
        """How often a session was taken over since it has said something."""

    def commit(self, operations: Sequence[Operation], writer: object = None) -> None:
        """`writer`, such as a host, has committed these together. Raises `InvariantBroken`."""
        self._writer = writer
        changed: dict[str, int] = {}
        """The conversations, and how many items each had."""
        for operation in operations:
            match operation:
                case Put(book=Book.SESSIONS, document=document):
                    self._take_record(msgspec.json.decode(document, type=SessionRecord))
                case Put(book=Book.STATE, id=name, document=document) if name == GUILD_HEARTBEAT_ID:
                    self._take_beat(msgspec.json.decode(document, type=GuildHeartbeat))
                case Put(book=Book.STATE, id=name, document=document) if name == DISPATCH_STATUS_ID:
                    self.pause.commit(msgspec.json.decode(document, type=DispatchStatus))
                case Put(book=Book.STATE, id=name) if name.startswith(UNTOLD_PREFIX):
                    self.untold.add(name)
                case Delete(book=Book.STATE, id=name):
                    self.untold.discard(name)
                case Append(log=Log.ITEMS, key=name, entries=entries):
                    kept = self._conversation(name)
                    changed[name] = len(kept.items)
                    kept.items += map(_ITEM.decode, entries)
                case Append(log=Log.EVENTS, key=name, entries=entries):
                    for entry in entries:
                        self._take_block(name, msgspec.json.decode(entry, type=Block))
                case Put(book=Book.INJECTIONS, id=name, document=document):
                    injection = msgspec.json.decode(document, type=InjectionRecord)
                    kept = self._conversation(injection.conversation_id)
                    kept.injections[name] = injection
                    changed.setdefault(injection.conversation_id, len(kept.items))
                case Delete(book=Book.INJECTIONS, id=name):
                    for kept in self.conversations.values():
                        kept.injections.pop(name, None)
                case _:
                    pass
        for operation in operations:
            if isinstance(operation, Put) and operation.book is Book.CONVERSATIONS:
                meta = msgspec.json.decode(operation.document, type=ConversationMeta)
                kept = self._conversation(meta.id)
                self._take_meta(kept, meta, changed.setdefault(meta.id, len(kept.items)))
        for name in changed:
            kept = self.conversations[name]
            _check_reminders(name, kept)
            self._check_owner(kept, len(kept.items) - changed[name])
            self._check_settled(kept)

    def said_in(self, conversation_id: str, session_id: str) -> str:
        """The prose that the model is kept to have said in a session."""
        kept = self._conversation(conversation_id)
        items = zip(kept.items, kept.said_by, strict=True)
        return "".join(
            part.text
            for item, owner in items
            if owner == session_id and isinstance(item, AssistantItem)
            for part in item.parts
            if isinstance(part, TextPart)
        )

    def _check_settled(self, kept: KeptConversation) -> None:
        """What a session has said by its end is what its provider takes. One that was taken over
        has gone on from what its lost host had left, which is healed whenever it is read."""
        session_id = kept.meta.session_id if kept.meta is not None else None
        record = self.records.get(session_id or "")
        if record is None or not record.is_terminal or record.presumed_dead:
            return
        if record.fence is not None and record.fence.token > 1:
            return
        own = [i for i, owner in zip(kept.items, kept.said_by, strict=True) if owner == record.id]
        if problems := violations(own, self._format):
            raise InvariantBroken(6, f"{record.id} has ended, and is kept with {problems}")

    def _take_block(self, session_id: str, block: Block) -> None:
        """Events are logged once and in order, by the owner of their session."""
        before = self._logged.get(session_id, BEGINNING)
        self._logged[session_id] = Position(block.epoch, block.last)
        if block.first <= before.sequence or block.epoch < before.epoch:
            raise InvariantBroken(11, f"behind {before} of {session_id} is logged {block}")
        record = self.records.get(session_id)
        if record is not None and record.fence and record.fence.token != block.epoch:
            raise InvariantBroken(10, f"{record.fence} owns {session_id}, and is logged {block}")

    def _conversation(self, name: str) -> KeptConversation:
        return self.conversations.setdefault(name, KeptConversation())

    def _check_owner(self, kept: KeptConversation, items: int) -> None:
        """Only the owner of a session writes what is said in it."""
        name = kept.meta.session_id if kept.meta is not None else None
        owner = self._owners.get(name or "", self._writer)
        if items and owner is not self._writer:
            raise InvariantBroken(10, f"{kept.items[-items:]} of {name} is not by its owner")

    def _take_record(self, new: SessionRecord) -> None:
        old = self.records.get(new.id)
        self.records[new.id] = new
        if new.fence is not None and (old is None or old.fence != new.fence):
            self._owners[new.id] = self._writer
        if old is None:
            return
        if old.is_terminal and not old.presumed_dead and old.status is not new.status:
            raise InvariantBroken(4, f"{old.id} was {old.status}, and is {new.status} now")
        if old.fence and new.fence and new.fence.token < old.fence.token:
            raise InvariantBroken(10, f"{old.id}: fence {old.fence} went back to {new.fence}")
        if old.fence and new.fence and new.fence != old.fence:
            if new.fence.token == old.fence.token:
                raise InvariantBroken(10, f"{old.id}: {new.fence} does not fence off {old.fence}")
            if not old.presumed_dead:
                raise InvariantBroken(10, f"{old.id} is {old.status}, and is taken over: {new}")
            self._take_over(new)
        elif new.is_terminal and not old.is_terminal:
            self._check_end(old, new)

    def _take_over(self, record: SessionRecord) -> None:
        self._idle_takeovers[record.id] += 1
        number = self._idle_takeovers[record.id]
        if number > MAX_RECOVERIES and record.status is not SessionStatus.DEAD_LETTERED:
            raise InvariantBroken(12, f"{record.id} was recovered {number} times without output")
        if record.recoveries < min(number, MAX_RECOVERIES):
            raise InvariantBroken(12, f"recovered {number} times, and on record is {record}")

    def _check_end(self, old: SessionRecord, new: SessionRecord) -> None:
        """Others than its owner may stop a session, give it up, and presume it dead."""
        if new.presumed_dead and new.error != BURIED:
            self._check_silence(old, new)
        elif new.status not in (SessionStatus.CANCELLED, SessionStatus.DEAD_LETTERED) and (
            not new.presumed_dead and self._owners.get(new.id, self._writer) is not self._writer
        ):
            raise InvariantBroken(10, f"{new.id} is {new.status}, which its owner has not said")

    def _check_silence(self, old: SessionRecord, mark: SessionRecord) -> None:
        """Who is presumed dead was silent for long enough, while somebody listened."""
        last_ms = parse_timestamp(old.last_activity_at) or parse_timestamp(old.started_at) or 0
        at_ms = parse_timestamp(mark.ended_at) or 0
        silent_ms = at_ms - max(last_ms, self._heard_since_ms)
        if silent_ms <= SILENCE_MS:
            raise InvariantBroken(10, f"{old} is marked as dead after {silent_ms} ms: {mark}")

    def _take_beat(self, beat: GuildHeartbeat) -> None:
        before_ms, self._beat_ms = self._beat_ms, beat.alive_ms
        if before_ms is None or (self._beat_ms or 0) - before_ms > BEAT_MS:
            self._heard_since_ms = self._beat_ms or 0

    def _take_meta(self, kept: KeptConversation, meta: ConversationMeta, items_before: int) -> None:
        session_before = kept.meta.session_id if kept.meta is not None else None
        if session_before not in (None, meta.session_id):
            before = self.records.get(session_before or "")
            if before is not None and not before.is_terminal:
                raise InvariantBroken(1, f"{meta.id}: {before.id} is live, then {meta.session_id}")
        kept.meta = meta
        kept.said_by += [meta.session_id] * (len(kept.items) - len(kept.said_by))
        stored, old = meta.states.get(STATE_NAME), kept.stop_message
        kept.stop_message = decode_state(bytes(stored)).state if stored is not None else None
        if any(
            isinstance(item, AssistantItem | ToolResultItem) for item in kept.items[items_before:]
        ):
            self._idle_takeovers.pop(meta.session_id or "", None)
        sent = [item for item in kept.items[items_before:] if is_automatic(item)]
        if sent and not _is_counted(old, kept.stop_message):
            raise InvariantBroken(7, f"{meta.id}: {sent[-1]} is kept, and is not counted")


def _is_counted(old: StopMessageState | None, new: StopMessageState | None) -> bool:
    if old is None or new is None:
        return new is not None and new.used > 0
    return new.used > old.used or new.updated_at_ms != old.updated_at_ms


def _check_reminders(name: str, kept: KeptConversation) -> None:
    reminded = reminded_of(kept.context)
    recorded = [record.rule for record in kept.injections.values()]
    if sorted(reminded) != sorted(recorded):
        raise InvariantBroken(5, f"{name} reminds of {reminded}, but on record are {recorded}")
