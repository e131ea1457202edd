"""What a turn does when a stream has ended by itself: with a whole reply, or without one.

A whole reply leads to a round of tool calls, to a reminder, to a follow-up, or to the end.
"""

from midstream.actors.turn_effects import Effect
from midstream.actors.turn_follow_up import after_reply, on_bad_follow_up
from midstream.actors.turn_phases import Conclusion, status_of
from midstream.actors.turn_record import append, finish
from midstream.actors.turn_reminders import defer_folded, deferred_reminder
from midstream.actors.turn_state import TurnState
from midstream.actors.turn_tool_round import begin_round
from midstream.messages.accumulate import PartialTranscript, StreamState
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.record import SessionStatus
from midstream.messages.settle import Ending, open_calls
from midstream.messages.stream import StopReason


def on_stream_end(turn: TurnState) -> list[Effect]:
    """A stream without its terminal event is an error, never a natural stop (architecture.md
    invariant 4)."""
    partial = turn.attempt.heard.snapshot()
    turn.count(partial)
    if partial.state is StreamState.FINISHED:
        return _on_whole_reply(turn, partial)
    failure = partial.failure or ProviderFailure(
        FailureKind.PROTOCOL, "the stream ended without its terminal event"
    )
    if turn.continuing.follow_up is not None:
        return on_bad_follow_up(turn, failure, partial)
    conclusion = Conclusion(status_of(failure), failure.message, failure)
    return finish(turn, conclusion, turn.broken_off(partial, Ending.FAILED))


def _on_whole_reply(turn: TurnState, partial: PartialTranscript) -> list[Effect]:
    """The model has said what it wanted to say: run its calls, remind, go on, or end."""
    items = turn.settled(partial, Ending.FINISHED)
    if partial.text.strip():
        turn.output, turn.stop_reason = partial.last_words, partial.stop_reason
    elif not turn.output:  # an empty answer is an answer while there is no better one
        turn.stop_reason = partial.stop_reason
    calls = open_calls(items)
    defer_folded(turn, partial)
    if calls and turn.settings.runs_tools:
        return begin_round(turn, items, calls)
    if not calls and (turn.attempt.deferred or _waits_in_vain(turn, partial)):
        if (spent := turn.draw_on_budget()) is not None:
            return finish(turn, Conclusion(SessionStatus.CAPPED, spent), items)
        return append(turn, (*items, *deferred_reminder(turn)))
    return after_reply(turn, items, partial)


def _waits_in_vain(turn: TurnState, partial: PartialTranscript) -> bool:
    """Whether the model waits for results of calls none of which was valid. The marker
    among the message's items tells it so (spec/lessons.md E 8)."""
    asked = partial.calls and partial.stop_reason is StopReason.TOOL_USE
    return bool(asked) and turn.settings.runs_tools
