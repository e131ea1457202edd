"""Writes the steps of this process's sessions, and what had to wait in the dead-letter queue.

A step that the store cannot take is put into the queue and counts as kept; the session goes
on. Its later steps follow it there, so that their order stays, until the queue was emptied:
before the next step, at the start, and on every tick of the Heartbeat. Nothing is lost and
nothing arrives twice, because every step has a key that the store keeps with the outcome.
What can never arrive is put aside with the reason: somebody else owns the session by then
(`FenceLost`), or the file is no envelope. Used by the Ledger alone.
"""

import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import msgspec
import trio

from midstream.actors.dead_letter_office import DeadLetterOffice, NoAnswer
from midstream.actors.funnel import STORE_DEADLINE_S, Funnel, quota_news
from midstream.actors.ledger_messages import DrainCount
from midstream.actors.steps import crossing_of, decide_step, hint_of, phase_of
from midstream.messages.enrolment import ending, opening, record_unless_kept
from midstream.messages.envelope import AnyEnvelope, StepEnvelope
from midstream.messages.errors import MidstreamError, StoreError, VersionConflict
from midstream.messages.events import SessionEnded
from midstream.messages.notices import Phase
from midstream.messages.record import Crossing, SessionRecord
from midstream.messages.reducer import reduce
from midstream.messages.session_reports import RecordReport
from midstream.messages.transition import Terminal
from midstream.messages.work import AcceptPrompt, FinishSession
from midstream.stores.conversation_draft import ConversationWrite
from midstream.stores.conversation_load import Conversation, load_conversation
from midstream.stores.conversations import commit_write
from midstream.stores.dlq import DeadLetterQueue
from midstream.stores.sessions import apply_transition, load_session
from midstream.stores.store import Store

_log = logging.getLogger("midstream.ledger")


TOLD_KEPT = 4_096
"""Steps of which is remembered that they were told of: a step is asked for again soon."""


