"""A round of tool calls within a turn: the calls of one message, run side by side.

    begin_round ──▶ Writing ──▶ run_calls ──▶ RunningCalls ──▶ when all are answered:
                                                the results go on record, the model goes on

Calls run only when their message is complete, clean and on record. A call that breaks an
interrupting rule never runs, also when the rule does not cut any more because it has spent
its retries or has been reminded of: the call is refused, and the model is told. What the
results look like is in turn_calls.py.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from midstream.actors.turn_calls import (
    answers,
    message_alone,
    refusal,
    shown,
    unanswered,
    with_reminders,
)
from midstream.actors.turn_effects import Effect, FindCalls, Publish, RunCalls, StopCalls
from midstream.actors.turn_phases import Conclusion, RunningCalls
from midstream.actors.turn_record import append, finish
from midstream.actors.turn_reminders import deferred_reminder, reminder
from midstream.actors.turn_state import TurnState
from midstream.messages.conversation import AnyItem, ReminderItem, ToolCallPart
from midstream.messages.events import AnyEvent, ToolWanted
from midstream.messages.record import SessionStatus
from midstream.messages.settle import Ending, ToolOutcome, ToolState
from midstream.messages.verdict import Verdict
from midstream.messages.work import ToolSettled


def begin_round(
    turn: TurnState, items: tuple[AnyItem, ...], calls: tuple[ToolCallPart, ...]
) -> list[Effect]:
    """Put the message on record; its calls are run when it is."""
    message = message_alone(items)
    if (spent := _spent_on_calls(turn, calls)) is not None:
        return finish_unrun(turn, Conclusion(SessionStatus.CAPPED, spent), calls, message)
    turn.spending.tool_rounds += 1
    return append(turn, message, calls)


def _spent_on_calls(turn: TurnState, calls: tuple[ToolCallPart, ...]) -> str | None:
    """Why the model gets no results for these calls any more, or None if it does."""
    if (spent := turn.spending.spent_on_tools()) is not None:
        return spent
    if any(call.call_id in turn.attempt.refused for call in calls):
        # To refuse is our doing, so a model that insists draws on our budget.
        return turn.draw_on_budget()
    return None


def run_calls(turn: TurnState, calls: tuple[ToolCallPart, ...]) -> list[Effect]:
    """The message is on record: run its calls, and refuse those that break a rule."""
    number, broken = turn.attempt.number, turn.attempt.refused
    refused = [call for call in calls if call.call_id in broken]
    outcomes = {call.call_id: refusal(broken[call.call_id]) for call in refused}
    running = RunningCalls(number, calls, outcomes, turn.now)
    turn.phase = running
    to_run = unanswered(calls, outcomes)
    events: list[AnyEvent] = [
        ToolWanted(number, call.call_id, call.name, call.arguments)
        for call in to_run
        if call.name in turn.settings.host_tools
    ]
    events += shown(refused, outcomes, turn.settings.format)
    effects: list[Effect] = [RunCalls(number, to_run)] if to_run else []
    if events:
        # Behind the calls, so that an answer which comes at once finds its call waiting.
        effects.append(Publish(tuple(events)))
    return effects if to_run else effects + _when_answered(turn, running)


def on_tool_settled(turn: TurnState, phase: RunningCalls, settled: ToolSettled) -> list[Effect]:
    """A call is over; with the last of them the round is."""
    waiting = unanswered(phase.calls, phase.outcomes)
    about = tuple(call for call in waiting if call.call_id == settled.call_id)
    return _settle_calls(turn, phase, about, settled.outcome) if about else []


def on_tools_lost(turn: TurnState, phase: RunningCalls) -> list[Effect]:
    """A runner has gone, maybe an earlier one. What it ran may have had effects, and nobody knows
    any more; what it had not read is in the mailbox of the next, who can tell them apart."""
    # To go on is a recovery, and draws on what midstream may start by itself.
    if phase.stop is None and (spent := turn.draw_on_budget()) is not None:
        phase = replace(phase, stop=Conclusion(SessionStatus.CAPPED, spent))
    turn.phase = phase
    waiting = tuple(call.call_id for call in unanswered(phase.calls, phase.outcomes))
    effects: list[Effect] = [FindCalls(phase.attempt, waiting)]
    if phase.stop is not None:  # nobody may be left who was told so
        effects.append(StopCalls(phase.attempt))
    return effects


def _settle_calls(
    turn: TurnState, phase: RunningCalls, calls: tuple[ToolCallPart, ...], outcome: ToolOutcome
) -> list[Effect]:
    known = {call.call_id: outcome for call in calls}
    running = replace(phase, outcomes={**phase.outcomes, **known})
    turn.phase = running
    effects: list[Effect] = [Publish(shown(calls, known, turn.settings.format))]
    if unanswered(running.calls, running.outcomes):
        return effects
    return effects + _when_answered(turn, running)


def _when_answered(turn: TurnState, phase: RunningCalls) -> list[Effect]:
    """The results go on record with the reminders that belong to them, and the model
    goes on; or the session ends, if a stop was asked for meanwhile."""
    turn.spending.tools_ran_s += turn.now - phase.since
    if phase.stop is not None:
        return finish(turn, phase.stop, _last_answers(turn, phase.outcomes, phase.stop))
    items = answers_of(turn, phase.outcomes, Ending.FINISHED)
    reminded = _with_reminders(turn, items, turn.attempt.folded)
    return append(turn, (*reminded, *deferred_reminder(turn)))


def finish_unrun(
    turn: TurnState,
    conclusion: Conclusion,
    calls: tuple[ToolCallPart, ...],
    before: tuple[AnyItem, ...] = (),
) -> list[Effect]:
    """End the session with calls that were never started."""
    outcomes = {call.call_id: ToolOutcome(ToolState.NOT_STARTED) for call in calls}
    items = (*before, *answers_of(turn, outcomes, _ending(conclusion)))
    events = shown(calls, outcomes, turn.settings.format)
    return [Publish(events), *finish(turn, conclusion, items)]


def answers_of(
    turn: TurnState, outcomes: Mapping[str, ToolOutcome], ending: Ending
) -> tuple[AnyItem, ...]:
    """What follows the message of this attempt when its calls have come to `outcomes`."""
    return answers(turn.attempt.heard.snapshot(), outcomes, ending, turn.settings.format)


def _last_answers(
    turn: TurnState, outcomes: Mapping[str, ToolOutcome], conclusion: Conclusion
) -> tuple[AnyItem, ...]:
    """Results for a session that ends here. Only a call that has returned brings its
    reminder; that of any other is released (spec/ttsr.md 0.6)."""
    returned = [
        verdict
        for verdict in turn.attempt.folded
        if (outcome := outcomes.get(verdict.call_id or "")) and outcome.state is ToolState.RETURNED
    ]
    return _with_reminders(turn, answers_of(turn, outcomes, _ending(conclusion)), returned)


def _with_reminders(
    turn: TurnState, items: tuple[AnyItem, ...], folded: list[Verdict]
) -> tuple[AnyItem, ...]:
    def remind(verdicts: Sequence[Verdict], call_id: str) -> ReminderItem:
        return reminder(turn, verdicts, interrupted=False, call_id=call_id)

    return with_reminders(items, folded, remind)


def _ending(conclusion: Conclusion) -> Ending:
    """How the attempt ended whose calls are settled for this conclusion."""
    stopped = conclusion.status is SessionStatus.CANCELLED
    return Ending.INTERRUPTED if stopped else Ending.FINISHED
