"""Session: one accepted prompt, from its acceptance to its one terminal outcome.

It owns the turn, and through the Ledger the conversation and the record. All decisions
are those of `Turn`; this actor feeds it and carries out the effects, in order. A stop
that waits in the mailbox is handled before anything else that waits there, so that
nothing which was scheduled earlier can still start a request (architecture.md invariant 3).
Whatever way the actor goes, the session is ended on record and announced, once.
"""

import logging
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
import trio

from midstream.actors.abort_latch import AbortLatch
from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.actors.announcer import Announce, AnnouncerMessage
from midstream.actors.errors import AskFailed, AskTimeout, MailboxFull
from midstream.actors.ledger_messages import LedgerMessage, LoadConversation, Write
from midstream.actors.outcome import Outcome
from midstream.actors.retry_scheduler import SchedulerMessage
from midstream.actors.rule_matcher import MatcherMessage
from midstream.actors.stream_monitor import MonitorMessage
from midstream.actors.submit import Opening, Prompt, Submit
from midstream.actors.tool_runner import ToolRunnerMessage
from midstream.actors.turn import Message, Turn
from midstream.actors.turn_effects import (
    Abort,
    AskForWork,
    DropTimers,
    Effect,
    FindCalls,
    Leave,
    LimitTo,
    Publish,
    Record,
    RunCalls,
    SetTimers,
    Start,
    StopCalls,
)
from midstream.actors.turn_settings import TurnSettings
from midstream.actors.work_probe import AskWork, WorkAnswers, WorkProbeMessage
from midstream.messages.enrolment import Enrolment, as_recorded, record_unless_kept
from midstream.messages.errors import MidstreamError
from midstream.messages.events import AnyEvent, SessionEnded
from midstream.messages.lifecycle import AnyExit, Crashed, Down
from midstream.messages.record import SessionRecord
from midstream.messages.reply import ToNobody
from midstream.messages.work import (
    ActorLost,
    Cancel,
    CancelTools,
    Detach,
    FindTools,
    ForgetTimers,
    Interrupt,
    LimitAttempt,
    Recorded,
    RecordFailed,
    RunTools,
    StartAttempt,
    StartTimers,
    StreamClosed,
    TimersLost,
    ToolsLost,
    WatchAttempt,
    WorkKnown,
)
from midstream.stores.conversation_load import Conversation

SessionMessage = Message | Down

_log = logging.getLogger("midstream.session")

RECORD_DEADLINE_S = 30.0
"""Seconds that a write may take before it counts as failed."""

WORK_DEADLINE_S = 10.0
"""Seconds for the task list, which has a shorter deadline of its own."""

LAST_WORD_DEADLINE_S = 3.0
"""Seconds for the terminal record when the session is stopped from outside."""


class Neighbours(msgspec.Struct, frozen=True):
    """The addresses that a session talks to, and the latch that ends its attempts."""

    aborts: AbortLatch
    monitor: Address[MonitorMessage]
    matcher: Address[MatcherMessage]
    scheduler: Address[SchedulerMessage]
    tools: Address[ToolRunnerMessage]
    work: Address[WorkProbeMessage]
    ledger: Address[LedgerMessage]
    announcer: Address[AnnouncerMessage]


