"""The course of one session as a pure state machine: messages in, effects out.

A session is one accepted prompt. `Turn` decides everything about it: when a stream
starts, that it is cut, what the model is told, when it is tried again, how the session
ends. It does no I/O and has no clock; `Session` feeds it and carries out what it answers.

    Submitting ──▶ Writing ──▶ Streaming ──▶ Settling ──▶ Writing ──▶ Streaming ...
                                │    │           │           │
                                │    └───────────┴───────────┴──▶ Writing(EndNow) ──▶ Over
                                └──▶ a whole reply: its calls are run, or it is followed
                                     up, and the next attempt streams

A prompt that is refused, or stopped while it is made ready, ends without a record. Once a
stop was asked for, no phase leads back to `Streaming` (architecture.md invariant 3).

`Turn.receive` is the table of what may happen when; each of its arms is one call, and the
functions it calls stand in one file for each concern:

    turn_abort.py       the abort path: a verdict cuts the stream, which settles, and is tried again
    turn_reply.py       a stream ends by itself
    turn_tool_round.py  the calls of a reply are run, and answered
    turn_follow_up.py   a reply is continued by itself
    turn_stop.py        everything that ends a session early
    turn_record.py      what goes on record, and how a session ends
    turn_attempt.py     the next stream is asked for

They change the turn's state (turn_state.py) and answer with effects (turn_effects.py);
nothing else happens in them.
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from midstream.actors.turn_abort import (
    on_batch,
    on_follow_up_overdue,
    on_lost,
    on_settle_overdue,
    on_timers_lost,
    when_settled,
)
from midstream.actors.turn_attempt import start_attempt
from midstream.actors.turn_budget import Spending
from midstream.actors.turn_continuation import Continuing, resumed
from midstream.actors.turn_effects import Effect, Publish
from midstream.actors.turn_follow_up import on_work_known
from midstream.actors.turn_phases import (
    AnswerNow,
    AskingWork,
    Conclusion,
    EndNow,
    Phase,
    RunNext,
    RunningCalls,
    Settling,
    StartNext,
    Streaming,
    Submitting,
    Wait,
    Writing,
)
from midstream.actors.turn_record import (
    finish,
    leave,
    leave_unrecorded,
    started,
    take_into_context,
    write,
)
from midstream.actors.turn_reply import on_stream_end
from midstream.actors.turn_settings import TurnSettings
from midstream.actors.turn_state import Attempt, TurnState
from midstream.actors.turn_stop import LastWord, abandon, on_detached, on_held, on_stop
from midstream.actors.turn_tool_round import finish_unrun, on_tool_settled, on_tools_lost, run_calls
from midstream.messages.accumulate import Accumulator
from midstream.messages.conversation import AnyItem
from midstream.messages.enrolment import as_recorded
from midstream.messages.events import (
    AlertRaised,
    AnyEvent,
    LocalAnswer,
    PassageCapped,
    RuleSuspended,
    StopMessageChanged,
)
from midstream.messages.record import SessionRecord, SessionStatus
from midstream.messages.settle import settle_history
from midstream.messages.submit_work import PromptReady, PromptRefused
from midstream.messages.work import (
    AcceptPrompt,
    ActorLost,
    AttemptHeld,
    AttemptOverdue,
    AttemptReleased,
    Cancel,
    ConditionSuspended,
    Detach,
    Interrupt,
    PassageOverflowed,
    Recorded,
    RecordFailed,
    RetryDue,
    SettleOverdue,
    StreamClosed,
    TimersLost,
    ToolSettled,
    ToolsLost,
    WatchedBatch,
    WatchedEnd,
    WorkKnown,
)

Message = (
    PromptReady
    | PromptRefused
    | WatchedBatch
    | WatchedEnd
    | StreamClosed
    | RetryDue
    | SettleOverdue
    | AttemptOverdue
    | AttemptHeld
    | AttemptReleased
    | WorkKnown
    | Interrupt
    | Cancel
    | Detach
    | Recorded
    | RecordFailed
    | ToolSettled
    | ToolsLost
    | ActorLost
    | TimersLost
    | ConditionSuspended
    | PassageOverflowed
)


class Turn:
    """One session's course.

    `context` are the items that the conversation already holds, as they are kept, `recorded` the
    rules whose reminders are among them, `turn` how many messages the model has written there,
    `now` the time in seconds at which the prompt was handed in, `now_ms` the same on the
    clock on the wall; `continuing` what is known of the conversation's stopMessage.
    """

    def __init__(
        self,
        settings: TurnSettings,
        context: Sequence[AnyItem],
        recorded: dict[str, int],
        turn: int,
        now: float,
        now_ms: int = 0,
        continuing: Continuing | None = None,
    ) -> None:
        self._state = TurnState(
            settings=settings,
            context=tuple(context),
            recorded=dict(recorded),
            ordinal=turn,
            began_at=now,
            began_ms=now_ms,
            now=now,
            spending=Spending(settings.budget, now),
            continuing=continuing or Continuing(),
            attempt=Attempt(0, Accumulator(settings.format)),
        )

    @property
    def phase(self) -> Phase:
        return self._state.phase

    def resume(self, recoveries: int) -> list[Effect]:
        """Go on where a session was lost that had accepted its prompt. Its recoveries draw
        on what midstream may start by itself for the prompt (architecture.md invariant 7)."""
        turn = self._state
        turn.spending.restarts = recoveries - 1
        turn.context = settle_history(turn.context, turn.settings.format)
        turn.continuing, turn.output = resumed(turn.continuing, turn.context, turn.now)
        begun = Publish((started(turn),))
        if turn.draw_on_budget() is not None:
            reason = f"taken over {recoveries} times, and nothing more may start by itself"
            return [begun, *finish(turn, Conclusion(SessionStatus.CAPPED, reason), ())]
        return [begun, *start_attempt(turn)]

    def receive(self, message: Message, now: float) -> list[Effect]:
        """What to do about `message`, which came at `now`. Stale messages have no effect."""
        turn = self._state
        turn.now = now
        match message, turn.phase:
            case PromptReady(), Submitting():
                return _on_ready(turn, message)
            case PromptRefused(), Submitting():
                return _on_refused(turn, message)
            case WatchedBatch(attempt=attempt), Streaming(live) if attempt == live:
                return on_batch(turn, message)
            case WatchedEnd(attempt), Settling(live) as phase if attempt == live:
                return when_settled(turn, phase, Wait.SETTLED)
            case StreamClosed(attempt), Settling(live) as phase if attempt == live:
                return when_settled(turn, phase, Wait.SETTLED)
            case RetryDue(attempt), Settling(live) as phase if attempt == live:
                return when_settled(turn, phase, Wait.DELAY)
            case SettleOverdue(attempt), Settling(live, waits) if (
                attempt == live and Wait.SETTLED in waits
            ):
                return on_settle_overdue(turn)
            case WatchedEnd(attempt), Streaming(live) if attempt == live:
                return on_stream_end(turn)
            case AttemptOverdue(attempt), Streaming(live) if (
                attempt == live and turn.continuing.follow_up is not None
            ):
                return on_follow_up_overdue(turn, attempt)
            case AttemptHeld(attempt=attempt), Streaming(live) if attempt == live:
                return on_held(turn, message)
            case AttemptReleased(attempt), Streaming(live) if attempt == live:
                turn.spending.release(now)
                return []
            case WorkKnown(attempt), AskingWork(live) as phase if attempt == live:
                return on_work_known(turn, phase, message)
            case ToolSettled(attempt=attempt), RunningCalls(live) as phase if attempt == live:
                return on_tool_settled(turn, phase, message)
            case ToolsLost(), RunningCalls() as phase:
                return on_tools_lost(turn, phase)
            case Recorded(step, record), Writing(expected) as phase if step == expected:
                return _on_recorded(turn, phase, record)
            case RecordFailed(step, error), Writing(expected) as phase if step == expected:
                return _on_record_failed(turn, phase, error)
            case ((Interrupt() | Cancel()), _):
                return on_stop(turn, message)
            case Detach(), _:
                return on_detached(turn)
            case ActorLost(), _:
                return on_lost(turn, message)
            case TimersLost(), _:
                return on_timers_lost(turn, message)
            case ConditionSuspended(_, rule, condition, reason), _:
                return [Publish((RuleSuspended(rule, condition, reason),))]
            case PassageOverflowed(attempt, source, limit_chars), Streaming():
                return [Publish((PassageCapped(attempt, source, limit_chars),))]
            case _:
                return []

    def abandon(self, reason: str, now: float, *, crashed: bool) -> LastWord | None:
        """What is left to do when the session's actor goes before the session is over; see
        `turn_stop.abandon`."""
        self._state.now = now
        return abandon(self._state, reason, crashed=crashed)


# --- the prompt


def _on_ready(turn: TurnState, ready: PromptReady) -> list[Effect]:
    turn.continuing = replace(
        turn.continuing,
        state=ready.state,
        templates=ready.templates,
        is_compaction=ready.is_compaction,
    )
    events: list[AnyEvent] = [AlertRaised(alert) for alert in ready.alerts]
    if ready.is_new and ready.state is not None:
        events.append(StopMessageChanged(ready.state))
    told: list[Effect] = [Publish(tuple(events))] if events else []
    to_keep = None if ready.is_kept else ready.state
    accept = AcceptPrompt(ready.items, to_keep, ready.version)
    if ready.local_answer is None:
        return told + write(turn, accept, StartNext(ready.items))
    return told + write(turn, accept, AnswerNow(ready.local_answer))


def _on_refused(turn: TurnState, refused: PromptRefused) -> list[Effect]:
    raised = Publish(tuple(AlertRaised(alert) for alert in refused.alerts))
    return [raised, *leave_unrecorded(turn, Conclusion(refused.status, refused.reason))]


# --- once something is on record


def _on_recorded(turn: TurnState, phase: Writing, record: SessionRecord | None) -> list[Effect]:
    then, stop = phase.then, phase.stop
    if isinstance(then, EndNow):
        ended = then.ended if record is None else as_recorded(then.ended, record)
        return leave(turn, ended)
    if isinstance(then, AnswerNow):
        return _answer_locally(turn, then.text)
    effects = take_into_context(turn, then.items)
    if isinstance(then, RunNext) and stop is not None:
        return effects + finish_unrun(turn, stop, then.calls)
    if stop is not None:
        return effects + finish(turn, stop, ())
    if isinstance(then, RunNext):
        return effects + run_calls(turn, then.calls)
    return effects + start_attempt(turn)


def _on_record_failed(turn: TurnState, phase: Writing, error: str) -> list[Effect]:
    reason = f"not recorded: {error}"
    if isinstance(phase.then, EndNow):
        failed = SessionStatus.FAILED
        return leave(turn, msgspec.structs.replace(phase.then.ended, status=failed, reason=reason))
    return finish(turn, Conclusion(SessionStatus.FAILED, reason), ())


def _answer_locally(turn: TurnState, text: str) -> list[Effect]:
    turn.output = text
    events = (started(turn), LocalAnswer(text))
    return [Publish(events), *finish(turn, Conclusion(SessionStatus.COMPLETED), ())]
