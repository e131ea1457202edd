"""How a turn is stopped: by its user, because its client has gone, because everybody is
paused, or from outside.

A stop is an epoch (architecture.md invariant 3): from every phase it leads to the end, by what
is under way there, and no phase behind it leads back to `Streaming`.
"""

import msgspec
from msgspec.structs import replace

from midstream.actors.turn_abort import close_stream, when_settled
from midstream.actors.turn_calls import unanswered
from midstream.actors.turn_effects import Effect, Publish, Record, StopCalls
from midstream.actors.turn_phases import (
    AnswerNow,
    AskingWork,
    Conclusion,
    FollowUpFailed,
    Over,
    Retry,
    RunNext,
    RunningCalls,
    Settling,
    StartNext,
    Streaming,
    Submitting,
    Wait,
    Writing,
)
from midstream.actors.turn_record import ended, finish, leave_unrecorded
from midstream.actors.turn_state import TurnState
from midstream.actors.turn_tool_round import answers_of
from midstream.messages.conversation import AnyItem
from midstream.messages.events import AttemptPaused, SessionEnded
from midstream.messages.record import SessionStatus
from midstream.messages.settle import Ending, ToolOutcome, ToolState
from midstream.messages.work import AppendItems, AttemptHeld, Cancel, FinishSession, Interrupt


def on_stop(turn: TurnState, message: Interrupt | Cancel) -> list[Effect]:
    """The user, or who speaks for them, wants no more of this session."""
    reason = "interrupted by the user" if isinstance(message, Interrupt) else message.reason
    return _stop(turn, Conclusion(SessionStatus.CANCELLED, reason))


def on_detached(turn: TurnState) -> list[Effect]:
    """Nobody waits for what was begun by itself; the answer to the prompt is finished."""
    turn.continuing = replace(turn.continuing, is_connected=False)
    if turn.continuing.follow_up is None:
        return []
    reason = "the client has gone"
    return _stop(turn, Conclusion(SessionStatus.COMPLETED, reason, stop_reason=turn.stop_reason))


def on_held(turn: TurnState, held: AttemptHeld) -> list[Effect]:
    """Everybody is paused: the prompt waits for its answer. What was begun by itself does
    not, as when its own quota is spent (spec/stop_message.md 9)."""
    turn.spending.hold(turn.now)
    if turn.continuing.follow_up is None:
        return [Publish((AttemptPaused(held.attempt, held.reason),))]
    turn.continuing = turn.continuing.unasked()
    notice = f"auto-continue ended: {held.reason}"
    return _stop(turn, Conclusion(SessionStatus.COMPLETED, notice, stop_reason=turn.stop_reason))


def _stop(turn: TurnState, conclusion: Conclusion) -> list[Effect]:
    match turn.phase:
        case Submitting():
            return leave_unrecorded(turn, conclusion)
        case Streaming(attempt):
            return close_stream(turn, attempt, conclusion)
        case Settling(_, _, Retry() | FollowUpFailed()) as settling:
            return when_settled(turn, replace(settling, then=conclusion), Wait.DELAY)
        case AskingWork(_, reply):
            return finish(turn, conclusion, reply.items)
        case Writing(_, _, StartNext() | RunNext() | AnswerNow(), None) as writing:
            turn.phase = replace(writing, stop=conclusion)
            return []
        case RunningCalls(attempt, stop=None) as running:
            # What returns meanwhile counts as returned (spec/lessons.md E 7).
            turn.phase = replace(running, stop=conclusion)
            return [StopCalls(attempt)]
        case _:
            return []


class LastWord(msgspec.Struct, frozen=True):
    """What is left to do for a session whose actor goes: these writes, in their order, and then
    the end is announced."""

    records: tuple[Record, ...]
    ended: SessionEnded


def abandon(turn: TurnState, reason: str, *, crashed: bool) -> LastWord | None:
    """What is left to do when the session's actor goes before the session is over.

    None if it was over; no write if nothing of it is on record. A write that was under way is
    repeated as it was: its step tells the store whether it has it.
    """
    status = SessionStatus.FAILED if crashed else SessionStatus.CANCELLED
    repeated: tuple[Record, ...] = ()
    match turn.phase:
        case Over():
            return None
        case Submitting():
            turn.phase = Over()
            return LastWord((), ended(turn, Conclusion(status, reason)))
        case Writing(step, FinishSession(ended=end) as recording):
            return LastWord((Record(step, recording),), end)
        case Writing(step, AppendItems() as recording):
            repeated = (Record(step, recording),)
        case _:
            pass
    (last,) = finish(turn, Conclusion(status, reason), _abandoned(turn))
    assert isinstance(last, Record)
    assert isinstance(last.recording, FinishSession)
    return LastWord((*repeated, last), last.recording.ended)


def _abandoned(turn: TurnState) -> tuple[AnyItem, ...]:
    """What of the work that is left behind may stand in the conversation."""
    match turn.phase:
        case Streaming() | Settling():
            return turn.broken_off(turn.attempt.heard.snapshot(), Ending.FAILED)
        case RunningCalls(_, calls, outcomes):
            unknown = ToolOutcome(ToolState.UNKNOWN)
            lost = {call.call_id: unknown for call in unanswered(calls, outcomes)}
            return answers_of(turn, {**outcomes, **lost}, Ending.FAILED)
        case AskingWork(_, reply):
            return tuple(reply.items)
        case Writing(then=RunNext(_, calls)):
            unrun = ToolOutcome(ToolState.NOT_STARTED)
            return answers_of(turn, {call.call_id: unrun for call in calls}, Ending.FAILED)
        case _:
            return ()