class StepWriter:
    """See the module. What it remembers of live sessions only saves reading: every write is
    checked by the store against what is there."""

    def __init__(
        self,
        store: Store,
        queue: DeadLetterQueue,
        funnel: Funnel,
        deliver_report: Callable[[RecordReport], Awaitable[object]],
    ) -> None:
        self._store = store
        self._office = DeadLetterOffice(store, queue, self._write_letter)
        self._funnel = funnel
        self._deliver_report = deliver_report
        self._conversations: dict[str, Conversation] = {}
        self._records: dict[str, SessionRecord] = {}
        self._turns: dict[str, trio.Lock] = {}
        self._own_letters: set[str] = set()
        """Names of what this incarnation has put into the queue."""
        self._told: dict[str, None] = {}
        """Keys of the steps of which was told lately, the newest last."""

    async def recall(self) -> None:
        """Look into the queue for steps that an earlier incarnation has put there."""
        await self._office.recall()

    async def keep(self, envelope: StepEnvelope, at_its_turn: Callable[[], None]) -> SessionRecord:
        """Write the step, or put it into the queue; the session's record after it.

        Steps of one session are written one after the other; `at_its_turn` is called when those
        before it are. Raises `FenceLost`, `ConversationBusy`, `RecordError`; `StoreError` if it is
        kept nowhere.
        """
        session_id = envelope.session_id
        async with self._turns.setdefault(session_id, trio.Lock()):
            at_its_turn()
            try:
                return await self._keep(envelope)
            finally:
                if isinstance(envelope.recording, FinishSession):
                    self._forget(session_id)

    async def drain(self) -> DrainCount:
        """Write what waits in the queue."""
        return await self._office.deliver()

    async def _keep(self, envelope: StepEnvelope) -> SessionRecord:
        session_id = envelope.session_id
        if self._office.keeps_back(session_id):
            await self._office.deliver(session_id)
        if self._office.keeps_back(session_id):
            earlier = StoreError("earlier steps of the session wait in the dead-letter queue")
            return await self._set_aside(envelope, earlier)
        try:
            return await self._commit_twice(envelope)
        except VersionConflict:
            raise
        except StoreError as error:
            if isinstance(envelope.recording, AcceptPrompt):
                # Whether the conversation is free is known to the store alone.
                await self._funnel.failed(session_id, Phase.INSERT, error)
                raise
            return await self._set_aside(envelope, error)

    async def _commit_twice(self, envelope: StepEnvelope) -> SessionRecord:
        """A connection that broke is worth a second try, which the key makes safe. Silence
        is not: it has cost the time already."""
        try:
            return await self._commit(envelope)
        except (VersionConflict, NoAnswer):
            raise
        except StoreError as error:
            _log.info("%s is tried again: %s", envelope.key, error)
            return await self._commit(envelope)

    async def _commit(self, envelope: StepEnvelope, *, late: bool = False) -> SessionRecord:
        """Write the step and tell what follows, once. `late` is one from the queue: what it
        says about the quota was heard when it was put there."""
        known = self._conversations.pop(envelope.session_id, None)
        written: _Written | None = None
        with trio.move_on_after(STORE_DEADLINE_S), _failing_as_a_store(envelope):
            written = await self._write(envelope, known)
        if written is None:
            raise NoAnswer(f"the store has not answered for {STORE_DEADLINE_S:g} seconds")
        before, crossing, after = written.before, written.crossing, written.after
        if written.is_old and self._is_untold(envelope, late=late):
            before, crossing = None, crossing_of(envelope, after)
        self._records[envelope.session_id] = after
        may_be_told = True
        if isinstance(envelope.recording, FinishSession) and not late:
            hint = hint_of(envelope.recording.ended)
            may_be_told = await self._funnel.hear(quota_news(crossing, after, hint))
        if crossing is not None:
            self._remember_told(envelope.key)
            if may_be_told:
                await self._funnel.announce(before, crossing, after, written.version)
        return after

    def _is_untold(self, envelope: StepEnvelope, *, late: bool) -> bool:
        """Whether nobody has told of a step that turns out to have been written before. A
        letter of an earlier process was told of when it was written."""
        return envelope.key not in self._told and (not late or envelope.name in self._own_letters)

    def _remember_told(self, key: str) -> None:
        self._told[key] = None
        if len(self._told) > TOLD_KEPT:
            del self._told[next(iter(self._told))]

    async def _write(self, envelope: StepEnvelope, known: Conversation | None) -> "_Written":
        session_id = envelope.session_id
        if known is None:
            known = await load_conversation(self._store, envelope.enrolment.conversation_id)
        if isinstance(envelope.recording, FinishSession) and not _record_in(known, session_id):
            kept = await load_session(self._store, session_id)
            if kept is None:
                return await self._end_unopened(envelope, envelope.recording.ended)
        before = _record_in(known, session_id)
        if isinstance(envelope.recording, AcceptPrompt) and before is not None:
            self._conversations[session_id] = known
            return _Written(before, None, before, is_old=True)
        step = decide_step(envelope)

        def decide(conversation: Conversation) -> ConversationWrite:
            nonlocal before
            before = _record_in(conversation, session_id)
            return step(conversation)

        write = await commit_write(self._store, known, decide, key=envelope.key)
        after = _record_in(write.conversation, session_id)
        if after is None:  # written before, and the conversation has gone on
            kept = await load_session(self._store, session_id)
            assert kept is not None
            return _Written(kept.record, None, kept.record, is_old=True)
        self._conversations[session_id] = write.conversation
        return _Written(
            before, write.crossing, after, is_old=not write.operations, version=_version_in(write)
        )

    async def _end_unopened(self, envelope: StepEnvelope, ended: SessionEnded) -> "_Written":
        """The prompt was never accepted, so there is no conversation to write to. A failure
        is on record all the same; a stop leaves nothing, as nothing had begun."""
        last = ending(envelope.enrolment, ended, envelope.at)
        if not isinstance(last, Terminal):
            record = record_unless_kept(envelope.enrolment, ended)
            return _Written(record, None, record)
        write = await apply_transition(self._store, last, key=envelope.key)
        return _Written(
            write.before,
            write.crossing,
            write.after,
            is_old=not write.operations,
            version=write.version if write.operations else None,
        )

    # --- the queue

    async def _set_aside(self, envelope: StepEnvelope, error: StoreError) -> SessionRecord:
        session_id = envelope.session_id
        await self._funnel.failed(session_id, phase_of(envelope), error)
        try:
            await self._office.put(envelope)
        except StoreError as second:
            raise StoreError(f"{error}; and {second}") from error
        self._own_letters.add(envelope.name)
        self._conversations.pop(session_id, None)
        record = self._records.get(session_id) or reduce(None, opening(envelope.enrolment))
        if isinstance(envelope.recording, FinishSession):
            ended = envelope.recording.ended
            record = reduce(record, ending(envelope.enrolment, ended, envelope.at))
            await self._funnel.hear(quota_news(Crossing.ENDED, record, hint_of(ended)))
        return record

    async def _write_letter(self, envelope: AnyEnvelope) -> None:
        if isinstance(envelope, StepEnvelope):
            await self._commit(envelope, late=True)
            self._own_letters.discard(envelope.name)
            if envelope.session_id not in self._turns:  # it is over, or lived elsewhere
                self._forget(envelope.session_id)
        else:
            await self._deliver_report(envelope.report)

    def _forget(self, session_id: str) -> None:
        self._conversations.pop(session_id, None)
        self._records.pop(session_id, None)
        self._turns.pop(session_id, None)


@contextmanager
def _failing_as_a_store(envelope: StepEnvelope) -> Generator[None]:
    """What nobody has thought of counts as a failure of the store where the step can wait in
    the queue for it: so it is not lost."""
    try:
        yield
    except MidstreamError:
        raise
    except Exception as error:
        if isinstance(envelope.recording, AcceptPrompt):
            raise
        _log.exception("a bug keeps %s from being written", envelope.key)
        raise StoreError(f"{envelope.key} cannot be written: {error!r}") from error


class _Written(msgspec.Struct, frozen=True):
    """What a step has done to the session's record."""

    before: SessionRecord | None
    crossing: Crossing | None
    after: SessionRecord
    is_old: bool = False
    """It had been written before."""
    version: int | None = None
    """That this write has given the record; None for one that had been written before."""


def _version_in(write: ConversationWrite) -> int | None:
    kept = write.conversation.session
    return kept.version if kept is not None and write.operations else None


def _record_in(conversation: Conversation, session_id: str) -> SessionRecord | None:
    """The session's record, if the session is the last that was accepted there."""
    kept = conversation.session
    return kept.record if kept is not None and kept.record.id == session_id else None
