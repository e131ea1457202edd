"""Auto-continue within a turn: a finished reply is followed up, or the session ends.

What follows from a reply is decided in turn_continuation.py; here it is carried into the
turn. A follow-up is an attempt like any other, whose prompt nobody typed.
"""

from collections.abc import Sequence

from midstream.actors.turn_attempt import start_attempt
from midstream.actors.turn_continuation import (
    after_bad_follow_up,
    conclusion_after_bad,
    conclusion_after_stop,
    continue_or_stop,
    decision_events,
    said_on_behalf,
)
from midstream.actors.turn_effects import AskForWork, Effect, Publish
from midstream.actors.turn_phases import AskingWork, Conclusion, FinishedReply
from midstream.actors.turn_record import append, finish
from midstream.actors.turn_state import TurnState
from midstream.messages.accumulate import PartialTranscript
from midstream.messages.bd_stage import Answer, BdMode, work_state
from midstream.messages.continuation import Continue
from midstream.messages.conversation import AnyItem
from midstream.messages.events import AttemptDiscarded, Retracted, RetryScheduled
from midstream.messages.failure import ProviderFailure
from midstream.messages.follow_up_outcome import Action
from midstream.messages.record import SessionStatus
from midstream.messages.settle import Ending
from midstream.messages.stop_message import BdWorkState
from midstream.messages.work import WorkKnown


def after_reply(
    turn: TurnState, items: tuple[AnyItem, ...], partial: PartialTranscript
) -> list[Effect]:
    """A whole reply that leaves nothing to do: it may be continued by itself."""
    reply = FinishedReply(turn.context, items, partial.stop_reason, turn.now, turn.now_ms)
    if turn.continuing.follow_up is not None and reply.is_empty:
        return on_bad_follow_up(turn, None, partial)
    if not (reply.is_natural_stop and turn.continuing.needs_work_state):
        return _continue_or_end(turn, reply, BdWorkState.UNKNOWN)
    if turn.settings.continuation.bd_mode is BdMode.HEURISTIC:
        return _continue_or_end(turn, reply, _work_state(turn, (), has_project=True))
    turn.phase = AskingWork(turn.attempt.number, reply)
    return [AskForWork(turn.attempt.number)]


def on_work_known(turn: TurnState, phase: AskingWork, known: WorkKnown) -> list[Effect]:
    """The task list has answered: what follows the reply can be decided."""
    work = _work_state(turn, known.answers, has_project=known.has_project)
    return _continue_or_end(turn, phase.reply, work)


def _work_state(turn: TurnState, answers: Sequence[Answer], *, has_project: bool) -> BdWorkState:
    mode = turn.settings.continuation.bd_mode
    return work_state(answers, mode, turn.context, has_project=has_project)


def _continue_or_end(turn: TurnState, reply: FinishedReply, work: BdWorkState) -> list[Effect]:
    before, spent = turn.continuing, turn.exhausted or turn.spent()
    turn.continuing, decision = continue_or_stop(
        before,
        turn.settings.continuation,
        reply,
        work=work,
        is_budget_spent=spent is not None,
    )
    events = decision_events(turn.attempt.number, before, reply, decision)
    told: list[Effect] = [Publish(events)] if events else []
    if isinstance(decision, Continue):
        turn.spending.restarts += 1
        items = (*reply.items, *said_on_behalf(decision))
        return told + append(turn, items, stop_message=turn.continuing.state)
    conclusion = conclusion_after_stop(
        decision, reply.stop_reason, exhausted=turn.exhausted, spent=spent
    )
    return told + finish(turn, conclusion, reply.items)


def on_bad_follow_up(
    turn: TurnState, failure: ProviderFailure | None, partial: PartialTranscript
) -> list[Effect]:
    """A follow-up has failed, or is empty: again, or the end with the last good reply."""
    turn.continuing, verdict = after_bad_follow_up(turn.continuing, failure, now_ms=turn.now_ms)
    kept = turn.settled(partial, Ending.FINISHED if failure is None else Ending.FAILED)
    if verdict.action is not Action.RETRY:
        return finish(turn, conclusion_after_bad(verdict, turn.stop_reason), kept)
    if (spent := turn.draw_on_budget()) is not None:
        return finish(turn, Conclusion(SessionStatus.CAPPED, spent), kept)
    number = turn.attempt.number
    why = "nothing was said" if failure is None else failure.message
    discarded = AttemptDiscarded(number, partial.usage)
    events = (Retracted(number, why), discarded, RetryScheduled(number, 0.0))
    return [Publish(events), *start_attempt(turn)]