class Session(Actor[SessionMessage]):
    """See the module. `outcome` is settled when the session has ended."""

    def __init__(
        self,
        enrolment: Enrolment,
        settings: TurnSettings,
        prompt: Prompt,
        submit: Submit,
        neighbours: Neighbours,
        outcome: Outcome,
    ) -> None:
        self._enrolment = enrolment
        self._record: SessionRecord | None = None
        self._settings = settings
        self._turn = Turn(settings, (), {}, 0, 0.0)
        self._prompt = prompt
        self._submit = submit
        self._neighbours = neighbours
        self._outcome = outcome

    async def started(self) -> None:
        near = self._neighbours
        self.watch(near.monitor)
        self.watch(near.matcher)
        self.watch(near.scheduler)
        self.watch(near.tools)
        settings = self._settings
        conversation: Conversation = await near.ledger.ask_through_crashes(
            lambda reply: LoadConversation(settings.conversation_id, reply), RECORD_DEADLINE_S
        )
        opening = await self._submit.opening(settings, conversation)
        self._turn = Turn(
            settings,
            opening.context,
            conversation.recorded,
            conversation.turn,
            trio.current_time(),
            self._submit.clock.now_ms(),
            opening.continuing,
        )
        if recoveries := self._enrolment.recoveries:
            await self._carry_out(self._turn.resume(recoveries))
        else:
            self.spawn(self._prepare, opening)

    async def _prepare(self, opening: Opening) -> None:
        """Beside the mailbox, so that a stop does not have to wait for files and hooks."""
        prepared = await self._submit.prepare(
            self._prompt, self._enrolment.session_id, self._settings, opening
        )
        await self.address.tell(prepared)

    async def handle_batch(self, messages: tuple[SessionMessage, ...]) -> None:
        for message in stops_first(messages):
            if isinstance(message, Down):
                message = self._lost(message)
            await self._carry_out(self._turn.receive(message, trio.current_time()))

    async def stopped(self, reason: AnyExit) -> None:
        # Helpers that are just starting may have an order of this session in their mailboxes.
        self._neighbours.aborts.abort_all()
        crash = reason.error if isinstance(reason, Crashed) else self._crash_nearby()
        why = crash or "stopped by its supervisor"
        last = self._turn.abandon(why, trio.current_time(), crashed=crash is not None)
        if last is None:
            return
        ended, left = last.ended, deque(last.records)
        until = trio.current_time() + LAST_WORD_DEADLINE_S
        try:
            while left:
                kept = await self._ask_ledger(left[0], until)
                left.popleft()
                if kept.is_terminal:
                    ended = as_recorded(last.ended, kept)
            with trio.move_on_at(until):
                await self._announce((ended,))
        except AskTimeout as error:
            if error.picked_up:
                left.popleft()
        finally:
            self._hand_over(left)
            self._settle(ended)

    def _hand_over(self, records: Iterable[Record]) -> None:
        """What was not written in time: the Ledger is to do it, though nobody waits for that."""
        for record in records:
            write = Write(self._enrolment, record.step, record.recording, ToNobody())
            try:
                self._neighbours.ledger.tell_nowait(write)
            except MailboxFull as error:
                _log.warning("%s: not recorded: %s", self._enrolment.session_id, error)

    def _crash_nearby(self) -> str | None:
        """The crash of a helper for which this session is given up, or None."""
        near = self._neighbours
        for helper in (near.scheduler, near.matcher, near.monitor, near.tools):
            if helper.crash is not None:
                return f"{helper.who}: {helper.crash.error}"
        return None

    def _lost(self, down: Down) -> ActorLost | TimersLost | ToolsLost:
        near = self._neighbours
        crashed = isinstance(down.reason, Crashed)
        reason = down.reason.error if isinstance(down.reason, Crashed) else "stopped"
        if down.who == near.tools.who:
            return ToolsLost(f"{down.who}: {reason}")
        if down.who == near.scheduler.who and crashed:
            return TimersLost(f"{down.who}: {reason}")
        held_stream, live = down.who == near.monitor.who, near.aborts.live_attempt
        if held_stream and live:
            self.spawn(self._tell_when_closed, live)
        return ActorLost(f"{down.who}: {reason}", held_stream, crashed, live)

    async def _tell_when_closed(self, attempt: int) -> None:
        await self._neighbours.aborts.closed(attempt)
        await self.address.tell(StreamClosed(attempt))

    async def _carry_out(self, effects: Iterable[Effect]) -> None:
        near = self._neighbours
        for effect in effects:
            match effect:
                case Abort(attempt):
                    near.aborts.abort(attempt)
                case Publish(events):
                    await self._announce(events)
                case SetTimers(attempt, deadline_s, retry_after_s):
                    await near.scheduler.tell(StartTimers(attempt, deadline_s, retry_after_s))
                case LimitTo(attempt, limit_s):
                    await near.scheduler.tell(LimitAttempt(attempt, limit_s))
                case DropTimers():
                    await near.scheduler.tell(ForgetTimers())
                case Start(attempt, turn, recorded, request, is_follow_up):
                    await near.matcher.tell(WatchAttempt(attempt, turn, recorded))
                    await near.monitor.tell(StartAttempt(attempt, request, is_follow_up))
                case AskForWork(attempt):
                    self.spawn(self._ask_for_work, attempt)
                case Record():
                    self.spawn(self._write, effect)
                case RunCalls(attempt, calls):
                    await near.tools.tell(RunTools(attempt, calls))
                case FindCalls(attempt, call_ids):
                    await near.tools.tell(FindTools(attempt, call_ids))
                case StopCalls(attempt):
                    await near.tools.tell(CancelTools(attempt))
                case Leave():
                    self.end()

    async def _ask_for_work(self, attempt: int) -> None:
        try:
            known: WorkAnswers = await self._neighbours.work.ask(
                lambda reply: AskWork(self._settings.cwd, reply), WORK_DEADLINE_S
            )
        except AskFailed:
            known = WorkAnswers((None,))
        await self.address.tell(WorkKnown(attempt, known.answers, known.has_project))

    async def _announce(self, events: tuple[AnyEvent, ...]) -> None:
        session_id = self._enrolment.session_id
        await self._neighbours.announcer.pass_on(Announce(session_id, events))
        for event in events:
            if isinstance(event, SessionEnded):
                self._settle(event)

    def _settle(self, ended: SessionEnded) -> None:
        kept = self._record
        if kept is None or not kept.is_terminal:
            kept = record_unless_kept(self._enrolment, ended)
        self._outcome.settle(ended, kept)

    async def _write(self, record: Record) -> None:
        try:
            kept = await self._ask_ledger(record, trio.current_time() + RECORD_DEADLINE_S)
        except MidstreamError as error:
            await self.address.tell(RecordFailed(record.step, str(error)))
        else:
            await self.address.tell(Recorded(record.step, kept))

    async def _ask_ledger(self, record: Record, until: float) -> SessionRecord:
        """A crash of the Ledger fails no session: the number of the step makes it safe to
        ask again. Returns the session's record once the step is kept; `until` is trio time."""
        enrolment = self._enrolment
        kept: SessionRecord = await self._neighbours.ledger.ask_through_crashes(
            lambda reply: Write(enrolment, record.step, record.recording, reply),
            until - trio.current_time(),
        )
        self._record = kept
        return kept


def stops_first(messages: Sequence[SessionMessage]) -> list[SessionMessage]:
    """The order in which waiting messages are handled: stops before all others, and that
    the client has gone before anything that could begin something for it."""
    return sorted(messages, key=_urgency)


def _urgency(message: SessionMessage) -> int:
    if isinstance(message, Interrupt | Cancel):
        return 0
    return 1 if isinstance(message, Detach) else 2
