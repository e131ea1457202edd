"""How a turn puts things on record, and ends.

Every write leads to `Writing`: nothing that depends on it happens before the answer
(`Turn.receive`, `Recorded`). A session ends by a write, `finish`, or unrecorded if its
prompt was never accepted.
"""

from collections.abc import Sequence

from midstream.actors.turn_effects import Effect, Leave, Publish, Record
from midstream.actors.turn_phases import (
    AnswerNow,
    Conclusion,
    EndNow,
    Over,
    RunNext,
    StartNext,
    Writing,
)
from midstream.actors.turn_state import TurnState
from midstream.messages.conversation import AnyItem, ReminderItem, ToolCallPart
from midstream.messages.events import AnyEvent, ReminderInjected, SessionEnded, SessionStarted
from midstream.messages.settle import settle_history
from midstream.messages.stop_message import StopMessageState
from midstream.messages.usage import Usage
from midstream.messages.work import AppendItems, FinishSession, Recording


def write(
    turn: TurnState, recording: Recording, then: StartNext | RunNext | AnswerNow | EndNow
) -> list[Effect]:
    """Put this on record; `then` is what follows once it is."""
    turn.step += 1
    turn.phase = Writing(turn.step, recording, then)
    return [Record(turn.step, recording)]


def append(
    turn: TurnState,
    items: tuple[AnyItem, ...],
    calls: tuple[ToolCallPart, ...] = (),
    stop_message: StopMessageState | None = None,
) -> list[Effect]:
    """Add items to the conversation, then run these calls, or else start the next attempt."""
    then = RunNext(items, calls) if calls else StartNext(items)
    recording = AppendItems(items, turn.ordinal, turn.attempt.number, stop_message)
    return write(turn, recording, then)


def finish(turn: TurnState, conclusion: Conclusion, items: Sequence[AnyItem]) -> list[Effect]:
    """End the session, with these last items. The end is announced once it is on record."""
    end = ended(turn, conclusion)
    recording = FinishSession(tuple(items), turn.ordinal, end, turn.continuing.last_state)
    return write(turn, recording, EndNow(end))


def leave_unrecorded(turn: TurnState, conclusion: Conclusion) -> list[Effect]:
    """End before the prompt was accepted: nothing of it is on record, nor will be."""
    return leave(turn, ended(turn, conclusion))


def leave(turn: TurnState, end: SessionEnded) -> list[Effect]:
    """Announce the end. Nothing comes after it."""
    turn.phase = Over()
    return [Publish((end,)), Leave()]


def take_into_context(turn: TurnState, items: tuple[AnyItem, ...]) -> list[Effect]:
    """What is on record now is what the next request says."""
    turn.context += items
    events: list[AnyEvent] = []
    if not turn.attempt.number:
        # With the prompt, which may bring the results that the last message waits for.
        turn.context = settle_history(turn.context, turn.settings.format)
        events.append(started(turn))
    for item in items:
        if isinstance(item, ReminderItem):
            turn.recorded.update(dict.fromkeys(item.rules, turn.ordinal))
            events.append(ReminderInjected(item.rules, item.text))
    return [Publish(tuple(events))] if events else []


def started(turn: TurnState) -> SessionStarted:
    """What is announced once the prompt is on record."""
    settings = turn.settings
    return SessionStarted(settings.conversation_id, settings.provider, settings.model)


def ended(turn: TurnState, conclusion: Conclusion) -> SessionEnded:
    """What is announced, and recorded, of the end of the session."""
    return SessionEnded(
        status=conclusion.status,
        output=turn.output,
        stop_reason=conclusion.stop_reason,
        reason=conclusion.reason,
        failure=conclusion.failure,
        usage=turn.usage or Usage(),
        attempts=turn.attempt.number,
        duration_ms=max(0, round((turn.now - turn.began_at) * 1000)),
        provider_session_id=turn.provider_session_id,
    )
