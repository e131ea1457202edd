"""Ledger: the only writer to the store.

Everybody asks it to write, and it answers when the store has acknowledged: the steps of the
sessions of this process (`step_writer.py`), their events (`event_keeper.py`), and every other
change of a session's record, such as a cancel, a mark of death, or the report of a session
outside (`funnel.py`). What
belongs together is one commit, each carries the fence of whoever owns the session, and a key
that makes it safe to ask twice. Requests run side by side, since a store can join their
commits. What has begun is finished, and told, when the Ledger has to go.
"""

import logging
import math
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import msgspec
import trio

from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.actors.announcer import AnnouncerMessage
from midstream.actors.backoff_machine import BackoffMessage
from midstream.actors.clock import Clock
from midstream.actors.crash import crash_of
from midstream.actors.errors import AlreadyAnswered, QuestionFailed
from midstream.actors.event_keeper import EventKeeper
from midstream.actors.funnel import Funnel, Hint, rate_limit_tag
from midstream.actors.ledger_messages import (
    Apply,
    DrainQueue,
    KeepEvents,
    KeepState,
    KeepStates,
    LedgerMessage,
    LoadConversation,
    NotRecoverable,
    PresumeDead,
    Report,
    TakeOver,
    TellLeftBehind,
    Write,
)
from midstream.actors.step_writer import StepWriter
from midstream.messages.envelope import StepEnvelope
from midstream.messages.errors import FenceLost, MidstreamError, RecordError, VersionConflict
from midstream.messages.notices import Phase
from midstream.messages.record import SessionRecord
from midstream.messages.reply import Reply
from midstream.messages.session_reports import (
    HeartbeatReport,
    RecordReport,
    ReportedStatus,
    RunningReport,
    not_taken,
    taken,
)
from midstream.messages.timestamps import format_timestamp
from midstream.messages.transition import Cancel, DetachedReady, Recover
from midstream.stores.conversation_load import load_conversation
from midstream.stores.conversation_meta import load_meta
from midstream.stores.dlq import DeadLetterQueue
from midstream.stores.sessions import write_transition
from midstream.stores.store import Book, Put, Store, encode

_log = logging.getLogger("midstream.ledger")

FINISH_S = 20.0
"""Seconds in which what has begun is finished, whoever wants the Ledger to go."""


