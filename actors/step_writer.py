"""Writes the steps of this process's sessions, and what had to wait in the dead-letter queue.

A step that the store cannot take is put into the queue and counts as kept; the session goes
on. Its later steps follow it there, so that their order stays, until the queue was emptied:
before the next step, at the start, and on every tick of the Heartbeat. Nothing is lost and
nothing arrives twice, because every step has a key that the store keeps with the outcome.
What can never arrive is put aside with the reason: somebody else owns the session by then
(`FenceLost`), or the file is no envelope. Used by the Ledger alone.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

import trio

from midstream.actors.funnel import STORE_DEADLINE_S, Funnel, Hint, quota_news, rate_limit_tag
from midstream.actors.ledger_messages import DrainCount
from midstream.messages.enrolment import ending, opening, record_unless_kept
from midstream.messages.envelope import StepEnvelope
from midstream.messages.errors import MidstreamError, StoreError, VersionConflict
from midstream.messages.events import SessionEnded
from midstream.messages.notices import Phase
from midstream.messages.record import Crossing, SessionRecord, SessionStatus
from midstream.messages.reducer import reduce
from midstream.messages.session_reports import RecordReport
from midstream.messages.stop_message_codec import STATE_NAME, stored_state
from midstream.messages.transition import Terminal
from midstream.messages.work import AcceptPrompt, AppendItems, FinishSession
from midstream.stores.conversation_draft import Claim, ConversationWrite
from midstream.stores.conversation_load import Conversation, load_conversation
from midstream.stores.conversations import (
    accept_prompt,
    also_keep,
    append_items,
    commit_write,
    finish,
)
from midstream.stores.dlq import DeadLetterQueue
from midstream.stores.sessions import apply_transition, load_session
from midstream.stores.store import Store

_log = logging.getLogger("midstream.ledger")


def decide_step(envelope: StepEnvelope) -> Callable[[Conversation], ConversationWrite]:
    """What the step means for the conversation, as it will be read."""
    decide, state = _decide_items(envelope), envelope.recording.stop_message
    if state is None:
        return decide
    kept = stored_state(state)
    return lambda conversation: also_keep(decide(conversation), STATE_NAME, kept)


def _decide_items(envelope: StepEnvelope) -> Callable[[Conversation], ConversationWrite]:
    enrolment, at = envelope.enrolment, envelope.at
    claim = Claim(enrolment.session_id, enrolment.fence)
    match envelope.recording:
        case AcceptPrompt(items):
            return lambda conversation: accept_prompt(conversation, opening(enrolment), items)
        case AppendItems(items, turn, attempt):
            return lambda conversation: append_items(
                conversation, claim, items, turn=turn, attempt=attempt, at=at
            )
        case FinishSession(items, turn, ended):
            last = ending(enrolment, ended, at)
            return lambda conversation: finish(
                conversation, claim, last, items, turn=turn, attempt=ended.attempts
            )


def phase_of(envelope: StepEnvelope) -> Phase:
    """What is missing while the step is not written."""
    match envelope.recording:
        case AcceptPrompt():
            return Phase.INSERT
        case AppendItems():
            return Phase.WRITE_RECORD
        case FinishSession():
            return Phase.UPDATE_ROW


def hint_of(ended: SessionEnded) -> Hint:
    """What the end of a session of this process says about the quota."""
    asked_s = ended.failure.retry_after_s if ended.failure is not None else None
    retry_after_ms = None if asked_s is None else math.ceil(asked_s * 1000)
    tag = None
    if ended.status is SessionStatus.RATE_LIMITED:
        tag = rate_limit_tag("stream", ended.reason)
    return Hint(tag, retry_after_ms, asked=ended.attempts > 0)


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
        self._queue = queue
        self._funnel = funnel
        self._deliver_report = deliver_report
        self._conversations: dict[str, Conversation] = {}
        self._records: dict[str, SessionRecord] = {}
        self._turns: dict[str, trio.Lock] = {}
        self._aside: set[str] = set()
        """Sessions whose steps wait in the queue."""
        self._queue_in_use = trio.Lock()

    async def recall(self) -> None:
        """Look into the queue for steps that an earlier incarnation has put there."""
        try:
            self._aside = _sessions_in(await self._queue.names())
        except StoreError as error:
            _log.warning("%s", error)

    async def keep(self, envelope: StepEnvelope) -> SessionRecord:
        """Write the step, or put it into the queue; the session's record after it.

        Steps of one session are written one after the other. Raises `FenceLost`,
        `ConversationBusy`, `RecordError`; `StoreError` if it is kept nowhere.
        """
        session_id = envelope.session_id
        async with self._turns.setdefault(session_id, trio.Lock()):
            try:
                return await self._keep(envelope)
            finally:
                if isinstance(envelope.recording, FinishSession):
                    self._forget(session_id)

    async def drain(self) -> DrainCount:
        """Write what waits in the queue, in order, until the store fails again."""
        return await self._drain("")

    async def _keep(self, envelope: StepEnvelope) -> SessionRecord:
        session_id = envelope.session_id
        if session_id in self._aside:
            await self._drain(f"{session_id}-")
        if session_id in self._aside:
            earlier = StoreError("earlier steps of the session wait in the dead-letter queue")
            return await self._set_aside(envelope, earlier)
        try:
            return await self._commit(envelope)
        except VersionConflict:
            raise
        except StoreError as error:
            if isinstance(envelope.recording, AcceptPrompt):
                # Whether the conversation is free is known to the store alone.
                await self._funnel.failed(session_id, Phase.INSERT, error)
                raise
            return await self._set_aside(envelope, error)

    async def _commit(self, envelope: StepEnvelope, *, late: bool = False) -> SessionRecord:
        """Write the step and tell what follows. `late` is one from the queue: what it says
        about the quota was heard when it came."""
        known = self._conversations.pop(envelope.session_id, None)
        written: _Written | None = None
        with trio.move_on_after(STORE_DEADLINE_S):
            written = await self._write(envelope, known)
        if written is None:
            raise StoreError(f"the store has not answered for {STORE_DEADLINE_S:g} seconds")
        self._records[envelope.session_id] = written.after
        await self._funnel.announce(written.before, written.crossing, written.after)
        if not late and isinstance(envelope.recording, FinishSession):
            hint = hint_of(envelope.recording.ended)
            await self._funnel.hear(quota_news(written.crossing, written.after, hint))
        return written.after

    async def _write(self, envelope: StepEnvelope, known: Conversation | None) -> "_Written":
        session_id = envelope.session_id
        if known is None:
            known = await load_conversation(self._store, envelope.enrolment.conversation_id)
        if isinstance(envelope.recording, FinishSession) and not _record_in(known, session_id):
            kept = await load_session(self._store, session_id)
            if kept is None:
                return await self._end_unopened(envelope, envelope.recording.ended)
        before = _record_in(known, session_id)
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
            return _Written(kept.record, None, kept.record)
        self._conversations[session_id] = write.conversation
        return _Written(before, write.crossing, after)

    async def _end_unopened(self, envelope: StepEnvelope, ended: SessionEnded) -> "_Written":
        """The prompt was never accepted, so there is no conversation to write to. A failure
        is on record all the same; a stop leaves nothing, as nothing had begun."""
        last = ending(envelope.enrolment, ended, envelope.at)
        if not isinstance(last, Terminal):
            record = record_unless_kept(envelope.enrolment, ended)
            return _Written(record, None, record)
        write = await apply_transition(self._store, last, key=envelope.key)
        return _Written(write.before, write.crossing, write.after)

    # --- the queue

    async def _set_aside(self, envelope: StepEnvelope, error: StoreError) -> SessionRecord:
        session_id = envelope.session_id
        await self._funnel.failed(session_id, phase_of(envelope), error)
        async with self._queue_in_use:
            try:
                await self._queue.put(envelope)
            except StoreError as second:
                raise StoreError(f"{error}; and {second}") from error
            self._aside.add(session_id)
        self._conversations.pop(session_id, None)
        record = self._records.get(session_id) or reduce(None, opening(envelope.enrolment))
        if isinstance(envelope.recording, FinishSession):
            ended = envelope.recording.ended
            record = reduce(record, ending(envelope.enrolment, ended, envelope.at))
            await self._funnel.hear(quota_news(Crossing.ENDED, record, hint_of(ended)))
        return record

    async def _drain(self, prefix: str) -> DrainCount:
        arrived = rejected = left = 0
        async with self._queue_in_use:
            try:
                names = [name for name in await self._queue.names() if name.startswith(prefix)]
                for position, name in enumerate(names):
                    match await self._deliver(name):
                        case _Delivery.ARRIVED:
                            arrived += 1
                        case _Delivery.REJECTED:
                            rejected += 1
                        case _Delivery.STORE_DOWN:
                            left = len(names) - position
                            break
                self._aside = _sessions_in(await self._queue.names())
            except StoreError as error:
                _log.warning("the dead-letter queue cannot be used: %s", error)
        return DrainCount(arrived, rejected, left)

    async def _deliver(self, name: str) -> "_Delivery":
        try:
            envelope = await self._queue.read(name)
            if isinstance(envelope, StepEnvelope):
                await self._commit(envelope, late=True)
            elif envelope is not None:
                await self._deliver_report(envelope.report)
        except MidstreamError as error:
            if isinstance(error, StoreError) and not isinstance(error, VersionConflict):
                _log.warning("%s waits in the dead-letter queue: %s", name, error)
                return _Delivery.STORE_DOWN
            _log.error("%s will never arrive and is put aside: %s", name, error)
            await self._queue.reject(name, f"{type(error).__name__}: {error}")
            return _Delivery.REJECTED
        await self._queue.remove(name)
        return _Delivery.ARRIVED

    def _forget(self, session_id: str) -> None:
        self._conversations.pop(session_id, None)
        self._records.pop(session_id, None)
        self._turns.pop(session_id, None)


class _Delivery(Enum):
    ARRIVED = auto()
    REJECTED = auto()
    STORE_DOWN = auto()


@dataclass(frozen=True)
class _Written:
    """What a step has done to the session's record."""

    before: SessionRecord | None
    crossing: Crossing | None
    after: SessionRecord


def _sessions_in(names: Iterable[str]) -> set[str]:
    """The sessions that have steps among these names; see `StepEnvelope.name`."""
    return {name.rsplit("-", 2)[0] for name in names}


def _record_in(conversation: Conversation, session_id: str) -> SessionRecord | None:
    """The session's record, if the session is the last that was accepted there."""
    kept = conversation.session
    return kept.record if kept is not None and kept.record.id == session_id else None