class Ledger(Actor[LedgerMessage]):
    """See the module. `queue` takes what the store cannot."""

    drains = True

    def __init__(
        self,
        store: Store,
        clock: Clock,
        queue: DeadLetterQueue,
        announcer: Address[AnnouncerMessage],
        machine: Address[BackoffMessage],
    ) -> None:
        self._store = store
        self._clock = clock
        self._funnel = Funnel(store, announcer, machine, clock)
        self._steps = StepWriter(store, queue, self._funnel, self._end_by_report)
        self._events = EventKeeper(store)

    async def started(self) -> None:
        await self._steps.recall()

    async def handle(self, message: LedgerMessage) -> None:
        match message:
            case LoadConversation():
                self.spawn(self._load, message)
            case Write():
                self.spawn(self._write, message)
            case Apply():
                self.spawn(self._apply, message)
            case PresumeDead():
                self.spawn(self._presume_dead, message)
            case TakeOver():
                self.spawn(self._take_over, message)
            case Report():
                self.spawn(self._take_report, message)
            case KeepState():
                self.spawn(self._keep_state, message)
            case KeepStates():
                self.spawn(self._keep_states, message)
            case DrainQueue():
                self.spawn(self._drain, message)
            case TellLeftBehind():
                self.spawn(self._tell_left_behind, message)
            case KeepEvents():
                self.spawn(self._keep_events, message)

    async def _load(self, request: LoadConversation) -> None:
        with self._answering(request.reply):
            conversation = await load_conversation(self._store, request.conversation_id)
            request.reply.send(conversation)

    async def _write(self, request: Write) -> None:
        envelope = StepEnvelope(
            enrolment=request.enrolment,
            step=request.step,
            at=self._now(),
            recording=request.recording,
        )
        with _to_the_end() as finishing, self._answering(request.reply):
            # To wait for other steps takes nothing of its time: they may be as slow as it is.
            finishing.deadline = math.inf

            def begin() -> None:
                finishing.deadline = trio.current_time() + FINISH_S

            request.reply.send(await self._steps.keep(envelope, begin))
            await self._funnel.forget_told()

    async def _apply(self, request: Apply) -> None:
        with _to_the_end(), self._answering(request.reply):
            request.reply.send(
                await self._funnel.apply(request.transition, transcript=request.transcript)
            )
            await self._funnel.forget_told()

    async def _presume_dead(self, request: PresumeDead) -> None:
        """Only if nobody has written since: a beat that came meanwhile is a sign of life.
        A mark that the loss of power takes away is made again, so it waits for no disk."""
        with _to_the_end(), self._answering(request.reply):
            write = write_transition(request.judged, request.mark)
            try:
                await self._store.commit(write.operations, durable=False)
            except VersionConflict:
                request.reply.send(False)
                return
            await self._funnel.tell(write)
            request.reply.send(True)
            await self._funnel.forget_told()

    async def _take_over(self, request: TakeOver) -> None:
        recover = Recover(id=request.session_id, owner=request.owner, at=self._now())
        with _to_the_end(), self._answering(request.reply):
            try:
                record = await self._funnel.apply(recover, check=_require_presumed_dead)
            except FenceLost as error:
                raise NotRecoverable(str(error)) from error
            request.reply.send(record)
            await self._funnel.forget_told()

    async def _take_report(self, request: Report) -> None:
        report, at = request.report, self._now()
        with _to_the_end(), self._answering(request.reply):
            try:
                match report:
                    case RunningReport() | HeartbeatReport():
                        record = await self._funnel.apply(report.transition(at))
                    case RecordReport():
                        record = await self._end_by_report(report)
            except MidstreamError as error:
                # Never "ok": whoever sent it has the only copy (spec/animator.md B6).
                if not isinstance(report, HeartbeatReport):
                    phase = Phase.INSERT if isinstance(report, RunningReport) else Phase.UPDATE_ROW
                    await self._funnel.failed(report.session_id, phase, error)
                request.reply.send(not_taken(report.session_id, str(error)))
            else:
                request.reply.send(taken(record))
                await self._funnel.forget_told()

    async def _end_by_report(self, report: RecordReport) -> SessionRecord:
        """The end of a session outside (spec/animator.md 5.6)."""
        at = self._now()
        transition = report.transition(at)
        tag = report.termination_tag
        if tag is None and report.status is ReportedStatus.RATE_LIMITED:
            tag = rate_limit_tag("session-record", report.error)
        try:
            return await self._funnel.apply(
                transition,
                transcript=report.transcript or (),
                key=report.key,
                hint=Hint(tag, report.retry_after_ms),
            )
        except RecordError:
            if not isinstance(transition, Cancel):
                raise
        # A cancel needs a record, and this session has none: nobody heard of its beginning.
        begin = DetachedReady(
            id=report.session_id, started_at=at, provider="unknown", last_activity_at=at
        )
        await self._funnel.apply(begin)
        return await self._funnel.apply(transition, transcript=report.transcript or ())

    async def _keep_state(self, request: KeepState) -> None:
        put = Put(Book.STATE, request.id, request.document, request.expected_version)
        with _to_the_end(), self._answering(request.reply):
            receipt = await self._store.commit([put], durable=request.durable)
            request.reply.send(receipt.results[0])

    async def _keep_states(self, request: KeepStates) -> None:
        with _to_the_end(), self._answering(request.reply):
            kept = await load_meta(self._store, request.conversation_id)
            if kept.version != request.expected_version:
                problem = f"{request.conversation_id} was changed meanwhile"
                raise VersionConflict(problem)
            states = {name: encode(state) for name, state in request.states.items()}
            meta = msgspec.structs.replace(kept.meta, states={**kept.meta.states, **states})
            await self._store.commit([kept.put(meta)])
            request.reply.send(None)

    async def _drain(self, request: DrainQueue) -> None:
        with self._answering(request.reply):
            request.reply.send(await self._steps.drain())

    async def _tell_left_behind(self, request: TellLeftBehind) -> None:
        with _to_the_end(), self._answering(request.reply):
            await self._funnel.tell_left_behind()
            request.reply.send(None)

    async def _keep_events(self, request: KeepEvents) -> None:
        with _to_the_end(), self._answering(request.reply):
            request.reply.send(await self._events.keep(request.blocks))

    def _answering(self, reply: Reply[Any]) -> "_Answering":
        return _Answering(self.address.who, reply)

    def _now(self) -> str:
        return format_timestamp(self._clock.now_ms())


def _require_presumed_dead(record: SessionRecord | None) -> None:
    if record is None:
        raise NotRecoverable("there is no such session")
    if not record.presumed_dead:
        raise NotRecoverable(f"{record.id} is {record.status}, not presumed dead")


class _Answering:
    """A block whose errors are the answer.

    What cannot be done crashes nobody. Nor does what nobody has thought of: hundreds of other
    sessions ask the same Ledger. What it remembers only saves reading, so nothing that was left
    half done can be written on.

    No generator, for the reason of `LiveAttempt`.
    """

    __slots__ = ("_reply", "_who")

    def __init__(self, who: str, reply: Reply[Any]) -> None:
        self._who = who
        self._reply = reply

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, MidstreamError):
            self._reply.fail(error)
            return True
        if isinstance(error, Exception):
            crash = crash_of(error)
            _log.error("a question failed\n%s", crash.traceback)
            with suppress(AlreadyAnswered):  # what follows an answer is for nobody who waits
                self._reply.fail(QuestionFailed(self._who, crash))
            return True
        return False


@contextmanager
def _to_the_end() -> Generator[trio.CancelScope]:
    with trio.move_on_after(FINISH_S) as scope:
        scope.shield = True
        yield scope
